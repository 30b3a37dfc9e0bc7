"""The GPU of this machine, as the driver reports it, so that an engine can be chosen before any library is loaded."""

import ctypes
from dataclasses import dataclass

from txport.runtime.errors import MissingLibrary

# CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and _MINOR, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT
_MAJOR = 75
_MINOR = 76
_MULTIPROCESSORS = 16
# Values of CUresult in cuda.h; errors of CUDA's runtime have other numbers.
_REASONS = {
    3: "the NVIDIA driver is not initialised",
    34: "the NVIDIA driver is a stub for linking (libcuda.so.1 of the CUDA toolkit)",
    100: "there is no NVIDIA GPU, or CUDA_VISIBLE_DEVICES hides it",
    803: "the NVIDIA driver's library and its kernel module are of different versions: restart the machine",
    804: "CUDA's forward-compatibility libraries do not run on this GPU: remove them, or install a newer driver",
    999: "the NVIDIA driver cannot start (unknown error): see whether nvidia-smi works",
}


@dataclass(frozen=True)
class Gpu:
    """Device 0.

    Attributes:
        name: CUDA's name; GPUs of several sizes may share it, as all Jetson Orins do.
        compute_capability: "MAJOR.MINOR".
        multiprocessors: their number.
        driver: the newest CUDA version that its driver supports.
    """

    name: str
    compute_capability: str
    multiprocessors: int
    driver: str

    def __str__(self) -> str:
        return f"{self.name} ({self.compute_capability})"


def find_gpu() -> Gpu | str:
    """Return the GPU to use, or the reason, in words, why none can be used."""
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return "there is no NVIDIA driver (libcuda.so.1)"
    count = ctypes.c_int()
    version = ctypes.c_int()
    device = ctypes.c_int()
    for result in (
        cuda.cuInit(0),
        cuda.cuDeviceGetCount(ctypes.byref(count)),
        cuda.cuDriverGetVersion(ctypes.byref(version)),
    ):
        if result:
            return _REASONS.get(result, f"the NVIDIA driver reports error {result}")
    if count.value == 0 or cuda.cuDeviceGet(ctypes.byref(device), 0):
        return "there is no NVIDIA GPU"

    def attribute(number: int) -> int:
        value = ctypes.c_int()
        cuda.cuDeviceGetAttribute(ctypes.byref(value), number, device)
        return value.value

    name = ctypes.create_string_buffer(256)
    cuda.cuDeviceGetName(name, len(name), device)
    capability = f"{attribute(_MAJOR)}.{attribute(_MINOR)}"
    return Gpu(name.value.decode(errors="replace"), capability, attribute(_MULTIPROCESSORS), dotted(version.value))


def pci_bus_id() -> str | None:
    """Return the bus address of device 0, such as "0000:3b:00.0", or None if there is no device.

    NVIDIA's tools number devices by bus. CUDA numbers them by CUDA_VISIBLE_DEVICES and, by default, by speed.
    """
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    device = ctypes.c_int()
    text = ctypes.create_string_buffer(32)
    if cuda.cuInit(0) or cuda.cuDeviceGet(ctypes.byref(device), 0):
        return None
    if cuda.cuDeviceGetPCIBusId(text, len(text), device):
        return None
    return text.value.decode()


def usable_gpu(what: str, advice: str = "use --device cpu") -> Gpu:
    """Return the GPU that `what` requires.

    Raises:
        MissingLibrary: there is no GPU, or its driver is missing or too old. The message ends with `advice`.
    """
    if isinstance(gpu := find_gpu(), str):
        raise MissingLibrary(f"{what} cannot be used here: {gpu}; {advice}")
    return gpu


def dotted(version: int) -> str:
    """Convert CUDA's version numbers, such as 12040, to the usual notation: 12.4."""
    return f"{version // 1000}.{version % 1000 // 10}"
