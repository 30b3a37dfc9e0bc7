"""The device layer on CUDA's driver, over one in host memory.

`test_cuda.py` runs this file in processes of its own whose libcuda.so.1 is tests/cpp/cuda_driver.cpp; its name keeps it
out of every other run. What a real GPU can show is in `tests/gpu`.
"""

import ctypes
import functools
import gc
import os
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from device_engines import (
    any_request,
    check_any_thread,
    check_copies,
    check_threads,
    expected,
    ids_of,
    manifest_of,
    sources,
    step_of,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from memory_device import HashProgram
from moved_rows import LIMITS, SOURCES, WALK, Turn, after, check_moves
from ort_over_device import check_like_host
from tensorrt_programs import open_program, trt_engine
from txport.runtime.device.device import Buffer
from txport.runtime.device.engine import DeviceEngine
from txport.runtime.errors import EngineError
from txport.runtime.greedy import Request, stream

cuda = pytest.importorskip("txport.runtime.device.cuda", reason="needs cuda-python: pip install 'txport[trt]'")

KIND = os.environ.get("TXPORT_TEST_CUDA", "")
lazy = pytest.mark.skipif(KIND != "lazy", reason="needs the driver in host memory, as late as may be")
eager = pytest.mark.skipif(KIND != "eager", reason="needs the driver in host memory, at once")


def test_copies_clearing_and_capture_do_what_they_say() -> None:
    check_copies(cuda.CudaDevice())


def test_any_thread_may_use_a_device() -> None:
    check_any_thread(cuda.CudaDevice())


class HostDevice(cuda.CudaDevice):  # type: ignore[misc,name-defined]
    """A device whose memory this process can see, for a model that computes in it, in the order of the stream."""

    CALLBACK = ctypes.CFUNCTYPE(None, ctypes.c_void_p)

    def __init__(self) -> None:
        super().__init__()
        self._callbacks: list[Any] = []
        self.faults: list[BaseException] = []

    def enqueue(self, work: Callable[[], None]) -> None:
        def call(_: object) -> None:
            try:
                work()
            except BaseException as fault:  # nothing may leave a callback of C
                self.faults.append(fault)

        self._callbacks.append(self.CALLBACK(call))  # stays: what was captured is called again and again
        launch = ctypes.CDLL("libcuda.so.1").cuLaunchHostFunc
        assert launch(ctypes.c_void_p(self.stream), self._callbacks[-1], None) == 0

    def synchronize(self) -> None:
        super().synchronize()
        assert self.faults == []

    @staticmethod
    def view(address: int, size: int) -> npt.NDArray[np.uint8]:
        return np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(address))


def engine_of(poll: int = 4) -> tuple[DeviceEngine, HashProgram]:
    device, manifest = HostDevice(), manifest_of()
    program = HashProgram(device, manifest, step_of(manifest), (1, 4), (32, 100))  # type: ignore[arg-type]
    return DeviceEngine(device, manifest, program, poll), program


@lazy
@settings(max_examples=25, deadline=None)
@given(st.lists(any_request(), min_size=1, max_size=8), st.sampled_from([1, 4, 7]))
def test_any_batch_gives_what_each_sentence_gives_alone(requests: list[Request], poll: int) -> None:
    engine, program = engine_of(poll)
    wanted = expected(requests)
    assert ids_of(engine, requests) == wanted
    assert ids_of(engine, requests) == wanted, "buffers that are used again hold nothing of before"
    assert program.launched, "the model ran"


@lazy
@settings(max_examples=25, deadline=None)
@given(SOURCES, LIMITS, WALK)
def test_rows_move_and_repeat(sources: list[list[int]], limits: list[int], walk: list[Turn]) -> None:
    check_moves(engine_of()[0], sources, limits[: len(sources)], walk, after)


@lazy
def test_engines_of_tensorrt_run_over_it(tmp_path: Path) -> None:
    engine = trt_engine(*open_program(tmp_path, HostDevice()))
    requests = sources(6, 90)
    assert ids_of(engine, requests) == expected(requests)
    assert [token.id for token in stream(engine, requests[0])] == expected(requests)[0]


@lazy
def test_threads_share_an_engine() -> None:
    check_threads(engine_of()[0])


@lazy
def test_nothing_is_left_when_an_engine_is_gone() -> None:
    driver = ctypes.CDLL("libcuda.so.1")

    def run() -> int:
        engine, _ = engine_of()
        ids_of(engine, sources(6, 90))
        del engine
        gc.collect()
        return int(driver.txport_test_cuda_left())

    left = run()
    assert [run() for _ in range(3)] == [left] * 3


