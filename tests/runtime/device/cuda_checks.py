"""The device layer on CUDA's driver, over one in host memory.

`test_cuda.py` runs this file in processes of its own whose libcuda.so.1 is tests/cpp/cuda_driver.cpp; its name keeps it
out of every other run. What a real GPU can show is in `tests/gpu`.
"""

import ctypes
import functools
import gc
import os
import select
import signal
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
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
from txport.runtime.device.gpu import pci_bus_id
from txport.runtime.errors import EngineError, ResourceError
from txport.runtime.search.decoding import stream
from txport.runtime.search.requests import Request

cuda = pytest.importorskip("txport.runtime.device.cuda", reason="needs cuda-python: pip install 'txport[trt]'")

KIND = os.environ.get("TXPORT_TEST_CUDA", "")
lazy = pytest.mark.skipif(KIND != "lazy", reason="needs the driver in host memory, as late as may be")
eager = pytest.mark.skipif(KIND != "eager", reason="needs the driver in host memory, at once")


@contextmanager
def driver_that(**wanted: tuple[Any, ...]) -> Iterator[None]:
    """The driver in host memory with what `txport_test_cuda_*` of it are told; afterwards it is as before."""
    library = ctypes.CDLL("libcuda.so.1")
    neutral = {"pitches": (1 << 20, 1), "take": (0,), "fail": ()}

    def tell(what: str, values: tuple[Any, ...]) -> None:
        kinds = [ctypes.c_char_p if isinstance(value, bytes) else ctypes.c_size_t for value in values]
        getattr(library, f"txport_test_cuda_{what}")(*(kind(value) for kind, value in zip(kinds, values, strict=True)))

    for what, values in wanted.items():
        tell(what, values)
    try:
        yield
    finally:
        for what in wanted:
            if neutral[what]:
                tell(what, neutral[what])
        library.txport_test_cuda_recover()


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
        self.capturing: object = None
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

    def capture(self, enqueue: Callable[[], None]) -> Callable[[], None]:
        self.capturing = enqueue
        try:
            return super().capture(enqueue)  # type: ignore[no-any-return]
        finally:
            self.capturing = None

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
def test_a_step_that_is_not_captured_runs_in_the_context_of_its_device(tmp_path: Path) -> None:
    """PyTorch leaves a thread at the context of the GPU that it used last."""
    program, library = open_program(tmp_path, HostDevice())
    program.captures = False
    engine = trt_engine(program, library)
    state = engine.allocate(1, 4, 32)
    state.place([0], engine.encode(np.array([[4, 5, 3]]), np.array([3])), [0], [9])
    ctypes.CDLL("libcuda.so.1").cuCtxSetCurrent(None)
    state.step()
    assert state.read().token_ids.shape == (1, 1)


@lazy
def test_a_process_that_was_forked_says_so_instead_of_waiting() -> None:
    """Even if another thread used the device meanwhile, whose lock nobody in the new process will release."""
    engine, _ = engine_of()
    assert ids_of(engine, sources(2, 5)) == expected(sources(2, 5))
    locked, done = threading.Event(), threading.Event()

    def use() -> None:
        with engine._pool.working():
            locked.set()
            done.wait()

    thread = threading.Thread(target=use)
    thread.start()
    locked.wait()
    answer, said = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of a fork with threads
        child = os.fork()
    if child == 0:
        try:
            ids_of(engine, sources(2, 5))
        except EngineError as error:
            os.write(said, str(error).encode())
        os._exit(0)
    done.set()
    thread.join()
    ready, _, _ = select.select([answer], [], [], 30)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    assert ready and b"this process was forked after the GPU was used: start it by spawn" in os.read(answer, 1000)
    assert ids_of(engine, sources(2, 5)) == expected(sources(2, 5))


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
def test_rows_are_filled_however_far_they_are_apart() -> None:
    """A plane of the caches of a large batch is more than the driver takes as a pitch: here 1 MiB, on a GPU 2 GiB."""
    device, pitch = cuda.CudaDevice(), (1 << 20) + 256
    address, found = device.allocate(4 * pitch), np.zeros(4 * pitch, np.uint8)
    device.fill(Buffer(address), 1, 4 * pitch)
    device.fill(Buffer(address + 256, pitch), 2, 100, 3)
    device.download(found, address)
    device.synchronize()
    expected = np.ones((4, pitch), np.uint8)
    expected[:3, 256:356] = 2
    assert (found.reshape(4, pitch) == expected).all()


@lazy
def test_what_cannot_be_captured_is_said_and_the_stream_goes_on() -> None:
    device = cuda.CudaDevice()
    address = device.allocate(256)
    with pytest.raises(EngineError, match=r"cuEventSynchronize.*CAPTURED_EVENT"):
        device.capture(device.synchronize)
    with pytest.raises(EngineError, match=r"cuMemAlloc.*STREAM_CAPTURE_UNSUPPORTED"):
        device.capture(functools.partial(device.allocate, 10))
    found = np.ones(256, np.uint8)
    device.fill(Buffer(address), 0, 256)
    device.download(found, address)
    device.synchronize()
    assert not found.any()


