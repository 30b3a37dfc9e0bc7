"""TensorRT engines as a program of `txport.runtime.device.engine`.

Each set of buffers has an execution context with the profile of its bucket. The encoder runs with its real sizes,
outside of captured graphs. All contexts run on one stream and share one block of memory for temporaries. The block is
never moved, since captured graphs contain its address.

In general, TensorRT does not allow an output in the memory of an input (exceptions: `getAliasedInputTensor`). It may
compute a cheap value twice, and so read an input again after the output has been written. For caches the same memory is
safe: only the write into the cache reads the input, and a second write has the same result. Ids, positions and flags
would advance twice. So a step writes them to other memory, and a copy in the same graph moves them to the inputs of the
next step.

Steps of TensorRT 8.6 also write the scores of self-attention, as outputs that are not read. All contexts share the
memory for them: 4 bytes for each layer, row, head and position of the largest caches (1/64 of them in base, float16).
"""

import math
import mmap
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from txport.runtime.bundle.interface import OPTIONAL_OUTPUTS, STATE
from txport.runtime.bundle.manifest import Manifest
from txport.runtime.bundle.schema import Graph, Limits
from txport.runtime.device.buffers import ALIGNMENT, Block, StepSizes, state_block
from txport.runtime.device.capture import WHOLE_DEVICE
from txport.runtime.device.device import Buffer, Device
from txport.runtime.engines.build_record import SCORES, BuildRecord, EngineFile
from txport.runtime.engines.tensorrt import TensorRt
from txport.runtime.errors import BundleError, EngineError, ResourceError, TxportError, failure

# Bytes. A context allocates little memory itself. If it fails with less free memory than this, memory is the reason.
_LITTLE = 64 << 20


