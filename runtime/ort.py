"""The engine on ONNX Runtime, by its CPU provider or its CUDA provider.

A state binds every buffer of its step once, by raw pointer, caches and ids in = out: a step is then one call that
allocates nothing of ours. Both sessions map the bundle's one weights file into memory. The buffers are the host's: with
the CUDA provider ONNX Runtime would copy them to the device and back at each step; `txport.runtime.ort_cuda` keeps them
there.
"""

import math
import mmap
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime
from txport.runtime.engine import Float32, Int64, StepOutput
from txport.runtime.errors import InputError
from txport.runtime.manifest import WEIGHTS, Lowering, Manifest, Tensor
from txport.runtime.mapped import release
from txport.runtime.ort_session import open_session, open_step, providers_of, run

Array = npt.NDArray[Any]
Buffers = dict[str, Array]

# Bytes that each buffer begins at a multiple of: a line of the processor's cache.
ALIGNED = 64
# Bytes from which a buffer is taken from the system directly.
LARGE = 4 << 20
# Added to the attention scores of padding: far below any score, yet finite in float16.
MASKED = -30000.0


class OrtEngine:
    """A bundle on ONNX Runtime.

    Args:
        directory: the bundle.
        manifest: its manifest, already checked.
        lowering: the decoder step to use; None for the best that the installed version loads.
        threads: threads of each operator; 0 for as many as there are cores.
        device: "cpu" or "cuda".

    Raises:
        BundleError: the bundle has not got that lowering, or ONNX Runtime does not load it.
        InputError: this ONNX Runtime, or this machine, cannot run on that device.
    """

    poll = 1  # looking at the ids costs nothing here

    def __init__(
        self,
        directory: Path,
        manifest: Manifest,
        lowering: Lowering | None = None,
        threads: int = 0,
        device: str = "cpu",
    ) -> None:
        self.limits, self.tokens, self.manifest = manifest.limits, manifest.tokens, manifest
        encoder = manifest.graph("encoder")
        assert encoder is not None  # the manifest's rules say so
        self._encoder_graph = encoder
        session_of = partial(open_session, directory, threads=threads, providers=providers_of(device))
        self._encoder = session_of(encoder)
        self.step_graph, self.step_session = open_step(manifest, lowering, session_of)
        release(directory / WEIGHTS)
        self.name = f"ONNX Runtime {onnxruntime.__version__} on {device}, lowering {self.step_graph.lowering}"

    def encode(self, input_ids: Int64, source_lengths: Int64) -> Buffers:
        """Run the encoder on int64 `[batch, source]` ids, padded with pad, of int64 `[batch]` lengths.

        Returns:
            Its outputs by name: cross-attention keys, values and bias.
        """
        batch, source = input_ids.shape
        inputs = {"input_ids": np.ascontiguousarray(input_ids), "source_lengths": np.ascontiguousarray(source_lengths)}
        with _enough_memory(batch, source):
            outputs = _zeros(self._encoder_graph.outputs, {"batch": batch, "source": source})
        binding = self._encoder.io_binding()
        for name, array in inputs.items():
            _bind(binding.bind_input, name, array)
        for name, array in outputs.items():
            _bind(binding.bind_output, name, array)
        run(self._encoder, binding)
        return outputs

    def allocate(self, rows: int, source: int, target: int, *, logits: bool = False) -> "OrtState":
        """Buffers for `rows` sentences of up to `source` tokens that make up to `target` tokens, all rows finished.

        Raises:
            InputError: there is not enough memory for them.
        """
        sizes = self.manifest.model
        with _enough_memory(rows, target):
            buffers = _zeros(self.step_graph.inputs, {"batch": rows, "source": source, "target": target})
            if logits:
                buffers["logits"] = np.zeros((rows, sizes.target_vocabulary), self.manifest.precision.type)
        buffers["finished"][:], buffers["target_limits"][:] = True, 1
        if "cache_positions" in buffers:
            buffers["cache_positions"][:] = np.arange(target)
        return OrtState(self, buffers, (rows, source, target))


