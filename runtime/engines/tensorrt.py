"""All differences between the supported generations of TensorRT.

These are 8.6 (weakly typed, 32-bit ids), 10 and 11 (strongly typed, 64-bit ids), and TensorRT-RTX (like 11, but it
builds for named compute capabilities without a GPU). Decisions depend only on the version and on existing names.
"""

import functools
import importlib
import logging
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from txport.runtime.engines.build_record import IdType, LibraryName, LibraryVersion
from txport.runtime.errors import EngineError, InputError, MissingLibrary, is_out_of_memory

_MODULES: dict[LibraryName, tuple[str, ...]] = {
    "tensorrt": ("tensorrt",),
    "tensorrt_rtx": ("tensorrt_rtx", "tensorrt_rtx_bindings"),
}
_OLDEST = (8, 6)
# The first version with the layers KVCacheUpdate and Attention.
_CACHE_LAYERS = (10, 15)
_LEVELS = {"INTERNAL_ERROR": logging.ERROR, "ERROR": logging.ERROR, "WARNING": logging.INFO}

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class TensorRt:
    """An imported TensorRT module and its features."""

    module: Any
    library: LibraryVersion
    messages: list[str]  # errors that the library has logged, in order
    logger: Any

    @property
    def numbers(self) -> tuple[int, ...]:
        """The version as numbers."""
        return tuple(int(number) for number in re.findall(r"\d+", self.library.version))

    @property
    def is_rtx(self) -> bool:
        """True for TensorRT-RTX, which builds for named compute capabilities."""
        return self.library.name == "tensorrt_rtx"

    @property
    def strongly_typed(self) -> bool:
        """True if the types in the graph alone determine the precision of each layer."""
        return self.is_rtx or self.numbers >= (10,)

    @property
    def id_type(self) -> IdType:
        """Type of the engine's tensors for int64 inputs and outputs of the graph."""
        if self.strongly_typed:
            return "int64"
        return "int32"

    @property
    def lowering(self) -> Literal["scatter", "tensorscatter"]:
        """The fastest decoder step for this version."""
        if self.has_cache_layers:
            return "tensorscatter"
        return "scatter"

    @property
    def has_cache_layers(self) -> bool:
        """True if it can write into a cache of fixed length in place, which beam search needs."""
        return self.is_rtx or self.numbers >= _CACHE_LAYERS

    @property
    def has_timing_cache(self) -> bool:
        """True except for TensorRT-RTX, which measures no kernels at the build: it compiles them at the first run."""
        return not self.is_rtx

    @property
    def selects_caches(self) -> bool:
        """True if `Where` writes caches faster than ScatterElements. TensorRT-RTX 1.7 crashed with `Where`."""
        return not self.is_rtx

    @property
    def fuses_scores_wrongly(self) -> bool:
        """True if attention with one query may be wrong unless its scores are outputs (8.6.0; unknown up to 9)."""
        return not self.strongly_typed

    def why(self) -> str:
        """Return the first error that the library logged since `messages` was cleared, as one line.

        Later errors are often consequences of the first one, but exhausted memory may be reported in any of them.
        """
        first = next(filter(is_out_of_memory, self.messages), self.messages[0] if self.messages else None)
        if first is None:
            return "no reason given"
        return " ".join(first.split())[:400].rstrip(".")

    def new_builder(self) -> Any:
        """Return a builder.

        Raises:
            EngineError: the library cannot use this GPU or its driver.
        """
        self.messages.clear()
        return self._create("cannot build engines", self.module.Builder, self.logger)

    def new_parser(self, network: Any) -> Any:
        """Return a parser of ONNX files into a network.

        Raises:
            EngineError: the library is installed without its parser.
        """
        return self._create("cannot read ONNX files", self.module.OnnxParser, network, self.logger)

    def _create(self, fault: str, make: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return make(*arguments)
        except TypeError as error:  # the bindings raise this if the library returns a null pointer
            raise EngineError(f"{self.library} {fault} here: {self.why()}") from error

    def new_network(self, builder: Any) -> Any:
        """Return an empty network of the kind that this version builds."""
        flags = self.module.NetworkDefinitionCreationFlag
        if self.strongly_typed:
            name = "STRONGLY_TYPED"
        else:
            name = "EXPLICIT_BATCH"
        # From version 11 on, all networks are strongly typed, and a later version may remove the flag.
        return builder.create_network(1 << int(getattr(flags, name)) if hasattr(flags, name) else 0)

    def set_precision(self, config: Any, network: Any, half: bool) -> None:
        """Set the precision of the graph if the library would choose one otherwise. Never use TF32 instead of FP32.

        In a weakly typed network, layers that must stay in float32 are found by the types of tensors, not by names: the
        parser of 8.6 does not name Normalization layers and the bias of a Gemm after their node (onnx-tensorrt 8.6-EA,
        builtin_op_importers.cpp).
        """
        flags = self.module.BuilderFlag
        config.clear_flag(flags.TF32)
        if self.strongly_typed:
            return
        # No tactic sources is the default of version 10. Engines then need neither cuBLAS nor cuDNN.
        config.set_tactic_sources(0)
        if not half:
            return
        config.set_flag(flags.FP16)
        config.set_flag(flags.PREFER_PRECISION_CONSTRAINTS)
        self._keep_float32(network)

    def _keep_float32(self, network: Any) -> None:
        """Compute and store float32 values of the graph in float32.

        Output types are set too: otherwise the library might convert a value between two float32 layers to float16,
        where it may overflow. Before the build, a weakly typed network reports float32 for all values. The real types
        follow from inputs, outputs, weights and casts, since all floating inputs of a layer have one type. Layers are
        listed in the order of their creation, so their inputs are known, except for the outputs of caches.

        Weights that are only reshaped get no type: 8.6 normalises in float32, converts the result to float16, and then
        fails to multiply it by weights that must be float32.
        """
        inputs = map(network.get_input, range(network.num_inputs))
        outputs = map(network.get_output, range(network.num_outputs))
        types = {tensor.name: self.type_name(tensor.dtype) for tensor in (*inputs, *outputs)}
        weights = set[str]()
        for layer in map(network.get_layer, range(network.num_layers)):
            kind = str(layer.type).rpartition(".")[2]
            read = [tensor.name for tensor in map(layer.get_input, range(layer.num_inputs)) if tensor is not None]
            half = self._is_half(layer, kind, {types.get(name) for name in read})
            of_weights = weights.issuperset(read)  # also for the weights themselves, which have no inputs
            for index, tensor in enumerate(map(layer.get_output, range(layer.num_outputs))):
                type_name = self.type_name(tensor.dtype)
                types[tensor.name] = "float16" if half and type_name == "float32" else type_name
                if of_weights:
                    weights.add(tensor.name)
                elif types[tensor.name] == "float32" and kind != "CAST":  # the type of a cast is explicit
                    layer.precision = self.module.float32
                    layer.set_output_type(index, self.module.float32)

    def _is_half(self, layer: Any, kind: str, read: set[str | None]) -> bool:
        """Return whether the floating outputs of a layer are float16 in the graph; `read` contains its input types."""
        if kind == "CAST":
            layer.__class__ = self.module.ICastLayer  # the network returns an ILayer, which has no `to_type`
            return self.type_name(layer.to_type) == "float16"
        if kind == "CONSTANT":
            layer.__class__ = self.module.IConstantLayer
            return self.type_name(layer.weights.dtype) == "float16"
        return "float16" in read

    def share_profiles(self, config: Any) -> None:
        """Let several execution contexts use the same profile, for simultaneous batches of one size.

        Version 9 and later always allow this. 8.6 refuses a second context unless the engine was built with this flag.
        """
        if not self.is_rtx and self.numbers < (9,):
            config.set_preview_feature(self.module.PreviewFeature.PROFILE_SHARING_0806, True)

    def set_target(
        self, config: Any, capabilities: tuple[str, ...], ampere_plus: bool, version_compatible: bool
    ) -> None:
        """Set the GPUs and versions to build for.

        Raises:
            InputError: this version does not support the target.
        """
        if self.is_rtx:
            if ampere_plus or version_compatible:
                raise InputError(
                    f"{self.library} builds for named compute capabilities and its own version only: leave "
                    "--hardware-compatible and --version-compatible out and use --compute-capability"
                )
            supported = self.module.ComputeCapability
            config.num_compute_capabilities = len(capabilities)
            for index, capability in enumerate(capabilities):
                name = "SM" + capability.replace(".", "")
                if not hasattr(supported, name):
                    names = ", ".join(
                        f"{n[2:-1]}.{n[-1]}" for n in sorted(dir(supported), key=len) if n.startswith("SM")
                    )
                    raise InputError(f"{self.library} does not build for compute capability {capability}, only {names}")
                config.set_compute_capability(getattr(supported, name), index)
        if ampere_plus:
            config.hardware_compatibility_level = self.module.HardwareCompatibilityLevel.AMPERE_PLUS
        if version_compatible:
            config.set_flag(self.module.BuilderFlag.VERSION_COMPATIBLE)

    def serialize_to(self, builder: Any, network: Any, config: Any, file: Any) -> bool:
        """Build an engine into an open binary file; return False if the build failed."""
        if hasattr(builder, "build_serialized_network_to_stream"):
            return bool(builder.build_serialized_network_to_stream(network, config, _writer(self.module, file)))
        engine = builder.build_serialized_network(network, config)
        if engine is None:
            return False
        file.write(memoryview(engine))
        return True

    def open_engine(self, data: Any, version_compatible: bool) -> tuple[Any, Any]:
        """Return (runtime, engine) of a serialized engine in any buffer. The engine is None if it cannot be used here.

        Raises:
            EngineError: the library cannot use this GPU or its driver.
        """
        runtime = self._create("cannot run engines", self.module.Runtime, self.logger)
        if version_compatible:
            runtime.engine_host_code_allowed = True
        return runtime, runtime.deserialize_cuda_engine(data)

    def scratch_bytes(self, engine: Any) -> int:
        """Return the bytes of temporaries of one context of this engine, for the profile that needs the most."""
        renamed = hasattr(engine, "device_memory_size_v2")  # in 10.1
        return int(engine.device_memory_size_v2 if renamed else engine.device_memory_size)

    def new_context(self, engine: Any, scratch: int, size: int) -> Any:
        """Return an execution context with temporaries in memory of the caller; None if the library cannot create it.

        By default each context would have memory for the largest profile. Contexts may share it if they run on one
        stream, as NVIDIA recommends (TensorRT issues 2040 and 3276) and TensorRT-LLM does.

        Args:
            engine: the engine.
            scratch: address of the memory. It must stay valid as long as the context and its captured graphs.
            size: size of the memory in bytes, at least `scratch_bytes(engine)`.
        """
        context = self._context_without_memory(engine)
        if context is None:
            return None
        # The engine contains the names of layers for inspection. Passing them to profilers would cost time in each run.
        context.nvtx_verbosity = self.module.ProfilingVerbosity.NONE
        if hasattr(context, "set_device_memory"):  # from 10.1 on
            context.set_device_memory(scratch, size)
        else:
            context.device_memory = scratch
        return context

    def _context_without_memory(self, engine: Any) -> Any:
        """Return a context without memory. For TensorRT-RTX, it compiles the kernels for its shapes at once.

        By default, TensorRT-RTX compiles in the background and starts with slower kernels, which a captured step would
        keep.
        """
        if not self.strongly_typed:
            return engine.create_execution_context_without_device_memory()
        strategy = self.module.ExecutionContextAllocationStrategy.USER_MANAGED
        if not self.is_rtx:
            return engine.create_execution_context(strategy)
        config = engine.create_runtime_config()
        config.set_execution_context_allocation_strategy(strategy)
        config.dynamic_shapes_kernel_specialization_strategy = (
            self.module.DynamicShapesKernelSpecializationStrategy.EAGER
        )
        return engine.create_execution_context(config)

    def type_name(self, data_type: Any) -> str:
        """Return the manifest's name of a TensorRT data type."""
        name = str(data_type).rpartition(".")[2]
        return {"FLOAT": "float32", "HALF": "float16"}.get(name, name.lower())


def find_tensorrt(name: LibraryName | None = None) -> TensorRt:
    """Import TensorRT, or TensorRT-RTX if only that is installed.

    Args:
        name: the library to import; None for TensorRT if it is installed, otherwise TensorRT-RTX.

    Raises:
        MissingLibrary: the library is not installed, does not load or is too old.
    """
    for library in _MODULES if name is None else (name,):
        for module in _MODULES[library]:
            try:
                imported = importlib.import_module(module)
            except ModuleNotFoundError:
                continue
            except (ImportError, OSError) as error:
                raise MissingLibrary(f"{module} is installed but does not load: {error}") from error
            return _opened(module, LibraryVersion(library, imported.__version__))
    if name is None:
        library_name = "TensorRT"
    else:
        library_name = name
    raise MissingLibrary(
        f"{library_name} is not installed: pip install tensorrt (from NVIDIA's index), JetPack's python3-libnvinfer, "
        "or pip install tensorrt-rtx-cu13-libs tensorrt-rtx-cu13-bindings"
    )


@functools.cache
def _opened(name: str, library: LibraryVersion) -> TensorRt:
    """Import a library and create its logger, once in a process.

    The library keeps a pointer to its first logger without owning it, so the logger must never be freed.
    """
    module = importlib.import_module(name)
    messages = list[str]()
    tensorrt = TensorRt(module, library, messages, _logger(module, messages))
    if tensorrt.numbers < _OLDEST and not tensorrt.is_rtx:
        raise MissingLibrary(f"{library} is too old: install TensorRT 8.6 or later")
    return tensorrt


def _logger(module: Any, messages: list[str]) -> Any:
    """Return a logger that forwards messages to txport's logger and keeps errors for `TensorRt.why`.

    If a layer has no implementation, the library logs the reason earlier, as a verbose message.
    """

    class Logger(module.ILogger):  # type: ignore[misc]
        def __init__(self) -> None:
            module.ILogger.__init__(self)
            self._refusal = ""

        def log(self, severity: Any, message: str) -> None:
            level = _LEVELS.get(str(severity).rpartition(".")[2], logging.DEBUG)
            _log.log(min(level, logging.INFO), "%s", message)
            if message.startswith("Skipping tactic"):
                self._refusal = message.partition(" due to exception ")[2]
            if level == logging.ERROR:
                if self._refusal and "any implementation" in message:
                    because = f" ({self._refusal})"
                else:
                    because = ""
                messages.append(message.rstrip(".") + because)

    return Logger()


def _writer(module: Any, file: Any) -> Any:
    class Writer(module.IStreamWriter):  # type: ignore[misc]
        def __init__(self) -> None:
            module.IStreamWriter.__init__(self)

        def write(self, data: Any) -> int:
            return int(file.write(data))

    return Writer()
