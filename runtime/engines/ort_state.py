"""A running batch on ONNX Runtime's CPU provider.

A state binds the buffers of its step by raw pointer, before the first step. Cross-attention is
bound when sentences are placed, and `OrtBeams` also binds its caches when they have grown. Caches and ids are input and
output in the same buffer, so nothing is copied between steps, except the new ids for `read`.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from txport.runtime.bundle.interface import masked
from txport.runtime.bundle.schema import Graph, SpecialTokens, Tensor
from txport.runtime.engine import DecoderState, Float32, Int64, StepOutput, of_rows
from txport.runtime.engines.ort_session import run
from txport.runtime.errors import ResourceError

Array = npt.NDArray[Any]
Buffers = dict[str, Array]
# Buffers with one entry for each row, except caches and outputs of the encoder.
STATE = ("token_ids", "positions", "lengths", "finished", "target_limits")
# Buffers that all rows share.
CONSTANTS = ("cache_positions", "slot_positions")


@dataclass(frozen=True)
class OrtStep:
    """The decoder step of an engine: a graph and its session. All states of the engine share it.

    Attributes:
        graph: graph of the step.
        session: session that runs the graph.
        tokens: ids of special tokens.
    """

    graph: Graph
    session: Any
    tokens: SpecialTokens

    def new_buffers(self, sizes: dict[str, int], outputs: Sequence[str]) -> Buffers:
        """Return the buffers of a state, filled with 0. Cross-attention is added with the first sentences."""
        buffers = [tensor for tensor in self.graph.inputs if not is_cross(tensor.name)]
        buffers += [tensor for tensor in self.graph.outputs if tensor.name in outputs]
        with enough_memory(sizes["batch"], sizes["target"]):
            return zeros(buffers, sizes)

    def new_cross_buffers(self, rows: int, source: int) -> Buffers:
        """Return cross-attention keys, values, bias and ids for `rows` sentences of `source` tokens, filled with 0."""
        cross = [tensor for tensor in self.graph.inputs if is_cross(tensor.name)]
        with enough_memory(rows, source):
            return zeros(cross, {"batch": rows, "source": source})


class OrtState(DecoderState):
    """The buffers of one running batch, in host memory; see `txport.runtime.engine.DecoderState`.

    The first axis of a buffer counts its entries. An entry belongs to one row or, in `OrtBeams`, to the beams of one
    sentence, which are then several rows.

    Args:
        decoder_step: the step that advances the batch.
        buffers: buffers by name: those of `OrtStep.new_buffers`, or the first entries of the buffers of another state.
        sizes: number of entries of the buffers, source tokens and cache positions.
        beams: number of rows that share an entry.
    """

    def __init__(self, decoder_step: OrtStep, buffers: Buffers, sizes: tuple[int, int, int], beams: int = 1) -> None:
        self._batch, self.source, self.target = sizes
        self._beams = beams
        self.rows = self._batch * beams
        self._decoder_step = decoder_step
        self._buffers = buffers
        self._token_ids = buffers["token_ids"]
        self._positions = buffers["positions"]
        self._finished = buffers["finished"]
        self._clean = True  # whether the caches are still unused
        # Number of the sentence of each entry, in the order of placement. Entries of one sentence have equal
        # cross-attention, which need not be copied between them.
        self._sentences = np.zeros(self._batch, np.int64)
        self._placed = 0
        self._unread_steps: list[Int64] = []
        self.binding = decoder_step.session.io_binding()
        self._bind()

    def _bind(self) -> None:
        """Bind all buffers. Cross-attention is bound when it is allocated."""
        buffers = self._buffers
        for tensor in self._decoder_step.graph.inputs:
            if tensor.name in buffers:
                bind(self.binding.bind_input, tensor.name, buffers[tensor.name])
        for name, output in self._decoder_step.graph.aliases:
            bind(self.binding.bind_output, output, buffers[name])
        if "logits" in buffers:
            bind(self.binding.bind_output, "logits", buffers["logits"])

    @classmethod
    def allocate(cls, decoder_step: OrtStep, rows: int, source: int, target: int, *, logits: bool) -> "OrtState":
        """Return a state with new buffers and finished rows. Cross-attention is allocated with the first sentences."""
        sizes = {"batch": rows, "source": source, "target": target}
        buffers = decoder_step.new_buffers(sizes, ["logits"] if logits else [])
        buffers["finished"].fill(True)
        buffers["target_limits"].fill(1)
        if "cache_positions" in buffers:
            buffers["cache_positions"][:] = np.arange(target)
        return cls(decoder_step, buffers, (rows, source, target))

    def place(
        self, rows: Sequence[int], memory: Buffers, memory_rows: Sequence[int], target_limits: Sequence[int]
    ) -> None:
        """Start new sentences: row `rows[i]` gets encoder output `memory_rows[i]`, bos at position 0, not finished.

        Caches of earlier sentences are set to 0. They are masked, but a NaN in them would pass the mask.
        """
        row_list = list(rows)
        self._sentences[row_list] = np.arange(len(row_list)) + self._placed + 1
        self._placed += len(row_list)
        if not self._clean:
            self._clear(row_list)
        has_same_shape = memory["cross_bias"].shape == (self._batch, 1, 1, self.source)
        if has_same_shape and row_list == list(memory_rows) == list(range(self._batch)):
            self._take_over(memory)
        else:
            self._copy_cross(row_list, memory, memory_rows)
        self._token_ids[row_list], self._positions[row_list] = self._decoder_step.tokens.bos, 0
        self._finished[row_list], self._buffers["target_limits"][row_list] = False, target_limits

    def _clear(self, rows: list[int]) -> None:
        for row in rows:
            used_length = self._used_length([row])
            for name in filter(is_cache, self._buffers):
                self._buffers[name][row, :, :used_length] = 0

    def _used_length(self, rows: list[int] | slice) -> int:
        """Return the number of cache positions that the longest of these entries has used (the third axis)."""
        return (int(self._positions[rows].max()) + 1) * self._beams

    def _take_over(self, cross: Buffers) -> None:
        for name in filter(is_cross, cross):
            self._buffers[name] = cross[name]
            bind(self.binding.bind_input, name, cross[name])

    def _copy_cross(self, rows: list[int], memory: Buffers, memory_rows: Sequence[int]) -> None:
        if "cross_bias" not in self._buffers:
            self._take_over(self._decoder_step.new_cross_buffers(self._batch, self.source))
        width = memory["cross_bias"].shape[-1]
        for row, memory_row in zip(rows, memory_rows, strict=True):
            for name in memory:
                buffer = self._buffers[name][row]
                value = memory[name][memory_row]
                if name == "cross_bias":
                    buffer[..., :width], buffer[..., width:] = value, masked(buffer.itemsize)
                else:
                    buffer[:, :width], buffer[:, width:] = value, 0

    def step(self, count: int = 1) -> None:
        """Advance every unfinished row by up to `count` tokens."""
        self._clean = False
        for _ in range(count):
            run(self._decoder_step.session, self.binding)
            self._unread_steps.append(self._token_ids.copy())

    def read(self) -> StepOutput:
        """Return the tokens of the steps since the last `read`."""
        if len(self._unread_steps) > 1:
            token_ids = np.stack(self._unread_steps)
        else:
            token_ids = self._unread_steps[0][None]
        self._unread_steps = []
        return StepOutput(token_ids, self._finished.ravel().copy())

    def override(self, rows: Sequence[int], token_ids: Sequence[int], finished: Sequence[bool]) -> None:
        """Replace the last token and the flag of these rows; see `DecoderState.override`."""
        row_list = list(rows)
        flags = np.array(finished, bool)
        self._positions[row_list] += self._finished[row_list].astype(np.int64) - flags
        self._token_ids[row_list], self._finished[row_list] = token_ids, flags

    def logits(self, rows: Sequence[int] | None = None) -> Float32:
        """Return float32 `[len(rows), target_vocabulary]` of the last step; see `DecoderState.logits`."""
        return of_rows(self._buffers["logits"], rows)

    def reorder(self, rows: Sequence[int]) -> None:
        """Let row i continue the hypothesis of row `rows[i]`; see `DecoderState.reorder`."""
        self._gather(list(rows))

    def resized(self, rows: Sequence[int], target: int) -> "OrtState":
        """Return a new state of these rows, which may repeat; see `DecoderState.resized`."""
        return self._resize(list(rows), target)

    def _resize(self, from_rows: list[int], target: int) -> "OrtState":
        if from_rows == list(range(self._batch)):
            if target == self.target:
                return self
            return self._copy_to_new_state(from_rows, target)
        if len(from_rows) > self._batch:
            return self._copy_to_new_state(from_rows, target)
        state = self._move_to_front(from_rows)
        if target == self.target:
            return state
        return state._copy_to_new_state(list(range(state._batch)), target)

    def _move_to_front(self, from_rows: list[int]) -> "OrtState":
        """Return a state of these rows, moved to the front of the same buffers without an allocation."""
        self._gather(from_rows)
        count = len(from_rows)
        front = {name: buffer if name in CONSTANTS else buffer[:count] for name, buffer in self._buffers.items()}
        new = type(self)(self._decoder_step, front, (count, self.source, self.target), self._beams)
        new._clean = self._clean
        new._sentences = self._sentences[:count].copy()
        new._placed = self._placed
        return new

    def _gather(self, from_rows: list[int]) -> None:
        """Copy these rows to the first rows of the same buffers.

        Values of an earlier, longer sentence are overwritten as well: see `place`.
        """
        target_rows = [index for index, row in enumerate(from_rows) if index != row]
        moved_rows = [from_rows[index] for index in target_rows]
        if not target_rows:
            return
        used_length = self._used_length([*target_rows, *moved_rows])
        cross_pairs = [
            pair
            for pair in zip(target_rows, moved_rows, strict=True)
            if self._sentences[pair[0]] != self._sentences[pair[1]]
        ]
        cross_to, cross_of = map(list, zip(*cross_pairs, strict=True)) if cross_pairs else ([], [])
        for name, buffer in self._buffers.items():
            if is_cache(name):
                buffer[target_rows, :, :used_length] = buffer[moved_rows, :, :used_length]
            elif is_cross(name):
                buffer[cross_to] = buffer[cross_of]
            elif name in STATE:
                buffer[target_rows] = buffer[moved_rows]
        self._sentences[target_rows] = self._sentences[moved_rows]

    def _allocate_like_this(self, count: int, target: int) -> "OrtState":
        """Return a new state of this number of entries, with the same outputs."""
        return self.allocate(self._decoder_step, count, self.source, target, logits="logits" in self._buffers)

    def _copy_to_new_state(self, from_rows: list[int], target: int) -> "OrtState":
        """Return these rows in new buffers. If they are all rows in order, cross-attention is not copied."""
        new = self._allocate_like_this(len(from_rows), target)
        selected: slice | list[int] = from_rows
        if from_rows == list(range(self._batch)):
            selected = slice(None)  # with a list of rows, numpy would make a temporary copy
            new._take_over(self._buffers)
        elif "cross_bias" in self._buffers:
            new._take_over(self._decoder_step.new_cross_buffers(len(from_rows), self.source))
        used_length = min(self._used_length(slice(None)), min(self.target, target) * self._beams)
        for name, buffer in self._buffers.items():
            if is_cache(name):
                new._buffers[name][:, :, :used_length] = buffer[selected, :, :used_length]
            elif name in STATE or (is_cross(name) and not isinstance(selected, slice)):
                new._buffers[name][:] = buffer[selected]
        new._clean = self._clean
        new._sentences = self._sentences[selected].copy()
        new._placed = self._placed
        return new


def is_cache(name: str) -> bool:
    """Return whether this buffer is a cache of self-attention, `[batch, heads, target, head_dim]`."""
    return name.startswith("self_")


def is_cross(name: str) -> bool:
    """Return whether this buffer belongs to cross-attention, that is, is an output of the encoder."""
    return name.startswith("cross_")


def zeros(tensors: Sequence[Tensor], sizes: dict[str, int]) -> Buffers:
    """Return buffers filled with 0, by name."""
    return {tensor.name: np.zeros(tensor.sizes(sizes), tensor.dtype) for tensor in tensors}


@contextmanager
def enough_memory(rows: int, length: int) -> Iterator[None]:
    """Turn a failed allocation into a `ResourceError`."""
    try:
        yield
    except (MemoryError, ValueError) as error:  # NumPy raises ValueError for sizes beyond the address space
        message = f"not enough memory for a batch of {rows} rows of {length} tokens: use a smaller batch"
        raise ResourceError(message) from error


def bind(to: Callable[..., None], name: str, array: Array) -> None:
    """Bind an array in host memory to an input or output, without a copy; `to` is a method of the binding."""
    to(name, "cpu", 0, array.dtype.type, list(array.shape), array.ctypes.data)
