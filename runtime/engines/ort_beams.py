"""A running batch of beam search on ONNX Runtime's CPU provider, by the graph `decoder_beams`.

The rows of a sentence are beams over one entry of each buffer. Cross-attention exists once. A search that continues
with other hypotheses changes the flags of ancestors and moves no cache (see `txport.exporter.graphs.lowerings.Beams`).
The rows of a sentence that have not finished are all at one position.
"""

from collections.abc import Sequence

import numpy as np
from txport.runtime.bundle.interface import ANCESTORS, TOP_OUTPUTS
from txport.runtime.engine import Float32, Top, of_rows
from txport.runtime.engines.ort_session import run
from txport.runtime.engines.ort_state import Buffers, OrtState, OrtStep, bind, is_cache

# Number of positions by which caches grow. A step reads all positions of a cache, also unused ones, so long caches cost
# time. Copying a cache into a longer one takes as long as reading it once.
WINDOW = 16


class OrtBeams(OrtState):
    """The buffers of one running batch of beam search; see `txport.runtime.engine.DecoderState`.

    Rows are reordered within their sentence, and sentences move whole.

    Args:
        decoder_step: the step that advances the batch.
        buffers: buffers by name: those of `of`, or the first entries of the buffers of another state.
        sizes: number of sentences, source tokens and cache positions.
        beams: number of rows of a sentence.
    """

    def __init__(self, decoder_step: OrtStep, buffers: Buffers, sizes: tuple[int, int, int], beams: int) -> None:
        super().__init__(decoder_step, buffers, sizes, beams)
        # Number of tokens of each sentence. Finished sentences still write unused values into the cache, so the
        # positions of the graph stay below the cache length.
        self._positions = buffers["lengths"]
        self._sentence, self._beam = np.arange(self._batch)[:, None], np.arange(beams)[None]
        buffers["rows"][:] = self._sentence * beams + self._beam

    def _bind(self) -> None:
        super()._bind()
        for name in filter(self._buffers.__contains__, (*TOP_OUTPUTS, "logits")):
            bind(self.binding.bind_output, name, self._by_row(name))
        self._window = self._buffers[ANCESTORS].shape[2] // self._beams  # present number of cache positions
        self._ancestors = self._buffers[ANCESTORS].reshape(self._batch, self._beams, self._window, self._beams)
        if "slot_positions" in self._buffers:
            self._buffers["slot_positions"][:] = np.arange(self._window).repeat(self._beams)

    @classmethod
    def of(
        cls,
        decoder_step: OrtStep,
        sizes: tuple[int, int, int],
        beams: int,
        *,
        logits: bool,
        top: int,
        window: int = WINDOW,
    ) -> "OrtBeams":
        """Return a state with new buffers and finished rows. Cross-attention is allocated with the first sentences.

        Args:
            decoder_step: the step that advances the batch.
            sizes: number of sentences, source tokens and cache positions.
            beams: number of rows of a sentence.
            logits: whether `logits` will be read.
            top: maximum k of later calls of `top`. If the graph returns fewer tokens, they are chosen from the logits.
            window: initial number of cache positions.
        """
        batch, source, target = sizes
        (candidates,) = (tensor.shape[1] for tensor in decoder_step.graph.outputs if tensor.name == "top_ids")
        assert isinstance(candidates, int)
        outputs = [*TOP_OUTPUTS, *(["logits"] if logits or top > candidates else [])]
        sizes_by_name = {
            "batch": batch,
            "beam": beams,
            "rows": batch * beams,
            "target": target,
            "slots": window * beams,
        }
        buffers = decoder_step.new_buffers({**sizes_by_name, "source": source}, outputs)
        for name in outputs:
            buffers[name] = buffers[name].reshape(batch, beams, -1)
        buffers["lengths"], buffers["target_limits"] = np.zeros(batch, np.int64), np.ones(batch, np.int64)
        buffers["finished"] = np.ones((batch, beams), np.bool_)
        return cls(decoder_step, buffers, sizes, beams)

    def place(
        self, rows: Sequence[int], memory: Buffers, memory_rows: Sequence[int], target_limits: Sequence[int]
    ) -> None:
        """Start each new sentence in its first row; its other rows stay finished until `reorder`."""
        sentences = [row // self._beams for row in rows]
        super().place(sentences, memory, memory_rows, target_limits)
        self._finished[sentences, 1:] = True

    def step(self, count: int = 1) -> None:
        """Advance every unfinished row by up to `count` tokens."""
        self._clean = False
        buffers = self._buffers
        for _ in range(count):
            working = self._positions[~self._finished.all(axis=1)]
            if working.max(initial=0) >= self._window:
                self._lengthen()
            last = min(self._window, self.target) - 1
            position = np.minimum(self._positions, last)[:, None]
            buffers["positions"][:], buffers["first_slots"][:] = position, position[:, 0] * self._beams
            self._ancestors[self._sentence, self._beam, position, self._beam] = True
            run(self._decoder_step.session, self.binding)
            self._advance()

    def _lengthen(self) -> None:
        """Lengthen the caches by one window."""
        for name in [name for name in self._buffers if is_cache(name) or name == "slot_positions"]:
            old = self._buffers[name]
            axis = min(2, old.ndim - 1)
            padding = [(0, 0)] * old.ndim
            padding[axis] = (0, WINDOW * self._beams)
            self._buffers[name] = np.pad(old, padding)
        self._bind()

    def _advance(self) -> None:
        """Choose the best token of each row and finish rows; plain steps do this in their graphs."""
        tokens = self._decoder_step.tokens
        next_ids = np.where(self._finished, tokens.pad, self._buffers["top_ids"][:, :, 0])
        self._positions += ~self._finished.all(axis=1)
        full = self._positions >= self._buffers["target_limits"]
        self._token_ids[:] = next_ids
        self._finished |= (next_ids == tokens.eos) | full[:, None]
        self._unread_steps.append(next_ids.reshape(-1))

    def override(self, rows: Sequence[int], token_ids: Sequence[int], finished: Sequence[bool]) -> None:
        """Replace the last token and the flag of these rows; see `DecoderState.override`."""
        self._by_row("token_ids")[list(rows)] = token_ids
        self._by_row("finished")[list(rows)] = finished

    def logits(self, rows: Sequence[int] | None = None) -> Float32:
        """Return float32 `[len(rows), target_vocabulary]` of the last step; see `DecoderState.logits`."""
        return of_rows(self._by_row("logits"), rows)

    def top(self, k: int) -> Top:
        """Return the best tokens of the last step; see `DecoderState.top`."""
        ids, logits, normaliser = map(self._by_row, TOP_OUTPUTS)
        if k > ids.shape[1]:
            return super().top(k)
        return Top(ids[:, :k], logits[:, :k], normaliser[:, 0].astype(np.float64))

    def reorder(self, rows: Sequence[int]) -> None:
        """Let row i continue the hypothesis of row `rows[i]` of its sentence; see `DecoderState.reorder`."""
        order = np.array(rows).reshape(self._batch, self._beams)
        assert (order // self._beams == self._sentence).all(), "a row of another sentence"
        for values in (self._token_ids, self._finished, self._ancestors):
            values[:] = values[self._sentence, order % self._beams]

    def _resize(self, sources: list[int], target: int) -> OrtState:
        if sources == list(range(self.rows)):
            self.target = target
            return self
        sentences = sources[:: self._beams]
        assert sources == [row + beam for row in sentences for beam in range(self._beams)], "a part of a sentence"
        return super()._resize([row // self._beams for row in sentences], target)

    def _allocate_like_this(self, count: int, target: int) -> "OrtBeams":
        logits = "logits" in self._buffers
        return self.of(
            self._decoder_step, (count, self.source, target), self._beams, logits=logits, top=0, window=self._window
        )

    def _by_row(self, name: str) -> np.ndarray:
        """Return a view of a buffer with one entry for each row."""
        buffer = self._buffers[name]
        return buffer.reshape(self.rows, *buffer.shape[2:])
