"""The GPU of this machine, as the driver reports it, so that an engine can be chosen before any library is loaded."""

import ctypes
from dataclasses import dataclass

from txport.runtime.errors import MissingLibrary

_MAJOR, _MINOR = 75, 76  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and _MINOR
_REASONS = {3: "the driver is not initialised", 35: "the driver is too old", 100: "there is no NVIDIA GPU"}


@dataclass(frozen=True)
class Gpu:
    """Device 0: its name, its compute capability "MAJOR.MINOR", and the newest CUDA that its driver supports."""

    name: str
    compute_capability: str
    driver: str

    def __str__(self) -> str:
        return f"{self.name} ({self.compute_capability})"


def find_gpu() -> Gpu | str:
    """The GPU that will be used, or in words why none can be."""
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return "there is no NVIDIA driver (libcuda.so.1)"
    count, version, device = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
    for result in (
        cuda.cuInit(0),
        cuda.cuDeviceGetCount(ctypes.byref(count)),
        cuda.cuDriverGetVersion(ctypes.byref(version)),
    ):
        if result:
            return _REASONS.get(result, f"the NVIDIA driver reports error {result}")
    if count.value == 0 or cuda.cuDeviceGet(ctypes.byref(device), 0):
        return "there is no NVIDIA GPU"
    name, major, minor = ctypes.create_string_buffer(256), ctypes.c_int(), ctypes.c_int()
    cuda.cuDeviceGetName(name, len(name), device)
    cuda.cuDeviceGetAttribute(ctypes.byref(major), _MAJOR, device)
    cuda.cuDeviceGetAttribute(ctypes.byref(minor), _MINOR, device)
    capability = f"{major.value}.{minor.value}"
    return Gpu(name.value.decode(errors="replace"), capability, dotted(version.value))


def usable_gpu(what: str) -> Gpu:
    """The GPU for `what`, which cannot do without.

    Raises:
        MissingLibrary: there is no GPU, or its driver is missing or too old.
    """
    if isinstance(gpu := find_gpu(), str):
        raise MissingLibrary(f"{what} cannot be used here: {gpu}; use --device cpu")
    return gpu


def dotted(version: int) -> str:
    """CUDA's version numbers, as 12040, in the usual notation: 12.4."""
    return f"{version // 1000}.{version % 1000 // 10}"
