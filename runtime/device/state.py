"""The decoder's state on a device. Each poll copies one small block to the host.

A list maps rows of the state to rows of the buffers, so reducing the rows within the same buffers copies nothing. While
no step is running, the blocks of host and device are equal: `place` and `override` change the host's block and upload
it. Two groups of steps may be running, each with its own block for results.
"""

from collections.abc import Iterator, Sequence

import numpy as np
from txport.runtime.device.buffers import RING, StepBuffers
from txport.runtime.device.device import Buffer
from txport.runtime.device.pool import Encoded, Lease, Pool, PreparedStep
from txport.runtime.engine import DecoderState, Float32, StepOutput, of_rows


class DeviceState(DecoderState):
    """One running batch; see `txport.runtime.engine.DecoderState`.

    Args:
        pool: owner of its memory.
        step: its memory, for at least this number of rows.
        rows: row of the buffers for each row of the state; all different.
        source: maximum source length; the buffers may be wider.
    """

    def __init__(self, pool: Pool, step: Lease[PreparedStep], rows: Sequence[int], source: int) -> None:
        self._pool = pool
        self._step = step
        self._rows = list(rows)
        self._buffers = step.value.buffers
        self._groups = self._read = 0  # groups enqueued so far, and groups read
        self.rows = len(rows)
        self.source = source
        self.target = self._buffers.sizes.target

    def place(
        self, rows: Sequence[int], memory: Encoded, memory_rows: Sequence[int], target_limits: Sequence[int]
    ) -> None:
        """Start new sentences: row `rows[i]` gets encoder output `memory_rows[i]`, bos at position 0, not finished."""
        assert self._read == self._groups, "rows are placed after the steps before have been read"
        buffer_rows = [self._rows[row] for row in rows]
        with self._pool.working():
            self._place_sources(buffer_rows, memory, memory_rows)
            host = self._buffers.host
            host.token_ids[buffer_rows], host.positions[buffer_rows] = self._pool.tokens.bos, 0
            host.target_limits[buffer_rows], host.finished[buffer_rows] = target_limits, False
            self._buffers.upload_state()

    def _place_sources(self, buffer_rows: Sequence[int], memory: Encoded, memory_rows: Sequence[int]) -> None:
        """Copy outputs of the encoder into these rows of the buffers, and clear their caches."""
        for row, memory_row, count in _runs(buffer_rows, memory_rows):
            self._place_run(row, memory, memory_row, count)

    def _place_run(self, row: int, memory: Encoded, memory_row: int, count: int) -> None:
        """Copy consecutive rows, and zero data of earlier sentences: it is masked, but NaN would pass the mask."""
        buffers = self._buffers
        device = self._buffers.device
        buffers.caches.clear(device, row, count)
        bias = Buffer(buffers.bias + row * buffers.bias_row, buffers.bias_row)
        if memory.width < buffers.sizes.source:
            for stack in buffers.sources:
                stack.clear(device, row, count)
            device.copy(bias, Buffer(buffers.masked), count * buffers.bias_row)
        for to, source in zip(buffers.sources, memory.sources, strict=True):
            device.copy(
                to.row_buffer(row), source.row_buffer(memory_row), source.line, count * source.heads, len(source.names)
            )
        bias_row = memory.width * buffers.float_size
        device.copy(bias, Buffer(memory.bias + memory_row * bias_row, bias_row), bias_row, count)

    def step(self, count: int = 1) -> None:
        """Advance every unfinished row by up to `count` tokens; return before the device has finished."""
        assert count <= RING and self._groups - self._read < 2, "too many steps without a poll"
        with self._pool.working():
            self._step.value.groups.launch(count)
            self._buffers.download_state(self._buffers.polls[self._groups % 2], count)
        self._groups += 1

    def read(self) -> StepOutput:
        """Wait for the first unread group of steps and return its output; the loop waits nowhere else."""
        assert self._read < self._groups, "nothing to read"
        poll = self._buffers.polls[self._read % 2]
        with self._pool.waiting():
            poll.memory.used.synchronize()
        self._read += 1
        self._buffers.adopt(poll)
        return StepOutput(poll.ring[: poll.steps, self._rows].astype(np.int64), poll.finished[self._rows])

    def override(self, rows: Sequence[int], token_ids: Sequence[int], finished: Sequence[bool]) -> None:
        """Replace the last token and the flag of these rows."""
        assert self._read == self._groups, "tokens are replaced after they have been read"
        host = self._buffers.host
        # A step advances the position of unfinished rows only, so a changed flag moves the position by one.
        for row, token, done in zip((self._rows[row] for row in rows), token_ids, finished, strict=True):
            host.positions[row] += int(host.finished[row]) - int(done)
            host.token_ids[row], host.finished[row] = token, done
        with self._pool.working():
            self._buffers.upload_state()

    def logits(self, rows: Sequence[int] | None = None) -> Float32:
        """Return float32 `[len(rows), target_vocabulary]` of the last step; see `DecoderState.logits`."""
        buffers = self._buffers
        assert buffers.logits is not None, "the state was allocated without logits"
        logits = np.empty((buffers.sizes.rows, buffers.sizes.beams, buffers.vocabulary), buffers.float_type)
        with self._pool.working():
            buffers.device.download(logits, buffers.logits)
            buffers.device.synchronize()
        return of_rows(logits[self._rows].reshape(self.rows, -1), rows)

    def reorder(self, rows: Sequence[int]) -> None:
        """Let row i continue as row `rows[i]`. Only repeated rows are copied on the device."""
        assert self._read == self._groups, "rows are reordered after the steps before have been read"
        buffer_rows = [self._rows[row] for row in rows]
        self._rows = _without_repeats(buffer_rows, self._buffers.sizes.rows)
        self._copy_from(self._buffers, buffer_rows)
        self._take_over(self._buffers, buffer_rows)

    def resized(self, rows: Sequence[int], target: int) -> "DeviceState":
        """Return a new state of these rows, which may repeat; see `DecoderState.resized`.

        If the same buffers suffice, rows stay in place, and only repetitions of a row are copied.
        """
        assert self._read == self._groups, "rows move after the steps before have been read"
        old = self._buffers
        buffer_rows = [self._rows[row] for row in rows]
        new = DeviceState(self._pool, *self._relocated(buffer_rows, target), self.source)
        new._copy_from(old, buffer_rows)
        new._take_over(old, buffer_rows)
        del self._step
        return new

    def _relocated(self, buffer_rows: list[int], target: int) -> tuple[Lease[PreparedStep], Sequence[int]]:
        """Return buffers for these rows with caches of `target` tokens, and the new place of each row."""
        old = self._buffers.sizes
        sizes = self._pool.sizes(len(buffer_rows), self.source, target, old.logits, old.beams)
        if sizes == old:
            return self._step, _without_repeats(buffer_rows, sizes.rows)
        return self._pool.step(sizes), range(len(buffer_rows))

    def _copy_from(self, old: StepBuffers, buffer_rows: list[int]) -> None:
        """Copy these rows of the old buffers, which may be those of this state, to the rows of this state."""
        buffers = self._buffers
        with self._pool.working():
            pairs = [
                pair for pair in zip(self._rows, buffer_rows, strict=True) if buffers is not old or pair[0] != pair[1]
            ]
            for to, row, count in _runs([to for to, _ in pairs], [row for _, row in pairs]):
                _copy_run(old, buffers, row, to, count)

    def _take_over(self, old: StepBuffers, buffer_rows: list[int]) -> None:
        """Copy ids, positions, limits and flags of these rows of the old buffers; all other rows are finished."""
        host = self._buffers.host
        for name in ("token_ids", "positions", "target_limits", "finished"):
            getattr(host, name)[self._rows] = getattr(old.host, name)[buffer_rows]
        unused = np.ones(len(host.finished), bool)
        unused[self._rows] = False
        host.finished[unused] = True
        with self._pool.working():
            self._buffers.upload_state()


