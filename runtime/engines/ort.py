"""The engine on ONNX Runtime's CPU provider; `txport.runtime.engines.ort_cuda` runs the CUDA provider.

A state binds every buffer of its step once, by raw pointer; caches and ids are input and output in one buffer. A step
is then one call, for which txport allocates nothing. Both sessions map the bundle's one weights file into memory.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime
from txport.runtime.bundle.interface import CROSS_IDS, MASKED, cross_names
from txport.runtime.bundle.manifest import Manifest
from txport.runtime.bundle.schema import Lowering, Tensor
from txport.runtime.engine import FIRST_TARGET, Float32, Float64, Int64, StepOutput, Top, log_probabilities, top_of
from txport.runtime.engines.ort_session import CPU, open_session, open_step, run
from txport.runtime.errors import ResourceError

Array = npt.NDArray[Any]
Buffers = dict[str, Array]


class OrtEngine:
    """A bundle on ONNX Runtime.

    Args:
        directory: the bundle.
        manifest: its manifest, already checked.
        lowerings: the decoder steps to try; the first that the installed version loads is used. None for all of the
            bundle.
        threads: threads of each operator; 0 for as many as there are cores.

    Raises:
        BundleError: ONNX Runtime does not load a graph.
        ResourceError: there is not enough memory.
    """

    poll = 1  # reading the ids costs nothing here
    ragged = False

    def __init__(
        self,
        directory: Path,
        manifest: Manifest,
        lowerings: Sequence[Lowering] | None = None,
        threads: int = 0,
    ) -> None:
        self.limits = manifest.limits
        self.tokens = manifest.tokens
        self.vocabulary = manifest.model.target_vocabulary
        self.manifest = manifest
        names = {"cross_bias", CROSS_IDS, *cross_names(manifest.model.decoder_layers)}
        self._cross = [tensor for tensor in manifest.encoder.outputs if tensor.name in names]
        session_of = partial(open_session, directory, threads=threads, providers=[CPU])
        self._encoder = session_of(manifest.encoder)
        self.step_graph, self.step_session = open_step(manifest, lowerings or manifest.lowerings, session_of)
        self.name = f"ONNX Runtime {onnxruntime.__version__} on cpu, lowering {self.step_graph.lowering}"

    def encode(self, input_ids: Int64, source_lengths: Int64) -> Buffers:
        """Run the encoder on int64 `[batch, source]` ids, padded with pad, of int64 `[batch]` lengths.

        Returns:
            its outputs by name: cross-attention keys, values and bias, and the source's ids for a model that copies.

        Raises:
            ResourceError: there is not enough memory.
            EngineError: ONNX Runtime failed.
        """
        batch, source = input_ids.shape
        inputs = {"input_ids": np.ascontiguousarray(input_ids), "source_lengths": np.ascontiguousarray(source_lengths)}
        with _enough_memory(batch, source):
            outputs = _zeros(self._cross, {"batch": batch, "source": source})
        binding = self._encoder.io_binding()
        for name, array in inputs.items():
            _bind(binding.bind_input, name, array)
        for name, array in outputs.items():
            _bind(binding.bind_output, name, array)
        run(self._encoder, binding)
        return outputs

    def first_target(self, source: int) -> int:
        """Length of the first caches; see `txport.runtime.engine.Engine.first_target`.

        The lowering `ort` reads only the used part of a cache. Longer caches cost it only memory, and where they are as
        long as the sources, they rarely have to grow.
        """
        target = FIRST_TARGET
        while self.step_graph.lowering == "ort" and target <= source:
            target *= 2
        return target

    def allocate(self, rows: int, source: int, target: int, *, logits: bool = False, top: int = 0) -> "OrtState":
        """Buffers for `rows` sentences of up to `source` tokens that make up to `target` tokens, all rows finished.

        Those of cross-attention are allocated with the first sentences.

        Raises:
            ResourceError: there is not enough memory for them.
        """
        own = [tensor for tensor in self.step_graph.inputs if not is_cross(tensor.name)]
        with _enough_memory(rows, target):
            buffers = _zeros(own, {"batch": rows, "source": source, "target": target})
            if logits or top:
                vocabulary = self.manifest.model.target_vocabulary
                buffers["logits"] = np.zeros((rows, vocabulary), self.manifest.precision.type)
        buffers["finished"].fill(True)
        buffers["target_limits"].fill(1)
        if "cache_positions" in buffers:
            buffers["cache_positions"][:] = np.arange(target)
        return OrtState(self, buffers, (rows, source, target))

    def allocate_cross(self, rows: int, source: int) -> Buffers:
        """Cross keys, values, bias and ids for `rows` sentences of up to `source` tokens, all 0."""
        cross = [tensor for tensor in self.step_graph.inputs if is_cross(tensor.name)]
        with _enough_memory(rows, source):
            return _zeros(cross, {"batch": rows, "source": source})


class OrtState:
    """The buffers of one running batch, in host memory; see `txport.runtime.engine.DecoderState`."""

    def __init__(self, engine: OrtEngine, buffers: Buffers, sizes: tuple[int, int, int]) -> None:
        self.rows, self.source, self.target = sizes
        self._engine, self._buffers = engine, buffers
        self._token_ids, self._positions = buffers["token_ids"], buffers["positions"]
        self._finished = buffers["finished"]
        self._clean = True  # nothing was written into the caches yet
        # Which sentence each row has, counted as they are placed: rows of one need no copies of its cross-attention.
        self._sentences = np.zeros(self.rows, np.int64)
        self._placed = 0
        self._made: list[Int64] = []
        graph, self._session = engine.step_graph, engine.step_session
        self.binding = self._session.io_binding()
        for tensor in graph.inputs:
            if tensor.name in buffers:
                _bind(self.binding.bind_input, tensor.name, buffers[tensor.name])
        for name, output in graph.aliases:
            _bind(self.binding.bind_output, output, buffers[name])
        if "logits" in buffers:
            _bind(self.binding.bind_output, "logits", buffers["logits"])

    def place(
        self, rows: Sequence[int], memory: Buffers, memory_rows: Sequence[int], target_limits: Sequence[int]
    ) -> None:
        """Start new sentences: row `rows[i]` gets encoder output `memory_rows[i]`, bos at position 0, not finished.

        What earlier sentences left in a row is zeroed: it is masked, but a NaN would come through the mask.
        """
        here = list(rows)
        self._sentences[here] = np.arange(len(here)) + self._placed + 1
        self._placed += len(here)
        if not self._clean:
            self._clear(here)
        fits = memory["cross_bias"].shape == (self.rows, 1, 1, self.source)
        if fits and here == list(memory_rows) == list(range(self.rows)):
            self._take_over(memory)
        else:
            self._copy(here, memory, memory_rows)
        self._token_ids[here], self._positions[here] = self._engine.tokens.bos, 0
        self._finished[here], self._buffers["target_limits"][here] = False, target_limits

    def _clear(self, rows: list[int]) -> None:
        for row in rows:
            used = self._positions[row] + 1
            for name in filter(is_cache, self._buffers):
                self._buffers[name][row, :, :used] = 0

    def _take_over(self, cross: Buffers) -> None:
        for name in filter(is_cross, cross):
            self._buffers[name] = cross[name]
            _bind(self.binding.bind_input, name, cross[name])

    def _copy(self, rows: list[int], memory: Buffers, memory_rows: Sequence[int]) -> None:
        if "cross_bias" not in self._buffers:
            self._take_over(self._engine.allocate_cross(self.rows, self.source))
        width = memory["cross_bias"].shape[-1]
        for row, memory_row in zip(rows, memory_rows, strict=True):
            for name in memory:
                buffer, value = self._buffers[name][row], memory[name][memory_row]
                if name == "cross_bias":
                    buffer[..., :width], buffer[..., width:] = value, MASKED
                else:
                    buffer[:, :width], buffer[:, width:] = value, 0

    def step(self, count: int = 1) -> None:
        """Advance every unfinished row by up to `count` tokens."""
        self._clean = False
        for _ in range(count):
            run(self._session, self.binding)
            self._made.append(self._token_ids.copy())

    def read(self) -> StepOutput:
        """The tokens of the steps since the last `read`."""
        made, self._made = np.stack(self._made) if len(self._made) > 1 else self._made[0][None], []
        return StepOutput(made, self._finished.copy())

    def override(self, rows: Sequence[int], token_ids: Sequence[int], finished: Sequence[bool]) -> None:
        """Replace the last token that was made for these rows and their flag; see `DecoderState.override`."""
        here, flags = list(rows), np.array(finished, bool)
        self._positions[here] += self._finished[here].astype(np.int64) - flags
        self._token_ids[here], self._finished[here] = token_ids, flags

    def logits(self) -> Float32:
        """float32 `[rows, target_vocabulary]` of the last step."""
        return self._buffers["logits"].astype(np.float32, copy=False)

    def log_probabilities(self, rows: Sequence[int], token_ids: Sequence[int]) -> Float64:
        """Log-probabilities by the last step; see `DecoderState.log_probabilities`."""
        return log_probabilities(self.logits()[list(rows)], token_ids)

    def top(self, k: int) -> Top:
        """The best tokens by the last step; see `DecoderState.top`."""
        return top_of(self.logits(), k)

    def reorder(self, rows: Sequence[int]) -> None:
        """Row i continues what row `rows[i]` was; see `DecoderState.reorder`."""
        self._gather(list(rows))

    def moved(self, rows: Sequence[int], target: int) -> "OrtState":
        """A new state of these rows, as often as each is named; see `DecoderState.moved`."""
        here = list(rows)
        if here == list(range(self.rows)):
            return self if target == self.target else self._copied(here, target)
        if len(here) > self.rows:
            return self._copied(here, target)
        state = self._in_front(here)
        return state if target == self.target else state._copied(list(range(state.rows)), target)

    def _in_front(self, here: list[int]) -> "OrtState":
        """These rows, no more than there are, moved to the front of the same buffers: nothing is allocated."""
        self._gather(here)
        count = len(here)
        front = {name: buffer[:count] for name, buffer in self._buffers.items() if name != "cache_positions"}
        if "cache_positions" in self._buffers:
            front["cache_positions"] = self._buffers["cache_positions"]
        new = OrtState(self._engine, front, (count, self.source, self.target))
        new._clean = self._clean
        new._sentences, new._placed = self._sentences[:count].copy(), self._placed
        return new

    def _gather(self, here: list[int]) -> None:
        """Copy these rows to the first rows of the same buffers.

        What an earlier sentence left behind the end of the one that moves in is overwritten, too: see `place`.
        """
        to = [index for index, row in enumerate(here) if index != row]
        of = [here[index] for index in to]
        if not to:
            return
        used = int(self._positions[[*to, *of]].max()) + 1
        others = [pair for pair in zip(to, of, strict=True) if self._sentences[pair[0]] != self._sentences[pair[1]]]
        cross_to, cross_of = map(list, zip(*others, strict=True)) if others else ([], [])
        for name, buffer in self._buffers.items():
            if is_cache(name):
                buffer[to, :, :used] = buffer[of, :, :used]
            elif is_cross(name):
                buffer[cross_to] = buffer[cross_of]
            elif name not in ("cache_positions", "logits"):
                buffer[to] = buffer[of]
        self._sentences[to] = self._sentences[of]

    def _copied(self, here: list[int], target: int) -> "OrtState":
        """These rows in new buffers; cross-attention stays where it is if they are all rows in order."""
        new = self._engine.allocate(len(here), self.source, target, logits="logits" in self._buffers)
        of: slice | list[int] = here
        if here == list(range(self.rows)):
            of = slice(None)  # numpy would first gather listed rows in a copy
            new._take_over(self._buffers)
        elif "cross_bias" in self._buffers:
            new._take_over(self._engine.allocate_cross(len(here), self.source))
        used = min(int(self._positions.max()) + 1, self.target, target)
        for name, buffer in self._buffers.items():
            if is_cache(name):
                new._buffers[name][:, :, :used] = buffer[of, :, :used]
            elif name not in ("cache_positions", "logits") and not (is_cross(name) and isinstance(of, slice)):
                new._buffers[name][:] = buffer[of]
        new._clean = self._clean
        new._sentences, new._placed = self._sentences[of].copy(), self._placed
        return new


def is_cache(name: str) -> bool:
    """Whether this buffer is of self-attention: `[batch, heads, target, head_dim]`."""
    return name.startswith("self_")


def is_cross(name: str) -> bool:
    """Whether this buffer is of cross-attention: an output of the encoder."""
    return name.startswith("cross_")


def _zeros(tensors: Sequence[Tensor], sizes: dict[str, int]) -> Buffers:
    """Buffers by name."""
    return {tensor.name: np.zeros(tensor.sizes(sizes), tensor.dtype) for tensor in tensors}


@contextmanager
def _enough_memory(rows: int, length: int) -> Iterator[None]:
    """Turns a failed allocation into a `ResourceError`."""
    try:
        yield
    except (MemoryError, ValueError) as error:  # ValueError: NumPy's, for more than can be addressed
        message = f"not enough memory for a batch of {rows} rows of {length} tokens: use a smaller batch"
        raise ResourceError(message) from error


def _bind(bind: Callable[..., None], name: str, array: Array) -> None:
    bind(name, "cpu", 0, array.dtype.type, list(array.shape), array.ctypes.data)
