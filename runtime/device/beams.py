"""A running batch of beam search on a device, by the graph `decoder_beams`.

The rows of a sentence are beams over one entry of each buffer. Cross-attention exists once. A search that continues
with other hypotheses changes the flags of ancestors and moves no cache (see `txport.exporter.graphs.lowerings.Beams`).
Everything except the caches is on the host: in each step it uploads one small block and downloads the candidates.
"""

from collections import deque
from collections.abc import Sequence

import numpy as np
from txport.runtime.bundle.interface import ANCESTORS, TOP_OUTPUTS
from txport.runtime.device.beam_buffers import BeamBuffers
from txport.runtime.device.pool import Encoded, Lease, Pool, PreparedStep
from txport.runtime.device.state import DeviceState
from txport.runtime.engine import Bool, Int64, StepOutput, Top


class DeviceBeams(DeviceState):
    """One running batch of beam search; see `txport.runtime.engine.DecoderState`.

    Rows are reordered within their sentence, and sentences move whole. The rows of a sentence that have not finished
    are all at one position.

    Args:
        pool: owner of its memory.
        step: its memory, for at least this number of sentences.
        sentences: entry of the buffers for each sentence of the state; all different.
        source: maximum source length; the buffers may be wider.
    """

    def __init__(self, pool: Pool, step: Lease[PreparedStep], sentences: Sequence[int], source: int) -> None:
        super().__init__(pool, step, sentences, source)
        assert isinstance(step.value.buffers, BeamBuffers)
        self._exchange = step.value.buffers
        count = len(sentences)
        beams = self._exchange.sizes.beams
        self._beams = beams
        self.rows = count * beams
        self._sentence, self._beam = np.arange(count)[:, None], np.arange(beams)
        # The tokens that each sentence has made: positions stay before the end of the cache, where a sentence that has
        # finished writes unused values.
        self._lengths, self._limits = np.zeros(count, np.int64), np.ones(count, np.int64)
        self._token_ids, self._finished = np.full((count, beams), pool.tokens.pad), np.ones((count, beams), np.bool_)
        self._ancestors = np.zeros((count, beams, self.target, beams), np.bool_)
        self._under_way = False  # whether a step is running whose tokens have not been read
        self._unread_steps: list[tuple[Int64, Bool]] = []  # tokens and flags of each unread step,
        self._unread: deque[int] = deque()  # and steps of each such group

    def place(
        self, rows: Sequence[int], memory: Encoded, memory_rows: Sequence[int], target_limits: Sequence[int]
    ) -> None:
        """Start each new sentence in its first row; its other rows stay finished until `reorder`."""
        assert not self._unread, "rows are placed after the steps before have been read"
        sentences = [row // self._beams for row in rows]
        with self._pool.working():
            self._place_sources([self._rows[sentence] for sentence in sentences], memory, memory_rows)
        self._token_ids[sentences], self._finished[sentences] = self._pool.tokens.bos, self._beam > 0
        self._lengths[sentences], self._limits[sentences] = 0, target_limits
        self._ancestors[sentences] = False

    def step(self, count: int = 1) -> None:
        """Advance every unfinished row by up to `count` tokens; return before the device has finished the last one."""
        for _ in range(count):
            self._take()
            self._launch()
        self._unread.append(count)

    def _launch(self) -> None:
        """Enqueue the upload of inputs, a step, and the download of its results."""
        position = np.minimum(self._lengths, self.target - 1)
        assert (self._finished.all(axis=1) | (position == self._lengths)).all(), "a sentence beyond its cache"
        self._ancestors[self._sentence, self._beam, position[:, None], self._beam] = True
        inputs = self._exchange.inputs
        buffer_rows = self._rows
        inputs["token_ids"][buffer_rows], inputs["positions"][buffer_rows] = self._token_ids, position[:, None]
        inputs["first_slots"][buffer_rows] = position * self._beams
        inputs[ANCESTORS][buffer_rows] = self._ancestors.reshape(len(buffer_rows), self._beams, -1)
        with self._pool.working():
            self._exchange.upload_state()
            self._step.value.groups.launch(1)
            self._exchange.download()
        self._under_way = True

    def _take(self) -> None:
        """Wait for the running step, choose its best tokens and finish rows; plain steps do this in their graphs."""
        if not self._under_way:
            return
        with self._pool.waiting():
            self._exchange.wait()
        self._under_way = False
        tokens = self._pool.tokens
        best = self._of_rows("top_ids")[:, 0].reshape(self._finished.shape)
        self._token_ids[:] = np.where(self._finished, tokens.pad, best)
        self._lengths += ~self._finished.all(axis=1)
        full = self._lengths >= self._limits
        self._finished |= (self._token_ids == tokens.eos) | full[:, None]
        self._unread_steps.append((self._token_ids.reshape(-1).copy(), self._finished.reshape(-1).copy()))

    def read(self) -> StepOutput:
        """Wait for the first unread group of steps and return its tokens."""
        count = self._unread.popleft()
        while len(self._unread_steps) < count:
            self._take()
        steps = self._unread_steps[:count]
        self._unread_steps = self._unread_steps[count:]
        return StepOutput(np.stack([tokens for tokens, _ in steps]), steps[-1][1])

    def override(self, rows: Sequence[int], token_ids: Sequence[int], finished: Sequence[bool]) -> None:
        """Replace the last token and the flag of these rows; see `DecoderState.override`."""
        assert not self._unread, "tokens are replaced after they have been read"
        indices = np.array(rows, np.int64)
        self._token_ids.flat[indices], self._finished.flat[indices] = token_ids, finished

    def top(self, k: int) -> Top:
        """Return the best tokens of the last step; see `DecoderState.top`. For a larger k, the logits are used."""
        ids, logits, normaliser = map(self._of_rows, TOP_OUTPUTS)
        if k > ids.shape[1]:
            return super().top(k)
        return Top(ids[:, :k].astype(np.int64), logits[:, :k], normaliser[:, 0].astype(np.float64))

    def reorder(self, rows: Sequence[int]) -> None:
        """Let row i continue as row `rows[i]` of its sentence; nothing is copied on the device."""
        assert not self._unread, "rows are reordered after the steps before have been read"
        order = np.array(rows).reshape(-1, self._beams)
        assert (order // self._beams == self._sentence).all(), "a row of another sentence"
        for values in (self._token_ids, self._finished, self._ancestors):
            values[:] = values[self._sentence, order % self._beams]

    def resized(self, rows: Sequence[int], target: int) -> "DeviceBeams":
        """Return a new state of complete sentences; see `DeviceState.resized`."""
        assert not self._unread, "rows move after the steps before have been read"
        sentences = [row // self._beams for row in rows[:: self._beams]]
        beams = range(self._beams)
        assert list(rows) == [s * self._beams + beam for s in sentences for beam in beams], "a part of a sentence"
        new = DeviceBeams(self._pool, *self._relocated([self._rows[s] for s in sentences], target), self.source)
        new._copy_from(self._exchange, [self._rows[s] for s in sentences])
        for name in ("_token_ids", "_lengths", "_limits", "_finished"):
            getattr(new, name)[:] = getattr(self, name)[sentences]
        length = min(self.target, new.target)
        new._ancestors[:, :, :length] = self._ancestors[sentences, :, :length]
        del self._step
        return new

    def _of_rows(self, name: str) -> np.ndarray:
        """Return an output of the last step, `[rows, n]`; a copy."""
        values = self._exchange.outputs[name].reshape(self._exchange.sizes.rows, self._beams, -1)
        return values[self._rows].reshape(self.rows, -1)
