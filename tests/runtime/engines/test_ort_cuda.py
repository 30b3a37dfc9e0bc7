"""ONNX Runtime over a device whose memory is the host's."""

import gc
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from memory_device import MemoryDevice
from ort_over_device import check_like_host, golden_requests, over
from toy import BUNDLE, answer
from txport.runtime.bundle.manifest import Manifest
from txport.runtime.bundle.schema import Limits, Lowering
from txport.runtime.device.engine import DeviceEngine
from txport.runtime.device.gpu import Gpu
from txport.runtime.engines import cuda_libraries, ort_session
from txport.runtime.engines.choice import _test_run
from txport.runtime.engines.cuda_libraries import load_cuda_libraries
from txport.runtime.engines.ort import OrtEngine
from txport.runtime.engines.ort_cuda import OrtProgram
from txport.runtime.engines.ort_session import refuse_unaligned
from txport.runtime.errors import BundleError, EngineError, MissingLibrary, ResourceError
from txport.runtime.search.decoding import decode_all
from txport.runtime.search.requests import Request

VECTORS = Path(__file__).parents[2] / "data" / "feature_bundle"


def test_the_toy_answers_what_arithmetic_says() -> None:
    engine = over(MemoryDevice(lazy=False), BUNDLE)
    random = np.random.default_rng(0)
    words = [random.integers(4, 90, size=random.integers(0, 23)).tolist() for _ in range(30)]
    requests = [Request([*word, 3], min_length=i % 3, prefix=word[: i % 2]) for i, word in enumerate(words)]
    for request, result in zip(requests, decode_all(engine, requests), strict=True):
        assert result.ids == answer(request.source_ids, minimum=request.min_length, prefix=request.prefix)[0]


@pytest.mark.parametrize("lowering", ["ort", "scatter"])
def test_a_bundle_of_vectors_gives_the_ids_of_the_host_engine(lowering: Lowering) -> None:
    check_like_host(MemoryDevice(lazy=False), VECTORS, lowering)


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
        return lambda: enqueue()


def capturing(device: CapturingDevice, bundle: Path = BUNDLE) -> tuple[OrtProgram, DeviceEngine]:
    manifest = Manifest.load(bundle)
    program = OrtProgram(bundle, manifest, manifest.lowerings, device, provider="cpu")
    program.captures = program.captured = True
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
    first = captures[0]
    assert program.captured and captures == [first, first, first + 1, first + 1], "the encoder's third run besides"
    threads = {session.get_session_options().intra_op_num_threads for session in (program._encoder, program._step)}
    assert threads == {1}, "the host only launches kernels"


def test_runs_of_the_encoder_that_come_often_are_captured() -> None:
    """A replay reads the ids that are there by then; other sizes, and memory elsewhere, are runs of their own."""
    device = CapturingDevice(lazy=False)
    _, engine = capturing(device)
    lengths = np.array([3, 2], np.int64)
    words = np.random.default_rng(0).integers(4, 90, (12, 2, 3))
    captures = []
    for word in words:
        requests = [Request([*row[:length], 3]) for row, length in zip(word.tolist(), lengths.tolist(), strict=True)]
        found = decode_all(engine, requests)
        assert [each.ids for each in found] == [answer(request.source_ids)[0] for request in requests]
        captures.append(device.captures)
    assert captures[2:] == [captures[1] + 1] * 10
    held = [engine.encode(word, lengths) for word in words]  # at once: none in the memory of another
    assert device.captures == captures[-1]
    assert len({each.memory.value for each in held}) == len(held)


def test_captured_runs_of_the_encoder_read_the_vectors_that_are_there() -> None:
    device = CapturingDevice(lazy=False)
    program, engine = capturing(device, VECTORS)
    host = OrtEngine(VECTORS, Manifest.load(VECTORS), ["ort"])
    captures = []
    for array in np.random.default_rng(0).standard_normal((6, 9, 6), np.float32):
        assert decode_all(engine, [Request(array)]) == decode_all(host, [Request(array)])
        captures.append(device.captures)
    assert program.captured and captures[2:] == [captures[1] + 1] * 4


def test_an_engine_that_is_dropped_goes_at_once() -> None:
    """Its memory is the GPU's: it must not wait for Python's collector."""
    program, engine = capturing(CapturingDevice(lazy=False))
    for _ in range(4):
        decode_all(engine, [Request([5, 6, 3])])
    left = weakref.ref(program)
    gc.disable()
    try:
        del program, engine
        assert left() is None
    finally:
        gc.enable()


