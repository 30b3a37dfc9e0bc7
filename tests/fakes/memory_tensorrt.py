"""A fake of TensorRT for one model on a fake device, with engines, profiles and contexts by the rules of TensorRT.

Its methods have the names of the real ones; `test_trt.py` compares them. A profile belongs to one context at a time
unless its engine was built to share it, as with 8.6. Shapes must be within the profile. All tensors of an engine need a
shape and an address before a run. A run overwrites its memory for temporaries. It may compute everything twice, the
second time from its own results. A context also has internal memory, which the first run after a change of shapes sets
up: this run cannot be captured, and earlier captures cannot be replayed after it. A context with a running call keeps
its profile. Steps of 8.6 also write the scores of self-attention, as tx-build requests.
"""

import gc
import weakref
from types import SimpleNamespace
from typing import Any

from memory_device import POISON, HashProgram
from txport.runtime.bundle.manifest import Manifest
from txport.runtime.bundle.schema import Graph, Range
from txport.runtime.device.buffers import StepSizes
from txport.runtime.engines.build_record import BuildRecord, EngineFile
from txport.runtime.engines.tensorrt import TensorRt


class Context:
    """An `IExecutionContext`."""

    def __init__(self, engine: "Engine") -> None:
        self.engine = engine
        self.profile: int | None = None
        self.sizes: dict[str, int] = {}
        self.shaped: set[str] = set()
        self.addresses: dict[str, int] = {}
        self.scratch: tuple[int, int] | None = None
        self.nvtx_verbosity = "DETAILED"  # the setting of tx-build
        self.last: dict[str, int] = {}  # sizes of the run that was enqueued last
        self.set_up: dict[str, int] = {}  # sizes for which its own memory is set up, in the order of the stream
        self.under_way = 0  # number of running calls

    def set_optimization_profile_async(self, profile_index: int, stream_handle: int) -> bool:
        assert stream_handle == self.engine.library.model.device.stream
        if self.under_way:
            self.engine.library.messages.append("the profile was changed while a run is under way")
            return False
        if not self.engine.library.shares_profiles and self._is_taken(profile_index):
            self.engine.library.messages.append(f"Profile {profile_index} is in use by another execution context")
            return False
        self.profile = profile_index
        self.sizes, self.last = {}, {}
        self.shaped.clear()
        return 0 <= profile_index < len(self.engine.file.profiles)

    def _is_taken(self, profile_index: int) -> bool:
        gc.collect()  # slow if many modules are loaded
        return profile_index in [context.profile for context in self.engine.contexts if context is not self]

    def set_input_shape(self, name: str, shape: list[int]) -> bool:
        assert self.profile is not None, "a shape before the profile"
        profile = self.engine.file.profiles[self.profile]
        ranges = {"batch": profile.batch, "source": profile.source, "target": profile.target}
        if profile.beams is not None and profile.target is not None:
            slots = profile.beams * profile.target.max
            ranges = ranges | {"beam": Range(*[profile.beams] * 3), "slots": Range(*[slots] * 3)}
        for size, dim in zip(shape, self.engine.inputs[name].shape, strict=True):
            if isinstance(dim, int):
                if size != dim:
                    return False
                continue
            bound = ranges[dim]
            if bound is None or not bound.min <= size <= bound.max:
                return False
            self.sizes[dim] = size
        self.shaped.add(name)
        return True

    def set_tensor_address(self, name: str, memory: int) -> bool:
        self.addresses[name] = memory
        return name in self.engine.names and memory % 256 == 0

    def execute_async_v3(self, stream_handle: int) -> bool:
        model = self.engine.library.model
        assert stream_handle == model.device.stream
        assert self.shaped == self.engine.inputs.keys() and self.addresses.keys() == set(self.engine.names)
        assert self.scratch is not None, "a context without memory for its temporaries"
        assert self.nvtx_verbosity == "NONE", "names of layers cost time in every run"
        if not self._begin():
            return False
        if self.engine.file.role == "encoder":
            model.encode(self.addresses, self.sizes["batch"], self.sizes["source"])
            return not self.engine.library.fails
        beams = self.sizes.get("beam", 1)
        target = self.sizes["slots"] // beams if beams > 1 else self.sizes["target"]
        sizes = StepSizes(self.sizes["batch"], self.sizes["source"], target, True, beams)
        scores = [self.addresses[name] for name in self.engine.scores]
        scores_size = 4 * sizes.rows * sizes.target * self.engine.library.manifest.model.heads
        bound, alive, library = model.bind(self.addresses, sizes), weakref.ref(self), self.engine.library

        def work() -> None:
            assert alive() is not None, "the memory of a context that is gone"
            for _ in range(2 if library.twice else 1):
                model.step(bound, sizes)
            for address in scores:
                model.device.view(address, scores_size).fill(POISON)

        model.device.enqueue(work)
        return not self.engine.library.fails

    def _begin(self) -> bool:
        """Enqueue the setup of a run; return False if this run cannot be captured."""
        assert self.scratch is not None
        device, sizes = self.engine.library.model.device, dict(self.sizes)
        first, captured = sizes != self.last, device.capturing is not None
        if first and captured:
            self.engine.library.messages.append("operation not permitted when stream is capturing")
            return False
        memory, self.last = device.view(*self.scratch), sizes
        self.under_way += not captured
        alive = weakref.ref(self)  # captured work does not keep the context alive

        def work() -> None:
            context = alive()
            assert context is not None, "the memory of a context that is gone"
            context.under_way -= not captured
            context.set_up = sizes if first else context.set_up
            assert context.set_up == sizes, "a run was captured before the shapes changed"
            memory.fill(POISON)

        device.enqueue(work)
        return True


