"""Which GPU NVML is asked about, and what is not known about it."""

from types import SimpleNamespace
from typing import Any

import pytest
from txport.benchmarks.machine import nvml


class NvmlError(Exception):
    """What the library raises."""


def refuse(*_arguments: object) -> Any:
    raise NvmlError


def library(**changes: Any) -> SimpleNamespace:
    calls = {
        "NVMLError": NvmlError,
        "nvmlInit": lambda: None,
        "nvmlDeviceGetHandleByPciBusId": lambda bus: bus,
        "nvmlDeviceGetName": lambda handle: f"NVIDIA at {handle.decode()}",
        "nvmlSystemGetDriverVersion": lambda: b"580.1",
        "nvmlDeviceGetMemoryInfo": lambda handle: SimpleNamespace(total=8),
    }
    return SimpleNamespace(**(calls | changes))


def test_it_is_the_gpu_that_cuda_uses(monkeypatch: pytest.MonkeyPatch) -> None:
    """NVML counts along the bus and does not know CUDA_VISIBLE_DEVICES."""
    monkeypatch.setattr(nvml, "pynvml", library())
    monkeypatch.setattr(nvml, "pci_bus_id", lambda: "0000:3b:00.0")
    opened = nvml.open_nvml()
    assert opened is not None and opened.facts().name == "NVIDIA at 0000:3b:00.0"
    monkeypatch.setattr(nvml, "pci_bus_id", lambda: None)
    assert nvml.open_nvml() is None


def test_what_the_driver_does_not_say_is_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvml, "pci_bus_id", lambda: "0000:3b:00.0")
    monkeypatch.setattr(nvml, "pynvml", library(nvmlSystemGetDriverVersion=refuse, nvmlDeviceGetMemoryInfo=refuse))
    opened = nvml.open_nvml()
    assert opened is not None and (opened.facts().driver, opened.facts().memory_bytes) == ("unknown", 0)
    monkeypatch.setattr(nvml, "pynvml", library(nvmlInit=refuse))
    assert nvml.open_nvml() is None
