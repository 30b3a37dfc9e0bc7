"""Choice of the engine and the device for a bundle."""

import logging
from dataclasses import dataclass, replace
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from txport.runtime.bundle.archive import Files
from txport.runtime.bundle.manifest import Manifest
from txport.runtime.bundle.schema import Lowering
from txport.runtime.device.gpu import Gpu, find_gpu, usable_gpu
from txport.runtime.engine import Engine, Sources
from txport.runtime.engines import native
from txport.runtime.engines.build_record import BuildRecord, LibraryName
from txport.runtime.engines.directories import (
    ENGINES as ENGINES_FOLDER,
)
from txport.runtime.engines.directories import (
    Built,
    best,
    candidates,
    directories,
    untrusted,
    usable_directories,
)
from txport.runtime.engines.tensorrt import TensorRt, find_tensorrt
from txport.runtime.errors import BundleError, InputError, MissingLibrary, TxportError
from txport.runtime.libraries import cuda_provider, needs

if TYPE_CHECKING:
    from txport.runtime.device.engine import DeviceEngine

DEVICES = ("auto", "cpu", "cuda")
ORT = "ort"
FUSED = "fused"
TRT = "trt"
ENGINES = ("auto", FUSED, ORT, TRT)
_TENSORRTS: tuple[LibraryName, ...] = ("tensorrt", "tensorrt_rtx")
_NO_PARAMETERS = "the bundle has no parameters for the fused engine"
_NO_COPIES = "the fused engine has no copy mechanism"
_NO_FLOAT32 = "lowering ort has no float32 kernels on a GPU"
_NO_ENGINES = "there are no TensorRT engines for the bundle"
_NO_DIRECTORY = "TensorRT engines can only be used with a bundle that is a directory"
_log = logging.getLogger("txport")


@dataclass(frozen=True)
class Choice:
    """Chosen engine and device.

    Attributes:
        engine: "ort" is ONNX Runtime, "trt" is TensorRT, "fused" is txport's own engine for CPUs.
        device: "cpu" or "cuda".
        lowerings: the decoder steps to try, in this order; empty for the fused engine, which needs no graph.
        reason: reason for the choice, in readable words.
        directory: directory of TensorRT's engines; None for other engines.
        fallback: the choice to use if this one cannot be opened; None if that is an error.
    """

    engine: str
    device: str
    lowerings: tuple[Lowering, ...]
    reason: str
    directory: str | None = None
    fallback: "Choice | None" = None

    @property
    def attempts(self) -> list[tuple[str, Lowering | None]]:
        """Return the engine and lowering of each way to run the bundle on this device."""
        if self.engine != FUSED:
            return [(self.engine, lowering) for lowering in self.lowerings]
        return [(FUSED, None), *(self.fallback.attempts if self.fallback is not None else ())]


def choose(
    manifest: Manifest,
    device: str = "auto",
    engine: str = "auto",
    lowering: str | None = None,
    bundle: Files | None = None,
    trust_engines: bool = False,
) -> Choice:
    """Choose engine and device. TensorRT is loaded if there are engines for the bundle and a GPU; no other library is.

    On a GPU, the engine "auto" is TensorRT if engines fit, otherwise ONNX Runtime's CUDA provider. The device "auto" is
    a GPU if one of them can be used, otherwise the CPU. On a CPU, the fused engine runs a bundle if all of these hold:
    the library of the engine is installed, the bundle has parameters for it, the model has no copy mechanism, and the
    verification in the manifest, if there is one, includes the fused engine. Otherwise ONNX Runtime runs the bundle.

    ONNX Runtime is fastest with `ort`, whose fused attention reads only the used part of a cache. On a GPU, this
    attention exists in float16 only. `scatter` has no special requirements. `tensorscatter` needs opset 24, which ONNX
    Runtime supports from 1.25 on.

    Args:
        manifest: manifest of the bundle.
        device: "auto", "cpu" or "cuda".
        engine: "auto", "fused", "ort" (ONNX Runtime) or "trt" (TensorRT).
        lowering: the required decoder step; for ONNX Runtime, unless TensorRT's engines have it.
        bundle: the bundle; without it, no TensorRT engine can be found.
        trust_engines: whether TensorRT engines in the bundle, which are native code, may run.

    Raises:
        InputError: a value is not supported, or the values contradict each other.
        BundleError: the bundle lacks the lowering, parameters for the fused engine, or a TensorRT engine that fits.
        MissingLibrary: for "trt" there is no GPU, no driver or no TensorRT; for "fused" there is no library.
    """
    check_words(device, engine, lowering)
    if engine == FUSED:
        return _forced(manifest, device, lowering)
    if engine == TRT:
        if device == "cpu":
            raise InputError("engine trt is for a GPU: leave out the device cpu")
        manifest.usable_lowerings(lowering)  # refuses one that the bundle lacks
        return _tensorrt(manifest, bundle, lowering, trust_engines)
    if device == "auto":
        return _fastest(manifest, bundle, engine, lowering, trust_engines)
    reason = f"device {device} was requested"
    if device == "cpu":
        return _on_cpu(manifest, engine, lowering, reason)
    choice_or_reason = _fitting_engines(manifest, bundle, engine, lowering, trust_engines)
    if isinstance(choice_or_reason, Choice):
        return choice_or_reason
    return _on_ort(manifest, "cuda", lowering, f"{reason}; {choice_or_reason}")