class Engine:
    """An `ICudaEngine`."""

    def __init__(self, library: "MemoryTensorRt", file: EngineFile, graph: Graph) -> None:
        self.library, self.file = library, file
        self.inputs = {tensor.name: tensor for tensor in graph.inputs}
        self.tensors = self.inputs | {tensor.name: tensor for tensor in graph.outputs}
        layers = range(library.manifest.model.decoder_layers)
        is_marked = file.role == "decoder_step" and not library.strongly_typed
        self.scores = [f"self_scores_{layer}" for layer in layers] if is_marked else []
        self.names = [*self.tensors, *self.scores]
        self.contexts: weakref.WeakSet[Context] = weakref.WeakSet()
        self.scratch = 1000 * max(profile.batch.max for profile in file.profiles)

    @property
    def num_io_tensors(self) -> int:
        return len(self.names)

    def get_tensor_name(self, index: int) -> str:
        return self.names[index]

    def get_tensor_dtype(self, name: str) -> str:
        dtype = "float32" if name in self.scores else self.tensors[name].dtype
        dtype = self.library.record.id_type if dtype == "int64" else dtype
        return "DataType." + {"float32": "FLOAT", "float16": "HALF"}.get(dtype, dtype.upper())

    def new(self, kind: type[Context]) -> Context | None:
        """Return a context. Without memory, log an error and return None."""
        if self.library.refuses_contexts:
            self.library.messages += self.library.refuses_contexts
            return None
        context = kind(self)
        self.contexts.add(context)
        return context


class Context86(Context):
    """A context of 8.6, whose memory is a write-only property."""

    def _set(self, memory: int) -> None:
        assert memory % 256 == 0
        self.scratch = memory, self.engine.scratch

    device_memory = property(fset=_set)


class Engine86(Engine):
    """An engine of 8.6."""

    @property
    def device_memory_size(self) -> int:
        return self.scratch

    def create_execution_context_without_device_memory(self) -> Context | None:
        return self.new(Context86)


class Context10(Context):
    """From 10.1 on."""

    def set_device_memory(self, memory: int, size: int) -> None:
        assert memory % 256 == 0 and size >= self.engine.scratch
        self.scratch = memory, size


class Engine10(Engine):
    """From 10.1 on."""

    @property
    def device_memory_size_v2(self) -> int:
        return self.scratch

    def create_execution_context(self, strategy: str) -> Context | None:
        assert strategy == "USER_MANAGED", "each context would allocate for the largest profile"
        return self.new(Context10)


class MemoryTensorRt:
    """A fake of `TensorRt` with the methods that `TrtProgram` needs; the contents of an engine file are its name.

    `fails` makes the next runs fail, `refuses_contexts` is logged instead of making contexts, `twice` computes twice.
    """

    is_rtx = False
    why, type_name, new_context = TensorRt.why, TensorRt.type_name, TensorRt.new_context
    scratch_bytes, numbers, strongly_typed = TensorRt.scratch_bytes, TensorRt.numbers, TensorRt.strongly_typed
    _context_without_memory = TensorRt._context_without_memory
    module = SimpleNamespace(
        ProfilingVerbosity=SimpleNamespace(NONE="NONE"),
        ExecutionContextAllocationStrategy=SimpleNamespace(USER_MANAGED="USER_MANAGED"),
    )

    def __init__(self, model: HashProgram, manifest: Manifest, record: BuildRecord, shares_profiles: bool) -> None:
        self.library, self.messages = record.library, list[str]()
        self.model, self.manifest, self.record = model, manifest, record
        self.shares_profiles = shares_profiles
        self.opened: list[Engine] = []
        self.fails = self.twice = False
        self.refuses_contexts: list[str] = []

    def open_engine(self, data: Any, version_compatible: bool) -> tuple[Any, Any]:
        name = bytes(data).decode()
        found = [file for file in self.record.engines if file.file == name]
        if not found:
            self.messages.append(f"Serialization assertion failed: {name}")
            return object(), None
        manifest, lowering = self.manifest, self.record.lowering
        graphs = {"encoder": manifest.encoder, "decoder_step": manifest.step(lowering)}
        graph = graphs.get(found[0].role) or manifest.optional_graph("decoder_beams")
        assert graph is not None
        self.opened.append((Engine10 if self.strongly_typed else Engine86)(self, found[0], graph))
        return object(), self.opened[-1]