class TrtProgram:
    """The opened engines of one directory; see `txport.runtime.device.engine.Program`.

    Args:
        directory: directory of the engines.
        record: its build.json, which fits this machine (`txport.runtime.engines.directories`).
        manifest: manifest of the bundle.
        tensorrt: the library.
        device: owner of the memory and the stream.

    Raises:
        BundleError: an engine file was changed, cannot be opened, or has other tensors than the manifest specifies.
        EngineError: TensorRT failed.
        ResourceError: there is not enough memory.
    """

    always_logits = True  # TensorRT requires all outputs to be bound
    captures = True
    _alone = WHOLE_DEVICE  # a global may be gone when the interpreter ends

    def __init__(
        self, directory: Path, record: BuildRecord, manifest: Manifest, tensorrt: TensorRt, device: Device
    ) -> None:
        record.check_files(directory)  # takes seconds, so before the lock
        self._tensorrt = tensorrt
        self._device = device
        self.id_type: str = record.id_type
        encoder = manifest.encoder
        step = manifest.step(record.lowering)
        self.step_graph = step
        self._encoder_graph = encoder
        self._heads = manifest.model.heads
        self._runtimes: list[Any] = []  # must live as long as their engines
        beams = manifest.optional_graph("decoder_beams")
        if beams is None and record.beams:
            raise BundleError(f"{directory} has engines of a graph that the bundle lacks: run tx-build again")
        # The graph, and the engine and profile of each bucket, by the number of rows of a sentence.
        self._graphs = {1: step} | ({} if beams is None else dict.fromkeys(record.beams, beams))
        self._steps: dict[int, dict[tuple[int, int], tuple[Any, int]]] = {rows: {} for rows in self._graphs}
        with WHOLE_DEVICE:
            self._open_all(directory, record)
        self.limits = limits_of(record)
        self.captured = True
        self.name = f"{tensorrt.library}, lowering {record.lowering}, {directory.name}"

    def __del__(self) -> None:
        """Close the engines while no stream of the device is captured: the library may wait for the whole device."""
        with self._alone:
            for name in ("_encoders", "_steps", "_runtimes"):
                self.__dict__.pop(name, None)

    def _open_all(self, directory: Path, record: BuildRecord) -> None:
        for file in (*record.of_role("decoder_step"), *record.of_role("decoder_beams")):
            engine = self._open(directory, file, record.version_compatible, self._graphs[file.profiles[0].beams or 1])
            for index, (profile, bucket) in enumerate(zip(file.profiles, step_buckets(file), strict=True)):
                self._steps[profile.beams or 1][bucket] = engine, index
        (file,) = record.of_role("encoder")
        engine = self._open(directory, file, record.version_compatible, self._encoder_graph)
        self._allocate([engine, *(step for steps in self._steps.values() for step, _ in steps.values())])
        contexts = [(p.batch.max, self._context(engine, index)) for index, p in enumerate(file.profiles)]
        self._encoders = sorted(contexts, key=lambda each: each[0])

    def graph_of(self, beams: int) -> Graph | None:
        """Return the step for this number of rows per sentence, or None without engines for it."""
        return self._graphs.get(beams)

    def bucket(self, rows: int, target: int, beams: int = 1) -> tuple[int, int]:
        """Return the smallest profile with room for this number of rows and this cache length."""
        return smallest_bucket(self._steps[beams], rows, target)

    def prepare(self, addresses: Mapping[str, int], sizes: StepSizes) -> Callable[[], None]:
        """Bind the buffers of a step in a new context, and run it once."""
        context = self._context(*self._steps[sizes.beams][sizes.rows, sizes.target])
        if sizes.beams == 1:
            enqueue = self._bound_aside(context, addresses, sizes)
        else:  # of its inputs, it writes only the caches
            self._bind(context, self._graphs[sizes.beams], addresses, sizes.named)
            enqueue = partial(self._enqueue, context)
        enqueue()
        self._device.synchronize()
        return enqueue

    def _bound_aside(self, context: "_Context", addresses: Mapping[str, int], sizes: StepSizes) -> Callable[[], None]:
        """Return a step that writes its state to separate memory and copies it to the inputs of the next step."""
        block = state_block(sizes.rows, self.id_type)
        aside = {output: self._aside + block.offsets[name] for name, output in self.step_graph.aliases if name in STATE}
        state = Buffer(addresses[STATE[0]])
        size = block.offsets[STATE[-1]] + sizes.rows
        assert all(addresses[name] == state.address + block.offsets[name] for name in STATE)
        self._bind(context, self.step_graph, {**addresses, **aside}, sizes.named)

        def enqueue() -> None:
            self._enqueue(context)
            self._device.copy(state, Buffer(self._aside), size)

        return enqueue

    def encode(self, addresses: Mapping[str, int], batch: int, width: int) -> None:
        """Enqueue a run of the encoder."""
        context = next(context for max_rows, context in self._encoders if max_rows >= batch)
        self._bind(context, self._encoder_graph, addresses, {"batch": batch, "source": width})
        self._enqueue(context)

    def _allocate(self, engines: list[Any]) -> None:
        """Allocate the memory that all contexts share: for temporaries, the new state of a step, and scores."""
        self._scratch_bytes = max(self._tensorrt.scratch_bytes(engine) for engine in engines)
        max_rows = max(rows for rows, _ in self._steps[1])
        aligned_size = -(-self._scratch_bytes // ALIGNMENT) * ALIGNMENT
        state_size = state_block(max_rows, self.id_type).size
        names = sorted({name for engine in engines for name in _names(engine) if name.startswith(SCORES)})
        numbers = self._heads * max(map(math.prod, self._steps[1]))  # of rows and cache length
        scores = Block({name: ("float32", (numbers,)) for name in names})  # float16 needs half of it
        try:
            self._scratch = self._device.allocate(aligned_size + state_size + scores.size)
        except ResourceError as error:
            raise ResourceError(
                f"{error} for the engines' temporaries: run tx-build again with a smaller --max-batch"
            ) from error
        self._aside = self._scratch + aligned_size
        self._scores = {name: self._aside + state_size + offset for name, offset in scores.offsets.items()}

    def _open(self, directory: Path, file: EngineFile, version_compatible: bool, graph: Graph) -> Any:
        path = directory / file.file
        with path.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data:
            self._tensorrt.messages.clear()
            runtime, engine = self._tensorrt.open_engine(data, version_compatible)
        if engine is None:
            raise failure(f"{self._tensorrt.library} does not open {path}: {self._tensorrt.why()}", BundleError)
        self._runtimes.append(runtime)
        self._check_tensors(path, engine, graph)
        return engine

    def _check_tensors(self, path: Path, engine: Any, graph: Graph) -> None:
        """Check that an engine has exactly the tensors of the graph and scores: other outputs cannot be bound."""
        types = {"int64": self.id_type}
        expected = {tensor.name: types.get(tensor.dtype, tensor.dtype) for tensor in (*graph.inputs, *graph.outputs)}
        names = [name for name in _names(engine) if not name.startswith(SCORES)]
        actual = {name: self._tensorrt.type_name(engine.get_tensor_dtype(name)) for name in names}
        outputs = {tensor.name for tensor in graph.outputs if not tensor.optional or tensor.name in OPTIONAL_OUTPUTS}
        inputs = {tensor.name for tensor in graph.inputs}
        if not (actual.items() <= expected.items() and outputs <= actual.keys() <= outputs | inputs):
            raise BundleError(f"{path} has other inputs or outputs than the manifest: run tx-build again")

    def _context(self, engine: Any, profile: int) -> "_Context":
        self._tensorrt.messages.clear()
        context = self._tensorrt.new_context(engine, self._scratch, self._scratch_bytes)
        if context is None or not context.set_optimization_profile_async(profile, self._device.stream):
            fault = self._failure("makes no execution context")
            if (free := self._device.free_memory()) < _LITTLE:
                raise ResourceError(f"{fault}; {free / 1e6:.0f} MB of the GPU's memory are free")
            raise fault
        self._device.synchronize()
        return _Context(context)

    def _failure(self, what: str) -> TxportError:
        return failure(f"{self._tensorrt.library} {what}: {self._tensorrt.why()}")

    def _bind(self, context: "_Context", graph: Graph, addresses: Mapping[str, int], shape: Mapping[str, int]) -> None:
        names = _names(context.library.engine)
        for tensor in (tensor for tensor in graph.inputs if tensor.name in names):
            sizes = tensor.sizes(shape)
            if not context.library.set_input_shape(tensor.name, sizes):
                raise EngineError(f"{self._tensorrt.library} refuses the shape {sizes} of {tensor.name}")
        bound = {**addresses, **self._scores}
        for name in names:
            if not context.library.set_tensor_address(name, bound[name]):
                raise EngineError(f"{self._tensorrt.library} refuses the address of {name}")

    def _enqueue(self, context: "_Context") -> None:
        if not context.library.execute_async_v3(self._device.stream):
            raise self._failure("failed")


class _Context:
    """A context of the library. It is closed while no stream of the device is captured."""

    _alone = WHOLE_DEVICE

    def __init__(self, context: Any) -> None:
        self.library = context

    def __del__(self) -> None:
        with self._alone:
            del self.library


def _names(engine: Any) -> set[str]:
    """Return the names of inputs and outputs of an engine. The library may remove unused inputs."""
    return {engine.get_tensor_name(index) for index in range(engine.num_io_tensors)}


def step_buckets(file: EngineFile) -> list[tuple[int, int]]:
    """Return (rows, cache length) of each profile of a decoder step, in order."""
    return [(profile.batch.max, profile.target.max) for profile in file.profiles if profile.target is not None]


def smallest_bucket(buckets: Mapping[tuple[int, int], Any], rows: int, target: int) -> tuple[int, int]:
    """Return the bucket with room for these rows and this cache length: the fewest rows, then the shortest cache.

    Raises:
        BundleError: no bucket has room.
    """
    suitable = [bucket for bucket in buckets if bucket[0] >= rows and bucket[1] >= target]
    if not suitable:
        available = ", ".join(f"{batch} rows of {length}" for batch, length in sorted(buckets))
        raise BundleError(
            f"the engines have no profile for {rows} rows of {target} target tokens, only for {available}: "
            "run tx-build again with larger --batch-buckets and --target-buckets"
        )
    return min(suitable)


def limits_of(record: BuildRecord) -> Limits:
    """Return the maximum sizes that all engines of a directory support."""
    steps = [profile for file in record.of_role("decoder_step") for profile in file.profiles]
    encoders = [profile for file in record.of_role("encoder") for profile in file.profiles]
    batch = min(max(profile.batch.max for profile in each) for each in (steps, encoders))
    source = min(profile.source.max for profile in (*steps, *encoders))
    return Limits(batch, source, max(profile.target.max for profile in steps if profile.target is not None))
