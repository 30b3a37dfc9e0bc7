"""Which library runs a bundle, on which device, and why."""

from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from txport.runtime.engine import Engine
from txport.runtime.errors import BundleError, InputError
from txport.runtime.libraries import needs
from txport.runtime.manifest import Lowering, Manifest

DEVICES = ("auto", "cpu", "cuda")
_WHY = {
    "auto": "auto is the CPU in this version of txport",
    "cpu": "device cpu was asked for",
    "cuda": "device cuda was asked for",
}
LOWERINGS: tuple[Lowering, ...] = ("ort", "scatter", "tensorscatter")


@dataclass(frozen=True)
class Choice:
    """What will run a bundle.

    Attributes:
        engine: the library: "ort" is ONNX Runtime.
        device: "cpu" or "cuda".
        lowering: the decoder step that was asked for; None if the engine may try them in turn.
        lowerings: the decoder steps of the bundle that may be used, in the order in which they are tried.
        reason: why this choice, in words.
    """

    engine: str
    device: str
    lowering: Lowering | None
    lowerings: tuple[Lowering, ...]
    reason: str


def choose(manifest: Manifest, device: str = "auto", lowering: str | None = None) -> Choice:
    """Choose without loading any library.

    ONNX Runtime runs `ort` best: its fused attention reads only the used part of a cache. `scatter` needs nothing
    special; `tensorscatter` needs opset 24, which ONNX Runtime has from 1.24 on.

    Raises:
        InputError: the device or the lowering is not one that this version knows.
        BundleError: the bundle has not got the lowering.
    """
    if device not in DEVICES:
        raise InputError(f"device {device!r} is not supported by this version of txport: use {', '.join(DEVICES)}")
    here = tuple(name for name in LOWERINGS if manifest.graph("decoder_step", name) is not None)
    place = "cuda" if device == "cuda" else "cpu"
    if lowering is None:
        why = f"{_WHY[device]}; ONNX Runtime runs {here[0]} best of what the bundle has"
        return Choice("ort", place, None, here, why)
    asked = next((name for name in LOWERINGS if name == lowering), None)
    if asked is None:
        raise InputError(f"lowering {lowering!r} is unknown: use {', '.join(LOWERINGS)}")
    if asked not in here:
        raise BundleError(f"the bundle has no lowering {lowering!r}, only {', '.join(here)}: choose one of these")
    return Choice("ort", place, asked, (asked,), f"{_WHY[device]}; lowering {lowering} was asked for")


def installed() -> str | None:
    """Name and version of the chosen library as it is installed here, or None; it is not loaded."""
    for package in ("onnxruntime", "onnxruntime-gpu"):
        try:
            return f"ONNX Runtime {version(package)}"
        except PackageNotFoundError:
            continue
    return None


def open_engine(directory: Path, manifest: Manifest, choice: Choice, threads: int = 0) -> Engine:
    """Load the chosen library and the bundle's graphs.

    Raises:
        MissingLibrary: the library is not installed.
        BundleError: it does not load the graphs.
    """
    with needs("ort"):
        from txport.runtime.ort import OrtEngine
    return OrtEngine(directory, manifest, choice.lowering, threads, choice.device)