class OrtState:
    """The buffers of one running batch, in host memory; see `txport.runtime.engine.DecoderState`."""

    def __init__(self, engine: OrtEngine, buffers: Buffers, sizes: tuple[int, int, int]) -> None:
        self.rows, self.source, self.target = sizes
        self._engine, self._buffers = engine, buffers
        self._token_ids, self._positions = buffers["token_ids"], buffers["positions"]
        self._finished = buffers["finished"]
        self._caches = [name for name in buffers if name.startswith("self_")]
        self._cross = [name for name in buffers if name.startswith("cross_")]
        self._clean = True  # nothing was written into the caches yet
        self._made: list[Int64] = []
        graph, self._session = engine.step_graph, engine.step_session
        self.binding = self._session.io_binding()
        for tensor in graph.inputs:
            _bind(self.binding.bind_input, tensor.name, buffers[tensor.name])
        for name, output in graph.aliases:
            _bind(self.binding.bind_output, output, buffers[name])
        if "logits" in buffers:
            _bind(self.binding.bind_output, "logits", buffers["logits"])

    def place(
        self, rows: Sequence[int], memory: Buffers, memory_rows: Sequence[int], target_limits: Sequence[int]
    ) -> None:
        """Start new sentences: row `rows[i]` gets encoder output `memory_rows[i]`, bos at position 0, not finished.

        What earlier sentences left in a row is cleared: it is masked, but a NaN would come through the mask.
        """
        here = list(rows)
        if not self._clean:
            self._clear(here)
        if here == list(memory_rows) == list(range(self.rows)) and _same_shapes(self._buffers, memory):
            self._take_over(memory)
        else:
            self._copy(here, memory, memory_rows)
        self._token_ids[here], self._positions[here] = self._engine.tokens.bos, 0
        self._finished[here], self._buffers["target_limits"][here] = False, target_limits

    def _clear(self, rows: list[int]) -> None:
        for row in rows:
            used = self._positions[row] + 1
            for name in self._caches:
                self._buffers[name][row, :, :used] = 0

    def _take_over(self, memory: Buffers) -> None:
        for name in self._cross:
            self._buffers[name] = memory[name]
            _bind(self.binding.bind_input, name, memory[name])

    def _copy(self, rows: list[int], memory: Buffers, memory_rows: Sequence[int]) -> None:
        width = memory["cross_bias"].shape[-1]
        for row, memory_row in zip(rows, memory_rows, strict=True):
            for name in self._cross:
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
        """What the steps since the last `read` made."""
        made, self._made = np.stack(self._made) if len(self._made) > 1 else self._made[0][None], []
        return StepOutput(made, self._finished.copy())

    def override(self, rows: Sequence[int], token_ids: Sequence[int], finished: Sequence[bool]) -> None:
        """Replace the last token that was made for these rows and their flag; see `DecoderState.override`."""
        here, flags = list(rows), np.array(finished, bool)
        self._positions[here] += self._finished[here] & ~flags
        self._token_ids[here], self._finished[here] = token_ids, flags

    def logits(self) -> Float32:
        """float32 `[rows, target_vocabulary]` of the last step."""
        return self._buffers["logits"].astype(np.float32, copy=False)

    def moved(self, rows: Sequence[int], target: int) -> "OrtState":
        """A new state of these rows alone, in this order, with caches of `target` tokens; this one is then invalid."""
        here = list(rows)
        new = self._engine.allocate(len(here), self.source, target, logits="logits" in self._buffers)
        used = min(int(self._positions[here].max()) + 1, self.target, target)
        all_stay = here == list(range(self.rows))
        if all_stay:
            new._take_over(self._buffers)
        for name, buffer in new._buffers.items():
            old = self._buffers[name]
            if name in self._caches and all_stay:
                buffer[:, :, :used] = old[:, :, :used]
            elif name in self._caches:
                for row, before in enumerate(here):
                    buffer[row, :, :used] = old[before, :, :used]
            elif name not in ("cache_positions", "logits") and not (all_stay and name in self._cross):
                np.take(old, here, axis=0, out=buffer, mode="clip")  # by "raise", the default, it would copy twice
        new._clean = self._clean
        return new


def _zeros(tensors: Sequence[Tensor], sizes: dict[str, int]) -> Buffers:
    """Zeroed buffers by name, in one piece. Unused cache costs no memory: a page is given when it is first written."""
    shapes = {tensor.name: [sizes[d] if isinstance(d, str) else d for d in tensor.shape] for tensor in tensors}
    dtypes = {tensor.name: np.dtype(tensor.dtype) for tensor in tensors}
    lengths = {name: math.prod(shape) * dtypes[name].itemsize for name, shape in shapes.items()}
    ends = dict(zip(lengths, accumulate(-(-length // ALIGNED) * ALIGNED for length in lengths.values()), strict=True))
    piece = _zeroed(max(ends.values()))
    found = {}
    for name, length in lengths.items():
        start = ends[name] - -(-length // ALIGNED) * ALIGNED
        found[name] = piece[start : start + length].view(dtypes[name]).reshape(shapes[name])
    return found


def _zeroed(size: int) -> Array:
    """uint8 `[size]`, all zero; from the system if it is large, and then in large pages where it has them.

    numpy's zeros would write the zeros of what the process has freed before, and small pages, each given at its first
    write, took longer than a step.
    """
    if size < LARGE or not hasattr(mmap, "MADV_HUGEPAGE"):
        return np.zeros(size, np.uint8)
    try:
        piece = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except (OSError, OverflowError) as error:  # more than there is, or than addresses go
        raise MemoryError(str(error)) from error
    with suppress(OSError):  # a system may be built without them
        piece.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(piece, np.uint8)


def _same_shapes(buffers: Buffers, memory: Buffers) -> bool:
    return all(buffers[name].shape == value.shape for name, value in memory.items())


class _enough_memory:
    """Turns a failed allocation into a sentence."""

    def __init__(self, rows: int, length: int) -> None:
        self._what = f"a batch of {rows} rows of {length} tokens"

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: object) -> None:
        if isinstance(error, MemoryError):
            raise InputError(f"not enough memory for {self._what}: use a smaller batch") from error


def _bind(bind: Callable[..., None], name: str, array: Array) -> None:
    bind(name, "cpu", 0, array.dtype.type, list(array.shape), array.ctypes.data)
