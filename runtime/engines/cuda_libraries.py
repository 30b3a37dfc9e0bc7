"""CUDA's libraries for ONNX Runtime's CUDA provider: find and load them, or explain why it cannot start."""

import contextlib
import ctypes
import functools
import io
import re
from importlib.util import find_spec
from pathlib import Path

import onnxruntime
from txport.runtime.device.gpu import find_gpu
from txport.runtime.errors import MissingLibrary
from txport.runtime.libraries import cuda_provider

# In load order: each library comes before its dependents.
_LIBRARIES = ("libcudart", "libcublasLt", "libcublas", "libcurand", "libnvrtc", "libcufft", "libcudnn")
_NUMBERED_AS_CUDA = ("libcudart", "libcublasLt", "libcublas", "libnvrtc")
# The first driver of each generation of CUDA (CUDA's release notes, table 3).
_DRIVERS = {12: 525, 13: 580}


@functools.cache
def load_cuda_libraries() -> None:
    """Load CUDA's libraries from their pip packages, if installed, since the provider has no search path.

    ONNX Runtime itself only finds packages that are installed beside it.

    Raises:
        MissingLibrary: a library of the provider is missing.
    """
    for file in _files():
        with contextlib.suppress(OSError):  # it may not be needed
            ctypes.CDLL(str(file))
    if hasattr(onnxruntime, "preload_dlls"):  # from 1.21 on
        with contextlib.redirect_stdout(
            io.StringIO()
        ):  # `preload_dlls` prints missing libraries, even unnecessary ones
            onnxruntime.preload_dlls(directory="")
    if (library := _unmet()) is not None:
        raise no_cuda(missing(library))


def _files() -> list[Path]:
    """Return the libraries of NVIDIA's pip packages for the CUDA version of this ONNX Runtime."""
    packages = find_spec("nvidia")
    if packages is not None:
        folders = list(packages.submodule_search_locations or ())
    else:
        folders = []
    version = _built_for() or "*"
    names = [f"{name}.so.{version if name in _NUMBERED_AS_CUDA else '*'}" for name in _LIBRARIES]
    return [file for name in names for folder in folders for file in sorted(Path(folder).glob(f"*/lib/{name}"))]


def _unmet() -> str | None:
    """Return the missing library because of which the loader refuses the provider's file, or None."""
    if (provider := cuda_provider()) is None:
        return None
    try:
        ctypes.CDLL(str(provider))
    except OSError as error:
        library = re.match(r"(\S+): cannot open shared object file", str(error))
        if library and not library[1].startswith("libcuda.so"):  # that library belongs to the driver
            return library[1]
    return None


def _built_for() -> int | None:
    """Return the major version of CUDA that this ONNX Runtime was built for, or None if unknown."""
    version = str(getattr(onnxruntime, "cuda_version", "") or "").partition(".")[0]
    if version.isdigit():
        return int(version)
    return None


def why_no_cuda(reason: str = "") -> str:
    """Return the reason why the provider did not start although all libraries exist: the driver, or its message."""
    version = _built_for()
    gpu = find_gpu()
    if version is None or isinstance(gpu, str) or (supported := int(gpu.driver.partition(".")[0])) >= version:
        return f"{reason}, check the driver with nvidia-smi".removeprefix(", ")
    if version in _DRIVERS:
        newer = f"to {_DRIVERS[version]} or newer"
    else:
        newer = "to a newer one"
    return (
        f"ONNX Runtime {onnxruntime.__version__} is built for CUDA {version} and the NVIDIA driver supports CUDA "
        f"{gpu.driver} at most: update the driver {newer}, or install an onnxruntime-gpu for CUDA {supported}"
    )


def missing(library: str) -> str:
    """Return the sentence about a missing library, with the command that installs it."""
    return f"{library} is missing, pip install 'onnxruntime-gpu[cuda,cudnn]' brings it"


def no_cuda(reason: str) -> MissingLibrary:
    """Return the error for a provider that cannot be used."""
    return MissingLibrary(f"ONNX Runtime cannot start its CUDA provider: {reason}; or use --device cpu")