def check_words(device: str, engine: str, lowering: str | None = None) -> None:
    """Check names of a device, an engine and a lowering.

    Raises:
        InputError: a name is not supported.
    """
    for name, value in (("device", device), ("lowering", lowering)):
        if value in (FUSED, TRT):
            raise InputError(f"{name} {value!r} is an engine: give engine {value} instead")
    for name, value, allowed in (("device", device, DEVICES), ("engine", engine, ENGINES)):
        if value not in allowed:
            raise InputError(f"{name} {value!r} is not supported by this version of txport: use {', '.join(allowed)}")


def _forced(manifest: Manifest, device: str, lowering: str | None) -> Choice:
    """Return the fused engine, even if the bundle was not verified with it."""
    if device == "cuda":
        raise InputError("engine fused is for the CPU: leave out the device cuda")
    if lowering is not None:
        raise InputError(f"engine fused runs no graph of the bundle: leave out the lowering {lowering}")
    if manifest.model.copies:
        raise BundleError(f"{_NO_COPIES}, which this model needs: leave out the engine fused")
    if manifest.parameters is None:
        raise BundleError(
            f"{_NO_PARAMETERS}: export it again with this version of txport, which writes them for models with "
            "LayerNorm or RMSNorm and without Shaw's positions"
        )
    if (reason := native.missing()) is not None:
        raise MissingLibrary(f"the fused engine cannot be used: {reason}")
    return Choice(FUSED, "cpu", (), "engine fused was requested")


def _on_cpu(manifest: Manifest, engine: str, lowering: str | None, reason: str) -> Choice:
    """Return ONNX Runtime if it or a lowering is requested, or if the fused engine cannot run the bundle.

    Otherwise return the fused engine.
    """
    if engine == ORT:
        return _on_ort(manifest, "cpu", lowering, f"{reason}; engine ort was requested")
    if lowering is not None:
        return _on_ort(manifest, "cpu", lowering, reason)
    if (obstacle := why_not_fused(manifest)) is not None:
        return _on_ort(manifest, "cpu", None, f"{reason}; {obstacle}")
    fallback = _on_ort(manifest, "cpu", None, f"{reason}; the fused engine cannot run the bundle")
    return Choice(FUSED, "cpu", (), f"{reason}; the fused engine is the fastest there", fallback=fallback)


def why_not_fused(manifest: Manifest) -> str | None:
    """Return the reason why "auto" does not choose the fused engine for a bundle, or None if it does."""
    if manifest.model.copies:
        return _NO_COPIES
    if manifest.parameters is None:
        return _NO_PARAMETERS
    if manifest.verification is not None and FUSED not in manifest.verification.engines:
        return "the bundle was not verified with the fused engine: run tx-verify BUNDLE"
    return native.missing()


