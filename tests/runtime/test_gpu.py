"""What only a GPU can show: the device layer on CUDA, both libraries over it, and engines that do not fit.

It is collected and skipped where there is only TensorRT, or only ONNX Runtime, or neither.
"""

import dataclasses
import gc
import json
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from device_engines import check_any_thread, check_copies
from txport.runtime.bundle.manifest import Manifest
from txport.runtime.device.engine import DeviceEngine
from txport.runtime.engines.build_record import BuildRecord
from txport.runtime.engines.choice import choose, open_engine
from txport.runtime.engines.directories import directories
from txport.runtime.engines.tensorrt import find_tensorrt
from txport.runtime.errors import BundleError, TxportError
from txport.runtime.golden import load_golden
from txport.runtime.greedy import Request, decode_all, stream

pytestmark = pytest.mark.gpu
COMMAND = "import sys; sys.argv[0] = 'tx-build'; from txport.exporter.entry import build; build()"
BUNDLES = {"float32": "bundle", "float16": "float16_bundle", "islands": "island_bundle"}


@pytest.fixture
def device() -> Any:
    """A GPU and a stream of its own."""
    cuda = pytest.importorskip("txport.runtime.device.cuda", reason="needs cuda-python: pip install 'txport[trt]'")
    return cuda.CudaDevice()


def test_copies_clearing_and_capture_do_what_they_say(device: Any) -> None:
    check_copies(device)


def test_any_thread_may_use_a_device(device: Any) -> None:
    check_any_thread(device)


@pytest.fixture(scope="module", params=list(BUNDLES))
def plain(request: pytest.FixtureRequest) -> Path:
    """A bundle of each precision."""
    directory: Path = request.getfixturevalue(BUNDLES[request.param])
    return directory


@pytest.fixture(scope="module")
def built(plain: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same bundle with TensorRT engines for this GPU."""
    try:
        tensorrt = find_tensorrt()
    except TxportError as error:
        pytest.skip(f"needs TensorRT: {error}")
    if tensorrt.is_rtx:
        pytest.skip("needs TensorRT, not only TensorRT-RTX")
    copy = Path(shutil.copytree(plain, tmp_path_factory.mktemp("gpu") / "bundle"))
    done = tx_build(copy)
    assert done.returncode == 0, done.stderr
    assert "have not been tried" not in done.stderr, "they answered the golden cases"
    return copy


def tx_build(bundle: Path, *more: str) -> subprocess.CompletedProcess[str]:
    sizes = ["--batch-buckets", "1,32", "--max-batch", "32", "--target-buckets", "32,128"]
    command = [sys.executable, "-c", COMMAND, str(bundle), *sizes, "--json", *more]
    return subprocess.run(command, capture_output=True, text=True, timeout=900)


def opened(bundle: Path, where: str) -> DeviceEngine:
    """Neither a tokenizer nor a fallback is needed."""
    manifest = Manifest.load(bundle)
    engine = open_engine(bundle, manifest, choose(manifest, where, bundle=bundle))
    assert isinstance(engine, DeviceEngine), "the state is on the device"
    return engine


@pytest.fixture(params=["cuda", "trt"])
def engine(request: pytest.FixtureRequest) -> DeviceEngine:
    """ONNX Runtime's CUDA provider, or TensorRT on engines that are built first."""
    if request.param == "trt":
        return opened(request.getfixturevalue("built"), "trt")
    onnxruntime = pytest.importorskip("onnxruntime", reason="needs onnxruntime-gpu: pip install 'txport[ort-gpu]'")
    if "CUDAExecutionProvider" not in onnxruntime.get_available_providers():
        pytest.skip("needs onnxruntime-gpu: pip install 'txport[ort-gpu]'")
    return opened(request.getfixturevalue("plain"), "cuda")


def cases_of(bundle: Path) -> tuple[list[Request], list[list[int]]]:
    """Requests, and the ids that must come out."""
    cases = load_golden(bundle).cases
    requests = [Request(case.source_ids, max_length=max(1, len(case.target_ids))) for case in cases]
    return requests, [list(case.target_ids) for case in cases]


def ids_of(engine: DeviceEngine, requests: list[Request], rows: int | None = None) -> list[list[int]]:
    return [result.ids for result in decode_all(engine, requests, rows=rows)]


def test_golden_cases_in_any_batch_and_after_any_refill(engine: DeviceEngine, plain: Path) -> None:
    requests, expected = cases_of(plain)
    for rows in (None, 1, 3, 8):
        assert ids_of(engine, requests * 4, rows) == expected * 4
    assert ids_of(engine, requests[::-1] * 2, 5)[::-1] == expected * 2
    assert [token.id for token in stream(engine, requests[0])] == expected[0]
    assert engine.captured, "steps are CUDA graphs"


def test_threads_one_after_the_other_and_at_once_get_the_same(engine: DeviceEngine, plain: Path) -> None:
    """A thread may get the number of one that is gone."""
    requests, expected = cases_of(plain)
    answers: list[list[list[int]]] = []
    threads = [threading.Thread(target=lambda: answers.append(ids_of(engine, requests, 8))) for _ in range(6)]
    for thread in threads[:3]:
        thread.start()
        thread.join()
    for thread in threads[3:]:
        thread.start()
    for thread in threads[3:]:
        thread.join()
    assert answers == [expected] * 6


def test_engines_that_go_leave_no_memory_behind(built: Path, device: Any) -> None:
    requests, _ = cases_of(built)

    def free_after_one() -> int:
        ids_of(opened(built, "trt"), requests)
        gc.collect()
        return int(device.free_memory())

    first = [free_after_one() for _ in range(3)][-1]
    assert [free_after_one() for _ in range(17)][-1] > first - (64 << 20)


def test_precisions_are_said_and_the_engines_are_chosen(built: Path) -> None:
    (directory,) = directories(built)
    record, manifest = BuildRecord.load(directory), Manifest.load(built)
    assert record.precision.proof == ("inspector" if record.library.version.startswith("8.") else "network")
    assert record.precision.layers[manifest.precision.type] > 0
    assert not manifest.precision.islands or record.precision.layers["float32"] > 0
    choice = choose(manifest, bundle=built)
    assert choice.engine == "trt" and directory.name in choice.reason


def test_engines_that_do_not_fit_are_refused(built: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(built, tmp_path / "bundle"))
    (directory,) = directories(copy)
    record = BuildRecord.load(directory)
    gpu = dataclasses.replace(record.gpu, name="NVIDIA Nonesuch")
    dataclasses.replace(record, gpu=gpu).write(directory)
    with pytest.raises(BundleError, match="is for NVIDIA Nonesuch .*run tx-build"):
        opened(copy, "trt")
    record.write(directory)
    plan = directory / record.engines[0].file
    data = bytearray(plan.read_bytes())
    data[len(data) // 2] ^= 1
    plan.write_bytes(data)
    with pytest.raises(BundleError, match="was changed .*run tx-build"):
        opened(copy, "trt")


def test_a_second_build_takes_its_timing_cache(built: Path) -> None:
    first = BuildRecord.load(directories(built)[0])
    again = tx_build(built, "--force")
    assert again.returncode == 0, again.stderr
    second = json.loads(again.stdout)
    print(f"built in {first.build_seconds} s, with the timing cache in {second['build_seconds']} s")
