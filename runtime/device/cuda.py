"""The device layer over CUDA's driver, with cuda-python. Errors name the failed call and its reason.

It uses the device's primary context, like CUDA's runtime, TensorRT and ONNX Runtime.
"""

import ctypes
import functools
import gc
import itertools
import os
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Any

import numpy as np
import numpy.typing as npt
from cuda.bindings import driver as cuda
from txport.runtime.device.device import Buffer, Event
from txport.runtime.device.gpu import usable_gpu
from txport.runtime.errors import EngineError, ResourceError

_FIRST = 0  # the device that is used; CUDA_VISIBLE_DEVICES chooses another
_NON_BLOCKING = cuda.CUstream_flags.CU_STREAM_NON_BLOCKING
_NO_TIMING = cuda.CUevent_flags.CU_EVENT_DISABLE_TIMING
_THREAD_LOCAL = cuda.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
_DEVICE = cuda.CUmemorytype.CU_MEMORYTYPE_DEVICE
_HOST = cuda.CUmemorytype.CU_MEMORYTYPE_HOST
_UNIFIED = cuda.CUmemorytype.CU_MEMORYTYPE_UNIFIED
_MEMORY_TYPE = cuda.CUpointer_attribute.CU_POINTER_ATTRIBUTE_MEMORY_TYPE
_SUCCESS = cuda.CUresult.CUDA_SUCCESS
_OUT_OF_MEMORY = cuda.CUresult.CUDA_ERROR_OUT_OF_MEMORY
_INVALID_VALUE = cuda.CUresult.CUDA_ERROR_INVALID_VALUE
# A library's allocations in a capture are part of the graph; without this flag, a second replay would be refused.
_FREES_ON_LAUNCH = cuda.CUgraphInstantiate_flags.CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH


class CudaDevice:
    """Device 0 and a stream of its own; see `txport.runtime.device.device.Device`. Its memory goes with it.

    Raises:
        MissingLibrary: there is no GPU, or its driver is missing or too old.
    """

    def __init__(self) -> None:
        self.gpu = usable_gpu("CUDA")
        self._stream = _call_checked("cuStreamCreate", _NON_BLOCKING)
        self._end = _Event(self._stream)
        self.stream = int(self._stream)
        self._allocated: set[int] = set()
        self.graphs: list[Counter[str]] | None = None  # if it is a list, the nodes of each new capture are appended
        _destroy_with(self, cuda.cuStreamDestroy, self._stream)
        weakref.finalize(self, _destroy_all, cuda.cuMemFree, self._allocated).atexit = False

    def activate(self) -> None:
        _use_context()

    def allocate(self, size: int) -> int:
        _use_context()
        error, address = cuda.cuMemAlloc(size)
        if error == _OUT_OF_MEMORY:
            raise ResourceError(f"the GPU has no room for {size} bytes")
        _check("cuMemAlloc", error)
        self._allocated.add(int(address))
        return int(address)

    def free(self, address: int) -> None:
        self._allocated.remove(address)
        _call_checked("cuMemFree", address)

    def free_memory(self) -> int:
        _use_context()
        error, free, _total = cuda.cuMemGetInfo()
        _check("cuMemGetInfo", error)
        return int(free)

    def create_event(self) -> "_Event":
        return _Event(self._stream)

    def host_buffer(self, size: int, last_use: Event) -> npt.NDArray[Any]:
        address = int(_call_checked("cuMemHostAlloc", size, 0))
        memory = (ctypes.c_uint8 * size).from_address(address)
        _destroy_with(memory, functools.partial(_free_host, last_use), address)
        return np.ctypeslib.as_array(memory)

    def upload(self, address: int, array: npt.NDArray[Any]) -> None:
        _call_checked("cuMemcpyHtoDAsync", address, array.ctypes.data, array.nbytes, self._stream)

    def download(self, array: npt.NDArray[Any], address: int) -> None:
        _call_checked("cuMemcpyDtoHAsync", array.ctypes.data, address, array.nbytes, self._stream)

    def copy(self, target: Buffer, source: Buffer, width: int, rows: int = 1, planes: int = 1) -> None:
        if planes > 1:
            volume = _between(cuda.CUDA_MEMCPY3D(), target, source, width, rows)
            volume.Depth = planes
            volume.srcHeight = source.plane // source.row
            volume.dstHeight = target.plane // target.row
            is_copied = _call_if_supported("cuMemcpy3DAsync", volume, self._stream)
        elif rows > 1:
            area = _between(cuda.CUDA_MEMCPY2D(), target, source, width, rows)
            is_copied = _call_if_supported("cuMemcpy2DAsync", area, self._stream)
        else:
            is_copied = False
        for plane, row in () if is_copied else itertools.product(range(planes), range(rows)):
            ends = (block.address + plane * block.plane + row * block.row for block in (target, source))
            _call_checked("cuMemcpyDtoDAsync", *ends, width, self._stream)

    def fill(self, target: Buffer, value: int, width: int, rows: int = 1) -> None:
        area = target.address, target.row, value, width, rows
        if rows > 1 and _call_if_supported("cuMemsetD2D8Async", *area, self._stream):
            return
        for row in range(rows):
            _call_checked("cuMemsetD8Async", target.address + row * target.row, value, width, self._stream)

    def synchronize(self) -> None:
        self._end.record()
        self._end.synchronize()

    def capture(self, enqueue: Callable[[], None]) -> Callable[[], None]:
        with _NO_COLLECTION:
            _call_checked("cuStreamBeginCapture", self._stream, _THREAD_LOCAL)
            try:
                enqueue()
            except BaseException:
                error, graph = cuda.cuStreamEndCapture(self._stream)
                if error == _SUCCESS:
                    cuda.cuGraphDestroy(graph)
                _forget_errors()
                raise
            graph = _call_checked("cuStreamEndCapture", self._stream)
        try:
            if self.graphs is not None:
                self.graphs.append(Counter(_kinds(graph)))
            runnable = _call_checked("cuGraphInstantiate", graph, _FREES_ON_LAUNCH)
        finally:
            cuda.cuGraphDestroy(graph)
        return _Replay(runnable, self._stream, enqueue)


