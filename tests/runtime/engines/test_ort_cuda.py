"""ONNX Runtime over a device whose memory is the host's."""

import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from memory_device import MemoryDevice
from ort_over_device import check_like_host, golden_requests, over
from toy import BUNDLE, answer
from txport.runtime.bundle.manifest import Manifest
from txport.runtime.bundle.schema import Lowering
from txport.runtime.device.engine import DeviceEngine
from txport.runtime.engines import ort_session
from txport.runtime.engines.ort_cuda import OrtProgram
from txport.runtime.errors import EngineError, MissingLibrary
from txport.runtime.greedy import Request, decode_all


def test_the_toy_answers_what_arithmetic_says() -> None:
    engine = over(MemoryDevice(lazy=False), BUNDLE)
    random = np.random.default_rng(0)
    words = [random.integers(4, 90, size=random.integers(0, 23)).tolist() for _ in range(30)]
    requests = [Request([*word, 3], min_length=i % 3, prefix=word[: i % 2]) for i, word in enumerate(words)]
    for request, result in zip(requests, decode_all(engine, requests), strict=True):
        assert result.ids == answer(request.source_ids, minimum=request.min_length, prefix=request.prefix)[0]


@pytest.mark.parametrize("lowering", ["ort", "scatter", "tensorscatter"])
def test_a_real_bundle_gives_the_ids_of_the_host_engine(bundle: Path, lowering: Lowering) -> None:
    device = MemoryDevice(lazy=False)
    engine, waits = check_like_host(device, bundle, lowering), device.waits
    steps = max(len(result.ids) for result in decode_all(engine, golden_requests(bundle)))
    assert waits < device.waits < waits + 3 * steps


class CapturingDevice(MemoryDevice):
    """What ONNX Runtime enqueues on a stream it computes at once here: a replay does it again."""

    def capture(self, enqueue: Callable[[], None]) -> Callable[[], None]:
        self._check()
        self.captures += 1
        return enqueue


def capturing(device: CapturingDevice) -> tuple[OrtProgram, DeviceEngine]:
    manifest = Manifest.load(BUNDLE)
    program = OrtProgram(BUNDLE, manifest, manifest.lowerings, device, where="cpu")
    program.captured = True
    return program, DeviceEngine(device, manifest, program)


def test_threads_one_after_the_other_share_captured_steps() -> None:
    """Whatever thread captured a step may end, and its identifier be another's: no token may be lost."""
    device = CapturingDevice(lazy=False)
    program, engine = capturing(device)
    words, found = [[5, 6, 7, 3], [8, 9, 3]], []

    def work() -> None:
        found.extend(result.ids for result in decode_all(engine, [Request(word) for word in words]))

    captures = []
    for _ in range(4):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        captures.append(device.captures)
    assert found == [answer(word)[0] for word in words] * 4
    assert program.captured and captures == captures[:1] * 4
    threads = {session.get_session_options().intra_op_num_threads for session in (program._encoder, program._step)}
    assert threads == {1}, "the host only launches kernels"


def test_a_step_that_cannot_be_captured_is_launched_and_a_warning_says_so(caplog: pytest.LogCaptureFixture) -> None:
    class Refusing(CapturingDevice):
        def capture(self, enqueue: Callable[[], None]) -> Callable[[], None]:
            raise EngineError("CUDA failed in cuStreamEndCapture: operation not permitted")

    program, engine = capturing(Refusing(lazy=False))
    (result,) = decode_all(engine, [Request([5, 6, 3])])
    assert result.ids == answer([5, 6, 3])[0] and not program.captured
    assert "without CUDA graphs: CUDA failed in cuStreamEndCapture" in caplog.text


def test_cuda_computes_in_float32_with_the_libraries_of_its_pip_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: list[str] = []
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: [ort_session.CUDA, ort_session.CPU])
    monkeypatch.setattr(onnxruntime, "preload_dlls", lambda directory: loaded.append(directory), raising=False)
    ort_session._load_cuda.cache_clear()
    try:
        assert ort_session.providers_of("cpu") == [ort_session.CPU] and not loaded
        for _ in range(2):
            (name, options), last = ort_session.providers_of("cuda", user_compute_stream="7")
    finally:
        ort_session._load_cuda.cache_clear()
    assert (name, last, loaded) == (ort_session.CUDA, ort_session.CPU, [""])
    assert options["use_tf32"] == "0" and options["user_compute_stream"] == "7"
    assert options["arena_extend_strategy"] == "kSameAsRequested"
    assert "enable_cuda_graph" not in options


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (
            "libcublasLt.so.13: cannot open shared object file: No such file",
            r"libcublasLt\.so\.13 is missing, pip install",
        ),
        ("libcuda.so.1: cannot open shared object file", "check the driver"),
        (None, "check the driver"),
    ],
)
def test_a_provider_that_does_not_start_names_the_library(
    monkeypatch: pytest.MonkeyPatch, fault: str | None, said: str
) -> None:
    """ONNX Runtime goes on with the CPU then, as it does here, where it has no CUDA provider."""

    def load(name: str) -> None:
        if fault is not None:
            raise OSError(fault)

    manifest = Manifest.load(BUNDLE)
    monkeypatch.setattr(ort_session.ctypes, "CDLL", load)
    with pytest.raises(MissingLibrary, match=f"cannot start its CUDA provider: {said}"):
        ort_session.open_session(
            BUNDLE, manifest.encoder, threads=1, providers=[(ort_session.CUDA, {}), ort_session.CPU]
        )