def _without_repeats(rows: list[int], count: int) -> list[int]:
    """Replace repetitions of rows by unused rows, of `count` rows."""
    unused = iter(sorted({*range(count)} - {*rows}))
    seen = set[int]()
    distinct = list[int]()
    for row in rows:
        distinct.append(next(unused) if row in seen else row)
        seen.add(row)
    return distinct


def _copy_run(old: StepBuffers, new: StepBuffers, source: int, target: int, count: int) -> None:
    """Copy caches and cross-attention of `count` rows to other rows, whose caches may be longer or shorter."""
    device = old.device
    planes = len(old.caches.names)
    lines = count * old.heads
    # The longer part of the caches may contain data of earlier sentences, such as NaN, which masks do not stop.
    if new.caches.line > old.caches.line:
        new.caches.clear(device, target, count)
    length = min(old.caches.line, new.caches.line)
    device.copy(new.caches.row_buffer(target), old.caches.row_buffer(source), length, lines, planes)
    for new_stack, old_stack in zip(new.sources, old.sources, strict=True):
        device.copy(
            new_stack.row_buffer(target),
            old_stack.row_buffer(source),
            old_stack.line,
            count * old_stack.heads,
            len(old_stack.names),
        )
    bias = Buffer(new.bias + target * new.bias_row), Buffer(old.bias + source * old.bias_row)
    device.copy(*bias, count * old.bias_row)


def _runs(targets: Sequence[int], sources: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """Yield (first target, first source, count) of runs that are consecutive on both sides, for one copy each."""
    start = 0
    for index in range(1, len(targets) + 1):
        follows = index < len(targets) and (
            targets[index] == targets[index - 1] + 1 and sources[index] == sources[index - 1] + 1
        )
        if not follows:
            yield targets[start], sources[start], index - start
            start = index
