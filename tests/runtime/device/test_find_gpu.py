"""What the driver says about this machine's GPU, and how it is put into words."""

import ctypes
from collections.abc import Callable

import pytest
from txport.runtime.device.gpu import Gpu, dotted, find_gpu, pci_bus_id


class Driver:
    """A libcuda.so.1 with one GPU, but for the results of calls that a test chooses."""

    def __init__(self, count: int = 1, **results: int) -> None:
        self.count, self.results = count, results

    def __getattr__(self, name: str) -> Callable[..., int]:
        return lambda *arguments: self._call(name, *arguments)

    def _call(self, name: str, *arguments: object) -> int:
        fill = {
            "cuInit": lambda flags: None,
            "cuDeviceGetCount": lambda count: self._put(count, self.count),
            "cuDriverGetVersion": lambda version: self._put(version, 12040),
            "cuDeviceGet": lambda device, ordinal: self._put(device, 5 + ordinal),
            "cuDeviceGetName": lambda name, size, device: setattr(name, "value", b"NVIDIA H200"),
            "cuDeviceGetAttribute": lambda value, attribute, device: self._put(
                value, {75: 9, 76: 1, 16: 132}[attribute]
            ),
            "cuDeviceGetPCIBusId": lambda text, size, device: setattr(text, "value", b"0000:3b:00.0"),
        }[name]
        fill(*arguments)
        return self.results.get(name, 0)

    @staticmethod
    def _put(reference: object, value: int) -> None:
        reference._obj.value = value  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("driver", "found"),
    [
        (None, "there is no NVIDIA driver (libcuda.so.1)"),
        (Driver(), Gpu("NVIDIA H200", "9.1", 132, "12.4")),
        (Driver(count=0), "there is no NVIDIA GPU"),
        (Driver(cuInit=100), "there is no NVIDIA GPU, or CUDA_VISIBLE_DEVICES hides it"),
        (Driver(cuInit=34), "the NVIDIA driver is a stub for linking (libcuda.so.1 of the CUDA toolkit)"),
        (
            Driver(cuInit=803),
            "the NVIDIA driver's library and its kernel module are of different versions: restart the machine",
        ),
        (
            Driver(cuInit=804),
            "CUDA's forward-compatibility libraries do not run on this GPU: remove them, or install a newer driver",
        ),
        (Driver(cuInit=999), "the NVIDIA driver cannot start (unknown error): see whether nvidia-smi works"),
        (Driver(cuDeviceGetCount=3), "the NVIDIA driver is not initialised"),
        (Driver(cuDriverGetVersion=35), "the NVIDIA driver reports error 35"),
        (Driver(cuDeviceGet=101), "there is no NVIDIA GPU"),
    ],
)
def test_a_gpu_is_named_or_there_is_a_reason(
    driver: Driver | None, found: Gpu | str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def open_library(name: str) -> Driver:
        assert name == "libcuda.so.1"
        if driver is None:
            raise OSError(name)
        return driver

    monkeypatch.setattr(ctypes, "CDLL", open_library)
    assert find_gpu() == found


@pytest.mark.parametrize(
    ("driver", "found"),
    [
        (Driver(), "0000:3b:00.0"),
        (None, None),
        (Driver(cuInit=100), None),
        (Driver(cuDeviceGet=101), None),
        (Driver(cuDeviceGetPCIBusId=1), None),
    ],
)
def test_a_gpu_is_found_on_the_bus(driver: Driver | None, found: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    def open_library(name: str) -> Driver:
        if driver is None:
            raise OSError(name)
        return driver

    monkeypatch.setattr(ctypes, "CDLL", open_library)
    assert pci_bus_id() == found


def test_versions_of_cuda_are_written_as_people_write_them() -> None:
    assert dotted(12040) == "12.4" and dotted(13000) == "13.0"
