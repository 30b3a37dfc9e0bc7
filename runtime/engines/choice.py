"""Which library runs a bundle, on which device, and why."""

import logging
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

from txport.runtime.bundle.manifest import Manifest
from txport.runtime.bundle.schema import Lowering
from txport.runtime.device.gpu import Gpu, find_gpu
from txport.runtime.engine import Engine
from txport.runtime.engines.build_record import BuildRecord, LibraryName
from txport.runtime.engines.directories import Built, best, candidates, directories
from txport.runtime.engines.tensorrt import TensorRt, find_tensorrt
from txport.runtime.errors import BundleError, InputError, MissingLibrary, TxportError
from txport.runtime.libraries import needs

DEVICES = ("auto", "cpu", "cuda", "trt")
_TENSORRTS: tuple[LibraryName, ...] = ("tensorrt", "tensorrt_rtx")
_log = logging.getLogger("txport")


@dataclass(frozen=True)
class Choice:
    """What will run a bundle.

    Attributes:
        engine: the library: "ort" is ONNX Runtime, "trt" is TensorRT.
        device: "cpu" or "cuda".
        lowering: the decoder step that was asked for; None if the engine may try them in turn.
        lowerings: the decoder steps of the bundle that may be used, in the order in which they are tried.
        reason: why this choice, in words.
        directory: of TensorRT's engines; None for ONNX Runtime.
        asked: the device that was asked for.
    """

    engine: str
    device: str
    lowering: Lowering | None
    lowerings: tuple[Lowering, ...]
    reason: str
    directory: str | None = None
    asked: str = "auto"


def choose(manifest: Manifest, device: str = "auto", lowering: str | None = None, bundle: Path | None = None) -> Choice:
    """Choose; TensorRT is loaded if the bundle has engines and there is a GPU, no other library is.

    "auto" is TensorRT where engines fit, else ONNX Runtime's CUDA provider where it is installed and there is a GPU,
    else the CPU. Of the lowerings ONNX Runtime runs `ort` best: its fused attention reads only the used part of a
    cache. `scatter` needs nothing special; `tensorscatter` needs opset 24, which ONNX Runtime has from 1.24 on.

    Args:
        manifest: the bundle's.
        device: "auto", "cpu", "cuda" (ONNX Runtime) or "trt".
        lowering: a decoder step, if it must be this one.
        bundle: where the bundle is; without it no TensorRT engine can be found.

    Raises:
        InputError: the device or the lowering is not one that this version knows, or there is no GPU.
        BundleError: the bundle has not got the lowering, or no TensorRT engine that fits.
        MissingLibrary: "trt" was asked for and TensorRT is not installed.
    """
    if device not in DEVICES:
        raise InputError(f"device {device!r} is not supported by this version of txport: use {', '.join(DEVICES)}")
    usable = manifest.usable_lowerings(lowering)
    asked = usable[0] if lowering is not None else None
    if device == "trt":
        return _tensorrt(manifest, bundle, asked)
    if device == "auto":
        found = _fastest(manifest, usable, asked, bundle)
    else:
        found = Choice("ort", device, asked, usable, f"device {device} was asked for")
    if found.engine == "ort":
        what = (
            f"lowering {asked} was asked for" if asked else f"ONNX Runtime runs {usable[0]} best of what the bundle has"
        )
        found = replace(found, reason=f"{found.reason}; {what}")
    return replace(found, asked=device)


def _fastest(manifest: Manifest, usable: tuple[Lowering, ...], asked: Lowering | None, bundle: Path | None) -> Choice:
    """TensorRT, ONNX Runtime on the GPU, or the CPU; why, with what speaks against those before it."""
    if manifest.precision.weights == "int8":
        return Choice("ort", "cpu", asked, usable, "auto is the CPU: int8 weights are for it")
    gpu = find_gpu()
    if isinstance(gpu, str):
        return Choice("ort", "cpu", asked, usable, f"auto is the CPU: {gpu}")
    against = "the bundle has no TensorRT engines"
    if bundle is not None and directories(bundle):
        try:
            return _tensorrt(manifest, bundle, asked)
        except TxportError as error:
            against = str(error)
    if _installed_version("onnxruntime-gpu") is None:
        return Choice(
            "ort", "cpu", asked, usable, f"auto is the CPU: {against}, and onnxruntime-gpu is not installed for {gpu}"
        )
    return Choice("ort", "cuda", asked, usable, f"auto is ONNX Runtime on {gpu}: {against}")