def _on_ort(manifest: Manifest, device: str, lowering: str | None, reason: str) -> Choice:
    """Return ONNX Runtime, with the lowerings from the fastest to the slowest on this device."""
    lowerings = manifest.usable_lowerings(lowering)
    if device == "cuda" and manifest.precision.type == "float32":
        # GroupQueryAttention has 16-bit kernels only: in each step, all caches would be copied to the CPU and back.
        lowerings = tuple(name for name in lowerings if name != "ort")
    if not lowerings and manifest.lowerings == ("ort",):
        raise BundleError(
            "the bundle has only the lowering ort, which has no float32 kernels on a GPU: export it with --fp16 or "
            "with more lowerings, or use device cpu"
        )
    if not lowerings:
        raise InputError(f"{_NO_FLOAT32}: leave it out, export the bundle with --fp16, or use device cpu")
    explanation = f"ONNX Runtime runs {lowerings[0]} best of the bundle's lowerings"
    return Choice(
        ORT, device, lowerings, f"{reason}; {f'lowering {lowering} was requested' if lowering else explanation}"
    )


def _fastest(
    manifest: Manifest, bundle: Files | None, engine: str, lowering: str | None, trust_engines: bool
) -> Choice:
    """Return TensorRT, ONNX Runtime on the GPU, or the CPU. The reason explains why earlier ones cannot be used."""

    def on_cpu(reason: str) -> Choice:
        return _on_cpu(manifest, engine, lowering, f"auto chose the CPU: {reason}")

    if manifest.precision.weights == "int8":
        return on_cpu("int8 weights are for CPUs")
    if isinstance(gpu := find_gpu(), str):
        return on_cpu(gpu)
    choice_or_reason = _fitting_engines(manifest, bundle, engine, lowering, trust_engines)
    if isinstance(choice_or_reason, Choice):
        return replace(choice_or_reason, fallback=on_cpu("TensorRT cannot be used"))
    if cuda_provider() is None:
        return on_cpu(f"{choice_or_reason}, and onnxruntime-gpu is not installed for {gpu}")
    if manifest.precision.type == "float32" and manifest.usable_lowerings(lowering) == ("ort",):
        return on_cpu(f"{choice_or_reason}, and {_NO_FLOAT32}")
    on_gpu = _on_ort(manifest, "cuda", lowering, f"auto chose ONNX Runtime on {gpu}: {choice_or_reason}")
    return replace(on_gpu, fallback=on_cpu("ONNX Runtime cannot use the GPU"))


def _fitting_engines(
    manifest: Manifest, bundle: Files | None, engine: str, lowering: str | None, trust_engines: bool
) -> Choice | str:
    """Return TensorRT for the engine "auto", or the reason why it cannot be used."""
    if engine == ORT:
        return "engine ort was requested"
    if bundle is None:
        return _NO_ENGINES
    if not isinstance(bundle, Path) or bundle.is_file():
        return _NO_DIRECTORY
    try:
        if not usable_directories(bundle, manifest, trust_engines):
            if not directories(bundle / ENGINES_FOLDER):
                return _NO_ENGINES
            _log.warning("%s", untrusted(bundle))
            return untrusted(bundle)
        return _tensorrt(manifest, bundle, lowering, trust_engines)
    except TxportError as error:
        return str(error)


def _tensorrt(manifest: Manifest, bundle: Files | None, lowering: str | None, trust_engines: bool) -> Choice:
    """Return the fitting engines of the installed TensorRT."""
    gpu = usable_gpu("engine trt", "use --engine auto")
    if not isinstance(bundle, Path) or bundle.is_file():
        raise BundleError(f"{_NO_DIRECTORY}, and {bundle} is an archive: unzip it, and run tx-build")
    built, tensorrt = _fitting(manifest, bundle, gpu, trust_engines)
    if lowering not in (None, built.record.lowering):
        raise BundleError(
            f"the TensorRT engines for {bundle} that fit this machine were built with lowering "
            f"{built.record.lowering}, not {lowering}: run tx-build {bundle} --lowering {lowering}"
        )
    reason = f"engines/{built.directory.name} fits {gpu} and {tensorrt.library}"
    return built_choice(built.directory, built.record, reason)


def built_choice(directory: Path, record: BuildRecord, reason: str) -> Choice:
    """Return TensorRT with the engines of a directory."""
    return Choice(TRT, "cuda", (record.lowering,), reason, str(directory))


def _fitting(manifest: Manifest, bundle: Path, gpu: Gpu, trust_engines: bool) -> tuple[Built, TensorRt]:
    """Return the best engines of the first library with fitting ones."""
    first: TensorRt | None = None
    for name in _TENSORRTS:
        # An import of TensorRT takes seconds, so first check whether it is installed.
        if not any(find_spec(module) for module in (name, f"{name}_bindings")):
            continue
        tensorrt = find_tensorrt(name)
        first = first or tensorrt
        if fitting := candidates(bundle, manifest, gpu, tensorrt.library, trust_engines).fitting:
            return fitting[0], tensorrt
    tensorrt = first or find_tensorrt()
    return best(bundle, manifest, gpu, tensorrt.library, trust_engines), tensorrt