@lazy
@pytest.mark.parametrize("pitches", [(1 << 20, 512), (100, 1)], ids=["of cuMemAllocPitch", "small"])
def test_a_driver_may_refuse_pitches(pitches: tuple[int, int]) -> None:
    """As cuda.h says of those that are not cuMemAllocPitch's, and of larger ones than a device's limit."""
    with driver_that(pitches=pitches):
        check_copies(cuda.CudaDevice())
        engine, _ = engine_of()
        assert ids_of(engine, sources(5, 40)) == expected(sources(5, 40))
        check_moves(engine, [[4, 5, 3], [6, 3]], [9, 7], [Turn(2, [], [0, 1, 1], 40, False)], after)


@lazy
def test_an_event_of_a_capture_is_not_waited_for() -> None:
    device = cuda.CudaDevice()
    event = device.create_event()
    device.capture(event.record)
    with pytest.raises(EngineError, match=r"cuEventSynchronize.*CAPTURED_EVENT"):
        event.synchronize()
    event.record()
    event.synchronize()


@lazy
def test_a_capture_that_allocates_is_replayed_all_the_same() -> None:
    """What a library takes in the order of a stream, and does not give back: the next replay frees it."""
    device, library = cuda.CudaDevice(), ctypes.CDLL("libcuda.so.1")
    target = device.allocate(256)

    def enqueue() -> None:
        address = ctypes.c_uint64()
        assert library.cuMemAllocAsync(ctypes.byref(address), ctypes.c_size_t(256), ctypes.c_void_p(device.stream)) == 0
        device.fill(Buffer(address.value), 7, 256)
        device.copy(Buffer(target), Buffer(address.value), 256)

    device.graphs = []
    replay = device.capture(enqueue)
    assert device.graphs == [{"mem_alloc": 1, "memset": 1, "memcpy": 1}]
    for _ in range(3):
        replay()
    found = np.zeros(256, np.uint8)
    device.download(found, target)
    device.synchronize()
    assert (found == 7).all()


@lazy
@pytest.mark.parametrize("code", [214, 700, 719, 999])
@pytest.mark.parametrize("call", ["cuGraphLaunch", "cuEventSynchronize", "cuMemcpyHtoDAsync", "cuMemAlloc"])
def test_a_device_that_is_lost_fails_for_good(call: str, code: int) -> None:
    """Uncorrectable memory, a wild address, a launch that failed, what no driver can name: at any later call."""
    engine, _ = engine_of()
    assert ids_of(engine, sources(2, 5)) == expected(sources(2, 5))
    with driver_that(fail=(call.encode(), code)):
        with pytest.raises(EngineError, match=f"CUDA failed in {call}: "):
            ids_of(engine, sources(4, 90))
        with pytest.raises(EngineError, match=r"the GPU failed before .*: create the Translator again"):
            ids_of(engine, sources(2, 5))
        with pytest.raises(EngineError, match="CUDA failed in cu"):
            engine_of()
        del engine
        gc.collect()
    again, _ = engine_of()
    assert ids_of(again, sources(4, 90)) == expected(sources(4, 90))


@lazy
@pytest.mark.parametrize("call", ["cuGraphLaunch", "cuMemHostAlloc"])
def test_memory_that_runs_out_in_a_call_ends_nothing(call: str) -> None:
    """CUDA loads kernels when they are first launched, and a graph takes memory of its own."""
    engine, _ = engine_of()
    requests = sources(4, 90)
    with driver_that(fail=(call.encode(), 2)):
        if call == "cuGraphLaunch":
            with pytest.raises(ResourceError, match=r"CUDA failed in cuGraphLaunch: .*OUT_OF_MEMORY"):
                ids_of(engine, requests)
        assert ids_of(engine, requests) == expected(requests)


@lazy
def test_a_graph_without_room_has_it_when_what_is_idle_is_freed() -> None:
    engine, _ = engine_of()
    assert ids_of(engine, sources(1, 5)) == expected(sources(1, 5))
    before = engine.device.free_memory()
    with driver_that(fail=(b"cuGraphInstantiateWithFlags", 2)):
        assert ids_of(engine, sources(4, 90)) == expected(sources(4, 90))
    assert engine.captured and engine.device.free_memory() < before


@lazy
def test_a_graph_that_is_refused_once_is_captured_the_next_time(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    program, library = open_program(tmp_path, HostDevice())
    engine = trt_engine(program, library)
    with driver_that(fail=(b"cuGraphInstantiateWithFlags", 801)):
        assert ids_of(engine, sources(4, 20)) == expected(sources(4, 20))
    assert engine.captured and "launched one by one" not in caplog.text


@lazy
def test_another_process_may_take_memory_that_was_free_a_moment_ago() -> None:
    device = cuda.CudaDevice()
    with driver_that(take=(3 << 29,)):
        free = device.free_memory()
        with pytest.raises(ResourceError, match=f"the GPU has no room for {free} bytes"):
            device.allocate(free)
    engine, _ = engine_of()
    with driver_that(take=(1 << 31,)):
        engine.device.free_memory()
        with pytest.raises(ResourceError, match=r"the GPU has no room for .* would fit|encoder output"):
            ids_of(engine, sources(4, 90))
    assert ids_of(engine, sources(4, 90)) == expected(sources(4, 90)), "it has ended"


def test_where_the_gpu_is_on_the_bus() -> None:
    assert pci_bus_id() == "0000:3b:00.0"


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