def _tensorrt(manifest: Manifest, bundle: Path | None, asked: Lowering | None) -> Choice:
    """The engines that fit, of whichever TensorRT is installed."""
    gpu = find_gpu()
    if isinstance(gpu, str):
        raise InputError(f"device trt cannot be used here: {gpu}; use --device cpu")
    assert bundle is not None, "only a bundle's directory has engines"
    built, tensorrt = _fitting(manifest, bundle, gpu)
    lowering = built.record.lowering
    if asked is not None and asked != lowering:
        raise BundleError(
            f"the TensorRT engines of {bundle} that fit have the lowering {lowering}, not {asked}: "
            f"run tx-build {bundle} --lowering {asked}"
        )
    reason = f"engines/{built.directory.name} fits {gpu} and {tensorrt.library}"
    return Choice("trt", "cuda", asked, (lowering,), reason, str(built.directory), "trt")


def _fitting(manifest: Manifest, bundle: Path, gpu: Gpu) -> tuple[Built, TensorRt]:
    """The best engines of the first library that has any."""
    first: TensorRt | None = None
    for name in _TENSORRTS:
        if not any(find_spec(module) for module in (name, f"{name}_bindings")):
            continue
        tensorrt = find_tensorrt(name)
        first = first or tensorrt
        if fitting := candidates(bundle, manifest, gpu, tensorrt.library).fitting:
            return fitting[0], tensorrt
    tensorrt = first or find_tensorrt()
    return best(bundle, manifest, gpu, tensorrt.library), tensorrt


def installed() -> str | None:
    """Name and version of ONNX Runtime as it is installed here, or None; it is not loaded."""
    for package in ("onnxruntime", "onnxruntime-gpu"):
        if (found := _installed_version(package)) is not None:
            return f"ONNX Runtime {found}"
    return None


def _installed_version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def open_engine(directory: Path, manifest: Manifest, choice: Choice, threads: int = 0) -> Engine:
    """Load the chosen library and the bundle's graphs, or its engines.

    What "auto" chose and cannot be started is said in a warning, and the CPU takes its place.

    Raises:
        MissingLibrary: the library is not installed.
        BundleError: it does not load the graphs or engines.
        InputError: the device cannot be used.
    """
    if choice.device == "cuda":
        try:
            return _open_on_gpu(directory, manifest, choice, threads)
        except TxportError as error:
            if choice.asked != "auto":
                raise
            _log.warning("%s; the CPU is used instead", error)
    with needs("ort"):
        from txport.runtime.engines.ort import OrtEngine
    return OrtEngine(directory, manifest, choice.lowering, threads)


def _open_on_gpu(directory: Path, manifest: Manifest, choice: Choice, threads: int) -> Engine:
    if choice.engine == "trt":
        with needs("trt"):
            from txport.runtime.device.cuda import CudaDevice
            from txport.runtime.device.engine import DeviceEngine
            from txport.runtime.engines.trt import TrtProgram
        assert choice.directory is not None  # `choose` found it
        record = BuildRecord.load(Path(choice.directory))
        device, library = CudaDevice(), find_tensorrt(record.library.name)
        program = TrtProgram(Path(choice.directory), record, manifest, library, device)
        return DeviceEngine(device, manifest, program)
    with needs("ort-gpu"):
        from txport.runtime.engines.ort import OrtEngine
    try:
        with needs("ort-gpu"):
            from txport.runtime.device.cuda import CudaDevice
            from txport.runtime.device.engine import DeviceEngine
            from txport.runtime.engines.ort_cuda import OrtProgram
    except MissingLibrary as error:
        _log.warning("the decoder's state crosses the bus at each step: %s", error)
        return OrtEngine(directory, manifest, choice.lowering, threads, "cuda")
    device = CudaDevice()
    return DeviceEngine(device, manifest, OrtProgram(directory, manifest, choice.lowering, device))