class Refusing(CapturingDevice):
    """One that refuses the first captures, as CUDA does when the arena of ONNX Runtime allocates in them."""

    def __init__(self, refusals: int) -> None:
        super().__init__(lazy=False)
        self.refusals = refusals

    def capture(self, enqueue: Callable[[], None]) -> Callable[[], None]:
        if self.refusals > 0:
            self.refusals -= 1
            raise ResourceError("ONNX Runtime failed: Failed to allocate memory for requested buffer of size 307200")
        return super().capture(enqueue)


@pytest.mark.parametrize(("refusals", "lost"), [(1, 0), (4, 0), (5, 1), (10, 2)])
def test_a_step_that_cannot_be_captured_is_tried_again_and_others_are_captured(
    refusals: int, lost: int, caplog: pytest.LogCaptureFixture
) -> None:
    words, captures = [[5, 6, 3], [7, 3], [8, 9, 4, 3], [4, 3]], []
    for device in (Refusing(0), Refusing(refusals)):
        _, engine = capturing(device)
        for rows in (1, 2, 4):
            results = decode_all(engine, [Request(word) for word in words], rows=rows)
            assert [result.ids for result in results] == [answer(word)[0] for word in words]
        captures.append(device.captures)
    assert captures[1] == captures[0] - lost > 0 and engine.captured == (lost == 0)
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == min(lost, 1), "once"
    assert all(text.startswith("steps are launched one by one, without CUDA graphs: ONNX Runtime") for text in said)


def test_a_step_that_fails_without_a_capture_too_is_an_error() -> None:
    class Failing(Refusing):
        def synchronize(self) -> None:
            if self.refusals < 2:
                raise EngineError("CUDA failed in cuEventSynchronize: an illegal memory access was encountered")
            super().synchronize()

    _, engine = capturing(Failing(2))
    with pytest.raises(EngineError, match="illegal memory access"):
        decode_all(engine, [Request([5, 6, 3])])


def test_an_engine_of_vectors_is_tried_with_a_vector() -> None:
    engine = over(MemoryDevice(lazy=False), VECTORS)
    assert _test_run(engine) is engine


def test_an_engine_is_tried_before_it_counts_as_opened() -> None:
    """What ONNX Runtime looks for only as it runs, as cuDNN, would else be missed by each sentence."""
    device = CapturingDevice(lazy=False)
    _, engine = capturing(device)
    assert _test_run(engine) is engine
    idle = engine._pool._idle_steps
    tried = list(idle)
    decode_all(engine, [Request([5, 6, 3], 20)])
    assert len(tried) == 1 and idle == tried, "the first sentence uses it"

    program, engine = capturing(CapturingDevice(lazy=False))
    program._step = Failure("RequireCudnnHandle(cudnnHandle_t) NOT_IMPLEMENTED : cuDNN is unavailable", program._step)
    with pytest.raises(MissingLibrary) as caught:
        _test_run(engine)
    assert str(caught.value) == (
        "ONNX Runtime cannot start its CUDA provider: libcudnn.so.9 is missing, pip install "
        "'onnxruntime-gpu[cuda,cudnn]' brings it; or use --device cpu"
    )


class Failure:
    """A session whose runs fail."""

    def __init__(self, reason: str, session: Any) -> None:
        self.reason, self.io_binding = reason, session.io_binding

    def run_with_iobinding(self, *_: object) -> None:
        raise RuntimeError(self.reason)


@pytest.fixture
def fresh() -> Iterator[None]:
    """Libraries are loaded once in a process; here, for each test."""
    load_cuda_libraries.cache_clear()
    yield
    load_cuda_libraries.cache_clear()


@pytest.fixture
def provider(fresh: None, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """ONNX Runtime as if it had a CUDA provider; returned are the libraries that are loaded, once they are."""
    loaded: list[str] = []

    def load(name: str) -> None:
        loaded.append(name)

    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: [ort_session.CUDA, ort_session.CPU])
    monkeypatch.setattr(onnxruntime, "preload_dlls", lambda directory: loaded.append("preloaded"), raising=False)
    monkeypatch.setattr(onnxruntime, "cuda_version", "13.0", raising=False)
    monkeypatch.setattr(cuda_libraries, "cuda_provider", lambda: Path("/the/provider.so"))
    monkeypatch.setattr(cuda_libraries.ctypes, "CDLL", load)
    return loaded


def test_cuda_computes_in_float32_and_grows_its_arena_by_powers_of_two(provider: list[str]) -> None:
    assert ort_session.providers_of("cpu") == [ort_session.CPU] and not provider
    for _ in range(2):
        (name, options), last = ort_session.providers_of("cuda", user_compute_stream="7")
    assert (name, last) == (ort_session.CUDA, ort_session.CPU)
    assert options == {"use_tf32": "0", "sdpa_kernel": "19", "user_compute_stream": "7"}
    assert provider.count("preloaded") == 1


