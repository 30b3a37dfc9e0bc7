"""The device layer on CUDA's runtime, by cuda-python. `DeviceError` says which call failed and why."""

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
from cuda.bindings import runtime as cuda
from txport.runtime.device import Block
from txport.runtime.errors import DeviceError, InputError, OutOfMemory
from txport.runtime.gpu import find_gpu

_FIRST = 0  # the device that is used; CUDA_VISIBLE_DEVICES chooses another
_THREAD_LOCAL = cuda.cudaStreamCaptureMode.cudaStreamCaptureModeThreadLocal
_ON_DEVICE = cuda.cudaMemcpyKind.cudaMemcpyDeviceToDevice
_UP = cuda.cudaMemcpyKind.cudaMemcpyHostToDevice
_DOWN = cuda.cudaMemcpyKind.cudaMemcpyDeviceToHost


class CudaDevice:
    """Device 0 and a stream of its own; see `txport.runtime.device.Device`.

    Raises:
        InputError: there is no GPU, or its driver is missing or too old.
    """

    def __init__(self) -> None:
        if isinstance(gpu := find_gpu(), str):
            raise InputError(f"CUDA cannot be used here: {gpu}; use --device cpu")
        self.gpu = gpu
        error, *_ = cuda.cudaSetDevice(_FIRST)
        if error == cuda.cudaError_t.cudaErrorInsufficientDriver:
            _, version = cuda.cudaRuntimeGetVersion()
            raise InputError(
                f"the NVIDIA driver supports CUDA {gpu.driver} only, which is too old for this cuda-bindings "
                f"({version // 1000}.{version % 1000 // 10}): update the driver, or install cuda-bindings {gpu.driver}"
            )
        _check("cudaSetDevice", error)
        self._stream = _checked("cudaStreamCreateWithFlags", cuda.cudaStreamNonBlocking)
        self._event = _checked("cudaEventCreateWithFlags", cuda.cudaEventDisableTiming)
        self.stream = int(self._stream)

    def allocate(self, size: int) -> int:
        error, address = cuda.cudaMalloc(size)
        if error == cuda.cudaError_t.cudaErrorMemoryAllocation:
            cuda.cudaGetLastError()  # it is not one that lasts
            raise OutOfMemory(f"the GPU has no room for {size} bytes")
        _check("cudaMalloc", error)
        return int(address)

    def free(self, address: int) -> None:
        _checked("cudaFree", address)

    def free_memory(self) -> int:
        error, free, _total = cuda.cudaMemGetInfo()
        _check("cudaMemGetInfo", error)
        return int(free)

    def host_buffer(self, size: int) -> npt.NDArray[Any]:
        address = int(_checked("cudaHostAlloc", size, cuda.cudaHostAllocDefault))
        return np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(address))

    def upload(self, address: int, array: npt.NDArray[Any]) -> None:
        _checked("cudaMemcpyAsync", address, array.ctypes.data, array.nbytes, _UP, self._stream)

    def download(self, array: npt.NDArray[Any], address: int) -> None:
        _checked("cudaMemcpyAsync", array.ctypes.data, address, array.nbytes, _DOWN, self._stream)

    def copy(self, target: Block, source: Block, width: int, rows: int = 1, planes: int = 1) -> None:
        if planes > 1:
            given = cuda.cudaMemcpy3DParms()
            given.srcPtr = cuda.make_cudaPitchedPtr(source.address, source.row, width, source.plane // source.row)
            given.dstPtr = cuda.make_cudaPitchedPtr(target.address, target.row, width, target.plane // target.row)
            given.extent = cuda.make_cudaExtent(width, rows, planes)
            given.kind = _ON_DEVICE
            _checked("cudaMemcpy3DAsync", given, self._stream)
        elif rows > 1:
            place = target.address, target.row, source.address, source.row
            _checked("cudaMemcpy2DAsync", *place, width, rows, _ON_DEVICE, self._stream)
        else:
            _checked("cudaMemcpyAsync", target.address, source.address, width, _ON_DEVICE, self._stream)

    def clear(self, target: Block, width: int, rows: int = 1) -> None:
        _checked("cudaMemset2DAsync", target.address, max(target.row, width), 0, width, rows, self._stream)

    def synchronize(self) -> None:
        _checked("cudaEventRecord", self._event, self._stream)
        _checked("cudaEventSynchronize", self._event)

    def capture(self, enqueue: Callable[[], None]) -> Callable[[], None]:
        _checked("cudaStreamBeginCapture", self._stream, _THREAD_LOCAL)
        try:
            enqueue()
        finally:
            error, graph = cuda.cudaStreamEndCapture(self._stream)
        _check("cudaStreamEndCapture", error)
        runnable = _checked("cudaGraphInstantiate", graph, 0)
        _checked("cudaGraphDestroy", graph)
        stream, launch, success = self._stream, cuda.cudaGraphLaunch, cuda.cudaError_t.cudaSuccess

        def replay() -> None:
            (error,) = launch(runnable, stream)
            if error != success:
                _check("cudaGraphLaunch", error)

        return replay


def _checked(name: str, *arguments: Any) -> Any:
    """Call a function of CUDA's runtime; what it gives besides its error."""
    error, *values = getattr(cuda, name)(*arguments)
    _check(name, error)
    return values[0] if values else None


def _check(name: str, error: Any) -> None:
    if error != cuda.cudaError_t.cudaSuccess:
        _, text = cuda.cudaGetErrorString(error)
        raise DeviceError(f"CUDA failed in {name}: {text.decode()} ({error.name})")
