"""NVIDIA's management library through `nvidia-ml-py`: name and memory of the GPU that CUDA uses.

The library is optional, and Jetsons do not have it. In a container, process ids may differ from those of the driver;
then the memory of a process is unknown.
"""

from typing import Any

from txport.benchmarks.report.schema import GpuFacts
from txport.runtime.device.gpu import pci_bus_id

try:
    import pynvml
except ImportError:  # a report then contains nothing about the GPU
    pynvml = None


class Nvml:
    """The GPU that CUDA calls device 0."""

    def __init__(self, handle: Any) -> None:
        self._handle = handle

    def facts(self) -> GpuFacts:
        """Return name, driver and memory of the GPU."""
        name = pynvml.nvmlDeviceGetName(self._handle)
        try:
            driver = pynvml.nvmlSystemGetDriverVersion()
        except pynvml.NVMLError:
            driver = "unknown"
        try:
            total = int(pynvml.nvmlDeviceGetMemoryInfo(self._handle).total)
        except pynvml.NVMLError:  # the GPU shares the memory of the processor
            total = 0
        return GpuFacts(_text(name), _text(driver), total)

    def process_bytes(self, pid: int) -> int | None:
        """Return the GPU memory of a process, or None if it has none or the driver does not report it."""
        try:
            running = pynvml.nvmlDeviceGetComputeRunningProcesses(self._handle)
        except pynvml.NVMLError:
            return None
        sizes = [each.usedGpuMemory for each in running if each.pid == pid and each.usedGpuMemory is not None]
        if sizes:
            return int(sum(sizes))
        return None


def open_nvml() -> Nvml | None:
    """Return the GPU that CUDA calls device 0; None without a GPU, its driver or the library."""
    if pynvml is None or (bus := pci_bus_id()) is None:
        return None
    try:
        pynvml.nvmlInit()
        return Nvml(pynvml.nvmlDeviceGetHandleByPciBusId(bus.encode()))
    except pynvml.NVMLError:
        return None


def _text(value: str | bytes) -> str:
    if isinstance(value, bytes):
        return value.decode()
    return value