@lazy
def test_page_locked_memory_goes_after_the_copies_to_it() -> None:
    device = cuda.CudaDevice()
    address, used = device.allocate(1 << 16), device.create_event()
    found = device.host_buffer(1 << 16, used)
    device.download(found, address)
    used.record()
    freed = weakref.ref(found)
    del found, used
    gc.collect()
    assert freed() is None
    device.synchronize()  # raises, and from then on always, if a copy found that its memory is gone
    device.fill(Buffer(address), 7, 1 << 16)
    later = np.zeros(1 << 16, np.uint8)
    device.download(later, address)
    device.synchronize()
    assert (later == 7).all()


@lazy
def test_what_cannot_be_captured_is_said_and_the_stream_goes_on() -> None:
    device = cuda.CudaDevice()
    address = device.allocate(256)
    with pytest.raises(EngineError, match=r"cuEventSynchronize.*STREAM_CAPTURE_UNSUPPORTED"):
        device.capture(device.synchronize)
    with pytest.raises(EngineError, match=r"cuMemAlloc.*STREAM_CAPTURE_UNSUPPORTED"):
        device.capture(functools.partial(device.allocate, 10))
    found = np.ones(256, np.uint8)
    device.fill(Buffer(address), 0, 256)
    device.download(found, address)
    device.synchronize()
    assert not found.any()


@lazy
def test_other_threads_may_allocate_during_a_capture() -> None:
    """Those of another translator, or of another library."""
    device, other = cuda.CudaDevice(), cuda.CudaDevice()
    address = device.allocate(256)

    def enqueue() -> None:
        device.fill(Buffer(address), 7, 256)
        thread = threading.Thread(target=check_copies, args=(other,))
        thread.start()
        thread.join()

    device.capture(enqueue)()
    found = np.zeros(256, np.uint8)
    device.download(found, address)
    device.synchronize()
    assert (found == 7).all()


@lazy
def test_the_nodes_of_what_is_captured_are_counted() -> None:
    device = HostDevice()
    address = device.allocate(256)
    pinned, pageable = device.host_buffer(256, device.create_event()), np.zeros(256, np.uint8)

    def enqueue() -> None:
        device.fill(Buffer(address), 0, 256)
        device.copy(Buffer(address), Buffer(address + 128), 64)
        device.copy(Buffer(address, 16), Buffer(address + 128, 16), 16, 4)
        device.upload(address, pinned)
        device.download(pageable, address)
        device.upload(address, pageable)
        device.enqueue(lambda: None)

    device.capture(enqueue)  # nobody asks
    device.graphs = []
    device.capture(enqueue)
    device.capture(lambda: None)
    assert device.graphs == [{"memset": 1, "memcpy": 3, "pageable memcpy": 2, "host": 1}, {}]


@lazy
def test_what_was_captured_until_an_error_is_let_go() -> None:
    driver, device = ctypes.CDLL("libcuda.so.1"), cuda.CudaDevice()
    address = device.allocate(256)
    left = driver.txport_test_cuda_left()

    def enqueue() -> None:
        device.fill(Buffer(address), 0, 256)
        raise EngineError("the library failed")

    with pytest.raises(EngineError, match="the library failed"):
        device.capture(enqueue)
    assert driver.txport_test_cuda_left() == left
    device.synchronize()


@lazy
def test_garbage_with_memory_of_the_device_does_not_disturb_a_capture() -> None:
    device, dropped = cuda.CudaDevice(), cuda.CudaDevice()
    address, thresholds = device.allocate(256), gc.get_threshold()
    dropped.allocate(256)
    dropped.itself = dropped
    gone = weakref.ref(dropped)
    del dropped

    def enqueue() -> None:
        gc.set_threshold(1, 1, 1)  # as often as can be
        device.fill(Buffer(address), 1, 256, len([[] for _ in range(100)]) // 100)
        assert gone() is not None, "it went while the stream was captured"

    try:
        replay = device.capture(enqueue)
    finally:
        gc.set_threshold(*thresholds)
    assert gc.isenabled()
    gc.collect()
    assert gone() is None
    replay()
    found = np.zeros(256, np.uint8)
    device.download(found, address)
    device.synchronize()
    assert found.all()


@eager
@pytest.mark.parametrize("lowering", ["ort", "scatter", "tensorscatter"])
def test_a_real_bundle_gives_the_ids_of_the_host_engine(bundle: Path, lowering: str) -> None:
    check_like_host(cuda.CudaDevice(), bundle, lowering)


@lazy
def test_a_wild_address_breaks_the_device_for_good() -> None:
    """The last test: the driver of this process is of no use afterwards, as with CUDA."""
    engine, _ = engine_of()
    assert ids_of(engine, sources(2, 5)) == expected(sources(2, 5))
    device = engine.device
    device.copy(Buffer(64), Buffer(128), 32)
    with pytest.raises(EngineError, match=r"CUDA failed in cu\w+: .*ILLEGAL_ADDRESS"):
        ids_of(engine, sources(2, 5))
    with pytest.raises(EngineError, match=r"failed before .*ILLEGAL_ADDRESS.* create the Translator again"):
        ids_of(engine, sources(2, 5))
