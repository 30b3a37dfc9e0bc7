"""The decoder's state on a device: nothing of it crosses to the host but one small block at each look.

Rows of the loop are rows of the buffers by way of a list, so that moving to fewer rows within the same buffers copies
nothing. Between a look and the next step the host's block equals the device's: `place` and `override` change the host's
and send it whole.
"""

import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
from txport.runtime.device.buffers import RING, StepBuffers
from txport.runtime.device.device import Block
from txport.runtime.engine import Float32, StepOutput

if TYPE_CHECKING:
    from txport.runtime.device.engine import DeviceEngine, Encoded


class DeviceState:
    """One running batch; see `txport.runtime.engine.DecoderState`.

    Args:
        engine: whose state it is.
        buffers: its memory, of as many rows or more.
        launch: does one step over these buffers.
        rows: which row of the buffers each row of the state is.
        source: the widest source that it is for; the buffers may be wider.
        give_back: what to do with the buffers when nobody holds the state any more.
    """

    def __init__(
        self,
        engine: "DeviceEngine",
        buffers: StepBuffers,
        launch: Callable[[], None],
        rows: Sequence[int],
        source: int,
        give_back: Callable[[], None],
    ) -> None:
        self.rows, self.source, self.target = len(rows), source, buffers.sizes.target
        self._engine, self._buffers, self._launch = engine, buffers, launch
        self._rows, self._unread = list(rows), 0
        self._give_back = weakref.finalize(self, give_back)

    def place(
        self, rows: Sequence[int], memory: "Encoded", memory_rows: Sequence[int], target_limits: Sequence[int]
    ) -> None:
        """Start new sentences: row `rows[i]` gets encoder output `memory_rows[i]`, bos at position 0, not finished."""
        assert not self._unread, "rows are placed after the steps before have been read"
        here = [self._rows[row] for row in rows]
        with self._engine.working():
            for row, memory_row, count in _runs(here, memory_rows):
                self._place_run(row, memory, memory_row, count)
            host = self._buffers.host
            host.token_ids[here], host.positions[here] = self._engine.tokens.bos, 0
            host.target_limits[here], host.finished[here] = target_limits, False
            self._buffers.upload_state()

    def _place_run(self, row: int, memory: "Encoded", memory_row: int, count: int) -> None:
        """What earlier sentences left is cleared: it is masked, but a NaN would come through the mask."""
        buffers, device = self._buffers, self._buffers.device
        buffers.caches.clear(device, row, count)
        bias = Block(buffers.bias + row * buffers.bias_row, buffers.bias_row)
        if memory.width < buffers.sizes.source:
            buffers.cross.clear(device, row, count)
            device.copy(bias, Block(buffers.masked), count * buffers.bias_row)
        cross = memory.cross
        planes, lines = len(cross.names), count * buffers.heads
        device.copy(buffers.cross.at(row), cross.at(memory_row), cross.line, lines, planes)
        given = memory.width * buffers.float_size
        device.copy(bias, Block(memory.bias + memory_row * given, given), given, count)

    def step(self, count: int = 1) -> None:
        """Advance every unfinished row by up to `count` tokens; returns before the device is done."""
        assert self._unread + count <= RING, "too many steps between two looks"
        with self._engine.working():
            for _ in range(count):
                self._launch()
                self._buffers.keep_tokens(self._unread)
                self._unread += 1

    def read(self) -> StepOutput:
        """Wait for the steps since the last `read` and return what they made: the only wait of the loop."""
        with self._engine.working():
            self._buffers.download_state(self._unread)
        host, steps, self._unread = self._buffers.host, self._unread, 0
        return StepOutput(host.ring[:steps, self._rows].astype(np.int64), host.finished[self._rows])

    def override(self, rows: Sequence[int], token_ids: Sequence[int], finished: Sequence[bool]) -> None:
        """Replace the last token that was made for these rows and their flag."""
        assert not self._unread, "tokens are replaced after they have been read"
        host = self._buffers.host
        for row, token, done in zip((self._rows[row] for row in rows), token_ids, finished, strict=True):
            host.positions[row] += bool(host.finished[row]) and not done
            host.token_ids[row], host.finished[row] = token, done
        with self._engine.working():
            self._buffers.upload_state()

    def logits(self) -> Float32:
        """float32 `[rows, target_vocabulary]` of the last step."""
        buffers = self._buffers
        assert buffers.logits is not None, "the state was allocated without logits"
        found = np.empty((buffers.sizes.rows, buffers.vocabulary), buffers.float_type)
        with self._engine.working():
            buffers.device.download(found, buffers.logits)
            buffers.device.synchronize()
        return found[self._rows].astype(np.float32)

    def moved(self, rows: Sequence[int], target: int) -> "DeviceState":
        """A new state of these rows alone, in this order, with caches of `target` tokens; this one is then invalid."""
        assert not self._unread, "rows move after the steps before have been read"
        here = [self._rows[row] for row in rows]
        old = self._buffers
        if self._engine.sizes(len(rows), self.source, target, old.sizes.logits) == old.sizes:
            return self._narrowed(here)
        new = self._engine.allocate(len(rows), self.source, target, logits=old.sizes.logits)
        with self._engine.working():
            for row, first, count in _runs(range(len(rows)), here):
                _move_run(old, new._buffers, first, row, count)
            for name in ("token_ids", "positions", "target_limits", "finished"):
                getattr(new._buffers.host, name)[: len(rows)] = getattr(old.host, name)[here]
            new._buffers.upload_state()
        self._give_back()
        return new

    def _narrowed(self, here: list[int]) -> "DeviceState":
        """The same buffers with fewer rows; those left out go on as finished ones."""
        host = self._buffers.host
        left = np.ones(len(host.finished), bool)
        left[here] = False
        host.finished[left] = True
        with self._engine.working():
            self._buffers.upload_state()
        found = self._give_back.detach()
        assert found is not None, "this state is still valid"
        return DeviceState(self._engine, self._buffers, self._launch, here, self.source, found[1])


def _move_run(old: StepBuffers, new: StepBuffers, source: int, target: int, count: int) -> None:
    """Copy everything that rows of one set of buffers hold to rows of another one, of longer or shorter caches."""
    device, planes, lines = old.device, len(old.caches.names), count * old.heads
    new.caches.clear(device, target, count)
    length = min(old.caches.line, new.caches.line)
    device.copy(new.caches.at(target), old.caches.at(source), length, lines, planes)
    device.copy(new.cross.at(target), old.cross.at(source), old.cross.line, lines, planes)
    bias = Block(new.bias + target * new.bias_row), Block(old.bias + source * old.bias_row)
    device.copy(*bias, count * old.bias_row)


def _runs(targets: Sequence[int], sources: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """(first target, first source, count) of pairs that follow each other in both, so that one copy does for many."""
    start = 0
    for index in range(1, len(targets) + 1):
        follows = index < len(targets) and (
            targets[index] == targets[index - 1] + 1 and sources[index] == sources[index - 1] + 1
        )
        if not follows:
            yield targets[start], sources[start], index - start
            start = index