def installed() -> str | None:
    """Return name and version of the installed ONNX Runtime, or None, without loading it."""
    version = _installed_version("onnxruntime") or _installed_version("onnxruntime-gpu")
    if version:
        return f"ONNX Runtime {version}"
    return None


def _installed_version(package: str) -> str | None:
    from importlib.metadata import PackageNotFoundError, version  # slow to import, and rarely needed

    try:
        return version(package)
    except PackageNotFoundError:
        return None


def open_engine(
    bundle: Files, manifest: Manifest, choice: Choice, threads: int = 0, *, concurrent: bool = False
) -> Engine:
    """Load the chosen library, and the bundle's graphs, engines or parameters.

    If the fused engine, or a GPU that "auto" chose, cannot be used, a warning contains the reason, and the fallback is
    used.

    Args:
        bundle: the bundle.
        manifest: its manifest, already checked.
        choice: the engine and device.
        threads: threads of each operator on the CPU; 0 for all cores.
        concurrent: whether several threads will run batches at once.

    Raises:
        MissingLibrary: a library, the driver or the GPU is missing.
        BundleError: the library does not load the graphs or engines.
        EngineError: the library or the GPU failed.
        ResourceError: there is not enough memory.
    """
    try:
        return _open(bundle, manifest, choice, threads, concurrent)
    except TxportError as error:
        if choice.fallback is None:
            raise
        if choice.engine == FUSED:
            fallback_name = "ONNX Runtime"
        else:
            fallback_name = "the CPU"
        _log.warning("%s; %s is used instead", error, fallback_name)
        return open_engine(bundle, manifest, choice.fallback, threads, concurrent=concurrent)


def _open(bundle: Files, manifest: Manifest, choice: Choice, threads: int, concurrent: bool) -> Engine:
    if choice.engine == FUSED:
        return native.NativeEngine(bundle, manifest, threads, concurrent)
    if choice.device == "cuda":
        return _open_on_gpu(bundle, manifest, choice)
    if manifest.parameters is not None and (reason := why_not_fused(manifest)) is not None and reason in choice.reason:
        _log_once(f"ONNX Runtime runs the bundle: {reason}")
    explanation = "ONNX Runtime runs this bundle (tx-inspect shows why)"
    if "engine ort was requested" in choice.reason:
        explanation = "engine ort is ONNX Runtime"
    with needs("ort", explanation):
        from txport.runtime.engines.ort import OrtEngine
    return OrtEngine(bundle, manifest, choice.lowerings, threads)


@cache  # the same bundle may be opened many times
def _log_once(sentence: str) -> None:
    _log.info(sentence)


def _open_on_gpu(bundle: Files, manifest: Manifest, choice: Choice) -> Engine:
    with needs("trt" if choice.engine == TRT else "ort-gpu"):
        from txport.runtime.device.cuda import CudaDevice
        from txport.runtime.device.engine import DeviceEngine
    device = CudaDevice()
    if choice.directory is None:
        with needs("ort-gpu"):
            from txport.runtime.engines.ort_cuda import OrtProgram
        return _test_run(DeviceEngine(device, manifest, OrtProgram(bundle, manifest, choice.lowerings, device)))
    from txport.runtime.engines.trt import TrtProgram

    record = BuildRecord.load(Path(choice.directory))
    tensorrt = find_tensorrt(record.library.name)
    program = TrtProgram(Path(choice.directory), record, manifest, tensorrt, device)
    return _test_run(DeviceEngine(device, manifest, program))


def _test_run(engine: "DeviceEngine") -> "DeviceEngine":
    """Run the encoder, allocate a state, which test-runs the step, and return the engine.

    Missing libraries such as cuDNN may cause errors only then. The buffers have the size that a first sentence needs.
    """
    size = engine.manifest.model.feature_size
    source: Sources = np.array([[engine.tokens.eos]])
    if size is not None:
        source = np.zeros((1, 1, size), np.float32)
    engine.encode(source, np.array([1]))
    engine.allocate(1, 1, engine.first_target(1))
    engine.synchronize()
    return engine
