"""The chain of kernels on a GPU: its memory, its launches, and whether it is fast enough to be built into txport.

`python chain_gpu.py` decodes small random models, for compute-sanitizer.
"""

import ctypes
import functools
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from chain_compilers import cubin_of
from chain_emulator import build_emulator, missing, sizes_text
from chain_plan import Address, Array, Chain, Launch
from cuda.bindings import driver as cuda
from small_models import decode_small_models
from txport.runtime.device.cuda import CudaDevice
from txport.runtime.errors import EngineError

# By rows: the chain is worth building if it is at least 1.6 times as fast as ONNX Runtime, and faster in batches.
REQUIRED = {1: 1.6, 8: 1.0}
_PROGRAMMATIC = cuda.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION


class GpuMemory:
    """Memory of a device; see `chain_plan.Memory`."""

    def __init__(self, device: CudaDevice) -> None:
        self._device = device

    def place(self, array: Array) -> Address:
        address = self._device.allocate(array.nbytes)
        self.write(address, array)
        return address

    def write(self, address: Address, array: Array) -> None:
        self._device.upload(address, np.ascontiguousarray(array))

    def read(self, address: Address, shape: tuple[int, ...], dtype: Any) -> Array:
        array = np.empty(shape, dtype)
        self._device.download(array, address)
        self._device.synchronize()
        return array


class Kernels:
    """chain.cu compiled for a device, or emulated by the driver in host memory.

    Args:
        device: whose stream.
        constants: the sizes.

    Raises:
        RuntimeError: the compilers or the emulator are missing, or a compiler failed.
    """

    def __init__(self, device: CudaDevice, constants: Mapping[str, int | float]) -> None:
        self._device = device
        self._functions: dict[str, Any] = {}
        device.activate()
        major, minor = device.gpu.compute_capability.split(".")
        image = emulated(constants) if is_rehearsal() else cubin_of(constants, int(major + minor))
        self._module = _first(cuda.cuModuleLoadData(image))

    def enqueue(self, launches: Sequence[Launch], *, programmatic: bool = False) -> None:
        """Launch all kernels; `programmatic`: each may begin before the one before has ended, and waits itself."""
        for launch in launches:
            if launch.kernel not in self._functions:
                name = launch.kernel.encode()
                self._functions[launch.kernel] = _first(cuda.cuModuleGetFunction(self._module, name))
            config = cuda.CUlaunchConfig()
            config.gridDimX, config.gridDimY, config.gridDimZ = launch.blocks, 1, 1
            config.blockDimX, config.blockDimY, config.blockDimZ = 256, 1, 1
            config.hStream = self._device.stream
            if programmatic:
                attribute = cuda.CUlaunchAttribute()
                attribute.id = _PROGRAMMATIC
                attribute.value.programmaticStreamSerializationAllowed = 1
                config.attrs, config.numAttrs = [attribute], 1
            arguments = (ctypes.c_void_p * 1)(ctypes.addressof(launch.arguments))
            function = self._functions[launch.kernel]
            _first(cuda.cuLaunchKernelEx(config, function, ctypes.addressof(arguments), 0))


def _first(values: tuple[Any, ...]) -> Any:
    """The first result of a call of the driver."""
    error, *results = values
    if error != cuda.CUresult.CUDA_SUCCESS:
        raise EngineError(f"CUDA failed with the chain of kernels: {error.name}")
    return results[0] if results else None


def is_rehearsal() -> bool:
    """Return whether the driver is the one in host memory, which emulates kernels."""
    return os.environ.get("TXPORT_GPU_REHEARSAL") == "1"


def emulated(constants: Mapping[str, int | float]) -> bytes:
    """Return the "module" that the driver in host memory runs: a library and sizes.

    Raises:
        RuntimeError: the emulator is missing.
    """
    if reason := missing():
        raise RuntimeError(reason)
    return f"{build_emulator(Path(_folder().name))}\n{sizes_text(constants)}".encode() + b"\0"


@functools.cache
def _folder() -> "tempfile.TemporaryDirectory[str]":
    """A folder for the emulator, until the process ends."""
    return tempfile.TemporaryDirectory(prefix="txport-chain-")


def microseconds(prepare: Callable[[], object], run: Callable[[], object], steps: int, repeats: int) -> float:
    """Return the median time of a step. `run` waits for its steps; its first time does not count."""
    times = []
    for _ in range(repeats + 1):
        prepare()
        start = time.perf_counter()
        run()
        times.append((time.perf_counter() - start) * 1e6 / steps)
    return statistics.median(times[1:])


def verdict(chain: Mapping[int, float], other: Mapping[int, float]) -> str:
    """Return whether to build the chain into txport.

    Args:
        chain: microseconds of a step, by rows.
        other: the same of ONNX Runtime.
    """
    ratios = {rows: other[rows] / chain[rows] for rows in REQUIRED}
    shown = ", ".join(f"{ratio:.2f} times ONNX Runtime at batch {rows}" for rows, ratio in ratios.items())
    if not (ratios[1] >= REQUIRED[1] and ratios[8] > REQUIRED[8]):
        return f"drop the chain of kernels: {shown}; at least 1.6 and more than 1 are required"
    return f"build the chain of kernels: {shown}"


def decode_on_gpu() -> list[list[float]]:
    """Decode the small models on the GPU."""
    device = CudaDevice()
    kernels: dict[str, Kernels] = {}

    def run(chain: Chain, _step: int) -> None:
        key = json.dumps(chain.constants)
        if key not in kernels:
            kernels[key] = Kernels(device, chain.constants)
        kernels[key].enqueue(chain.launches)

    return decode_small_models(run, GpuMemory(device))


if __name__ == "__main__":
    print(json.dumps(decode_on_gpu()))