def _forget_errors() -> None:
    """Clear the last error of this thread in CUDA's runtime.

    A launch that a spoilt capture refused leaves one there, and ONNX Runtime takes it for the next operator's.
    """
    _, version = cuda.cuDriverGetVersion()
    for generation in range(11, version // 1000 + 1):
        with suppress(OSError):  # it is not loaded
            ctypes.CDLL(f"libcudart.so.{generation}", mode=os.RTLD_NOLOAD | os.RTLD_LAZY).cudaGetLastError()


class _Event:
    """An event of the stream; see `txport.runtime.device.device.Event`."""

    def __init__(self, stream: Any) -> None:
        self._stream, self._event = stream, _call_checked("cuEventCreate", _NO_TIMING)
        _destroy_with(self, cuda.cuEventDestroy, self._event)

    def record(self) -> None:
        _call_checked("cuEventRecord", self._event, self._stream)

    def synchronize(self) -> None:
        _call_checked("cuEventSynchronize", self._event)


class _NoCollection:
    """Pause of Python's garbage collector while any thread captures.

    It runs in any thread that allocates. If it freed memory of an unused engine there, of txport or ONNX Runtime, that
    would invalidate the capture (CUDA driver API, cuThreadExchangeStreamCaptureMode: potentially unsafe calls).
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._captures = 0
        self._was_enabled = False

    def __enter__(self) -> None:
        with self._lock:
            if self._captures == 0:
                self._was_enabled = gc.isenabled()
                gc.disable()
            self._captures += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._captures -= 1
            if self._captures == 0 and self._was_enabled:
                gc.enable()


_NO_COLLECTION = _NoCollection()


class _Replay:
    """Captured graph. It keeps `enqueue` alive, because the captured work may use its memory."""

    def __init__(self, runnable: Any, stream: Any, enqueue: Callable[[], None]) -> None:
        self._runnable = runnable
        self._stream = stream
        self._enqueue = enqueue
        _destroy_with(self, cuda.cuGraphExecDestroy, runnable)

    def __call__(self) -> None:
        _use_context()
        (error,) = cuda.cuGraphLaunch(self._runnable, self._stream)
        if error != _SUCCESS:
            _check("cuGraphLaunch", error)


def _kinds(graph: Any) -> Iterator[str]:
    """Return the kind of each node of a captured graph and its subgraphs, such as "kernel", "memcpy" or "host".

    A copy from or to host memory that is not page-locked is "pageable memcpy": every replay accesses that address, even
    if the memory has been reused.
    """
    _, count = _all_checked("cuGraphGetNodes", graph)
    nodes, _ = _all_checked("cuGraphGetNodes", graph, count)
    for node in nodes or ():
        kind = _call_checked("cuGraphNodeGetType", node).name.removeprefix("CU_GRAPH_NODE_TYPE_").lower()
        if kind == "graph":
            yield from _kinds(_call_checked("cuGraphChildGraphNodeGetGraph", node))
            continue
        yield "pageable memcpy" if kind == "memcpy" and _is_pageable(node) else kind


def _is_pageable(node: Any) -> bool:
    """Return whether an end of a copy is in memory that is not registered with the driver."""
    copy = _call_checked("cuGraphMemcpyNodeGetParams", node)
    ends = (copy.srcMemoryType, copy.srcHost, copy.srcDevice), (copy.dstMemoryType, copy.dstHost, copy.dstDevice)
    for kind, host, unified in ends:
        if kind == _HOST:
            address = host
        elif kind == _UNIFIED:
            address = unified
        else:
            address = None
        if address is not None and cuda.cuPointerGetAttribute(_MEMORY_TYPE, int(address))[0] != _SUCCESS:
            return True
    return False


def _between(region: Any, target: Buffer, source: Buffer, width: int, rows: int) -> Any:
    """Describe `rows` of `width` bytes in the driver's structure, whose fields have the same names in 2D and 3D."""
    region.srcMemoryType = region.dstMemoryType = _DEVICE
    region.srcDevice = source.address
    region.srcPitch = source.row
    region.dstDevice = target.address
    region.dstPitch = target.row
    region.WidthInBytes = width
    region.Height = rows
    return region


def _destroy_with(owner: Any, destroy: Callable[[Any], Any], handle: Any) -> None:
    """Destroy a handle of the driver's with its owner; at the end of the process the driver frees everything itself."""
    weakref.finalize(owner, _destroy_all, destroy, [handle]).atexit = False


def _destroy_all(destroy: Callable[[Any], Any], handles: Iterable[Any]) -> None:
    """Destroy handles, ignoring failures: after a fault the driver refuses every call, and no caller could help."""
    cuda.cuCtxSetCurrent(_primary_context())
    for handle in handles:
        destroy(handle)


def _free_host(last_use: Event, address: int) -> None:
    """Free page-locked memory after waiting for copies, since CUDA does not guarantee that freeing waits for them."""
    with suppress(EngineError):  # a failed device does no work
        last_use.synchronize()
    cuda.cuMemFreeHost(address)


@functools.cache
def _primary_context() -> Any:
    """Return the primary context, never released: TensorRT and ONNX Runtime may use it until the process ends."""
    _check("cuInit", *cuda.cuInit(0))
    error, device = cuda.cuDeviceGet(_FIRST)
    _check("cuDeviceGet", error)
    error, context = cuda.cuDevicePrimaryCtxRetain(device)
    _check("cuDevicePrimaryCtxRetain", error)
    return context


@functools.cache
def _context_process() -> int:
    """Return the process that uses CUDA, which does not survive a fork."""
    return os.getpid()


def _use_context() -> None:
    """Make the primary context current: contexts are per thread, and other libraries may have set another one."""
    if os.getpid() != _context_process():
        raise EngineError("this process was forked after the GPU was used: start it by spawn instead")
    _check("cuCtxSetCurrent", *cuda.cuCtxSetCurrent(_primary_context()))


def _call_checked(name: str, *arguments: Any) -> Any:
    """Call a function of the driver and return its first value, if it has one."""
    values = _all_checked(name, *arguments)
    if values:
        return values[0]
    return None


def _all_checked(name: str, *arguments: Any) -> list[Any]:
    """Call a function of the driver and return its values."""
    _use_context()
    error, *values = getattr(cuda, name)(*arguments)
    _check(name, error)
    return list(values)


def _call_if_supported(name: str, *arguments: Any) -> bool:
    """Call a function that copies or fills several rows; return False if the driver refuses their pitches.

    It guarantees pitches of cuMemAllocPitch only, up to 2^31 - 1 bytes. Ours follow from the tensors of libraries.
    """
    _use_context()
    (error,) = getattr(cuda, name)(*arguments)
    if error != _INVALID_VALUE:
        _check(name, error)
    return bool(error == _SUCCESS)


def _check(name: str, error: Any) -> None:
    if error != _SUCCESS:
        _, text = cuda.cuGetErrorString(error)
        message = f"CUDA failed in {name}: {(text or b'no reason').decode()} ({error.name})"
        if error == _OUT_OF_MEMORY:
            raise ResourceError(message)
        raise EngineError(message)