def test_libraries_of_every_site_directory_are_loaded_each_before_those_that_need_it(
    provider: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("one/nvidia/cudnn/lib/libcudnn.so.9", "two/nvidia/cu13/lib/libcublas.so.13"):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).touch()
    for name in ("libcudart.so.13", "libcublasLt.so.13", "libcufft.so.12", "libcublas.so.12"):
        (tmp_path / "two/nvidia/cu13/lib" / name).touch()
    for folder in ("one", "two"):
        monkeypatch.syspath_prepend(tmp_path / folder)
    monkeypatch.delitem(sys.modules, "nvidia", raising=False)
    ort_session.providers_of("cuda")
    ours = [Path(name).name for name in provider if name.startswith(str(tmp_path))]
    assert ours == ["libcudart.so.13", "libcublasLt.so.13", "libcublas.so.13", "libcufft.so.12", "libcudnn.so.9"]


@pytest.mark.parametrize(
    ("fault", "library"),
    [
        ("libcublasLt.so.13: cannot open shared object file: No such file", "libcublasLt.so.13"),
        ("libcuda.so.1: cannot open shared object file", None),
        ("undefined symbol: Provider_GetHost", None),
    ],
)
def test_a_provider_that_cannot_be_loaded_names_the_library(
    provider: list[str], monkeypatch: pytest.MonkeyPatch, fault: str, library: str | None
) -> None:
    def load(name: str) -> None:
        raise OSError(fault)

    monkeypatch.setattr(cuda_libraries.ctypes, "CDLL", load)
    if library is None:
        ort_session.providers_of("cuda")
        return
    with pytest.raises(MissingLibrary, match=f"cannot start its CUDA provider: {library} is missing, pip install"):
        ort_session.providers_of("cuda")


@pytest.mark.parametrize(
    ("driver", "built", "said"),
    [
        ("12.4", "13.0", "is built for CUDA 13 and the NVIDIA driver supports CUDA 12.4 at most: update the driver to "
         "580 or newer, or install an onnxruntime-gpu for CUDA 12; or use --device cpu"),
        ("12.4", "14.1", "supports CUDA 12.4 at most: update the driver to a newer one, or install"),
        ("13.0", "13.0", "provider: CUDA failure 35: the reason, check the driver with nvidia-smi; or use"),
        ("12.4", "", "provider: CUDA failure 35: the reason, check the driver with nvidia-smi; or use"),
    ],
)  # fmt: skip
def test_a_driver_that_is_too_old_is_named_with_what_it_supports(
    monkeypatch: pytest.MonkeyPatch, driver: str, built: str, said: str
) -> None:
    def fail(*_: object, **options: object) -> None:
        assert options["enable_fallback"] == 0, "it would print on standard output"
        raise RuntimeError(
            "/onnxruntime_src/cuda_call.cc:154 std::conditional_t<THRW, void> onnxruntime::CudaCall(ERRTYPE, int) [with"
            " ERRTYPE = cudaError] CUDA failure 35: the reason ; GPU=-1 ; hostname=a ; expr=cudaSetDevice(0);"
        )

    monkeypatch.setattr(onnxruntime.InferenceSession, "__init__", fail)
    monkeypatch.setattr(onnxruntime, "cuda_version", built, raising=False)
    monkeypatch.setattr(cuda_libraries, "find_gpu", lambda: Gpu("NVIDIA L4", "8.9", 58, driver))
    with pytest.raises(MissingLibrary) as caught:
        open_encoder()
    assert said in str(caught.value)


def open_encoder() -> Any:
    """The toy's, as if on a GPU."""
    graph = Manifest.load(BUNDLE).encoder
    return ort_session.open_session(BUNDLE, graph, threads=1, providers=[(ort_session.CUDA, {}), ort_session.CPU])


@pytest.mark.filterwarnings("ignore:Specified provider")
def test_a_provider_that_does_not_start_is_said() -> None:
    """ONNX Runtime goes on with the CPU then, as it does here, where it has no CUDA provider."""
    with pytest.raises(MissingLibrary, match="cannot start its CUDA provider: check the driver with"):
        open_encoder()


@pytest.mark.parametrize(("source", "target", "fits"), [(64, 128, True), (60, 128, False), (64, 100, False)])
def test_attention_of_rows_that_are_not_aligned_is_refused(source: int, target: int, fits: bool) -> None:
    """ONNX Runtime's CUDA attention loads eight values of a mask at a time."""
    graphs = Manifest.load(BUNDLE).graphs
    for graph in graphs:
        if fits or graph.lowering != "tensorscatter":
            refuse_unaligned(graph, Limits(8, source, target))
            continue
        with pytest.raises(BundleError, match=f"up to {source} source and {target} target tokens: export the bundle"):
            refuse_unaligned(graph, Limits(8, source, target))
    assert "tensorscatter" in {graph.lowering for graph in graphs}
