"""What only a GPU can show: the device layer on CUDA, both libraries over it, and engines that do not fit."""

import dataclasses
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from device_engines import check_any_thread, check_copies
from txport.runtime.bundle.manifest import Manifest
from txport.runtime.device.engine import DeviceEngine
from txport.runtime.engines.build_record import BuildRecord
from txport.runtime.engines.choice import choose
from txport.runtime.engines.directories import directories
from txport.runtime.engines.tensorrt import find_tensorrt
from txport.runtime.errors import BundleError, TxportError
from txport.runtime.golden import load_golden, run_golden
from txport.runtime.greedy import Request, decode_all
from txport.runtime.translator import Translator

cuda = pytest.importorskip("txport.runtime.device.cuda", reason="needs cuda-python: pip install 'txport[trt]'")
pytestmark = pytest.mark.gpu
COMMAND = "import sys; sys.argv[0] = 'tx-build'; from txport.exporter.entry import build; build()"


def test_copies_clearing_and_capture_do_what_they_say() -> None:
    check_copies(cuda.CudaDevice())


def test_any_thread_may_use_a_device() -> None:
    check_any_thread(cuda.CudaDevice())


@pytest.fixture(scope="module")
def built(bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle with TensorRT engines for this GPU."""
    try:
        tensorrt = find_tensorrt()
    except TxportError as error:
        pytest.skip(f"needs TensorRT: {error}")
    if tensorrt.is_rtx:
        pytest.skip("needs TensorRT, not only TensorRT-RTX")
    copy = Path(shutil.copytree(bundle, tmp_path_factory.mktemp("gpu") / "bundle"))
    done = tx_build(copy)
    assert done.returncode == 0, done.stderr
    return copy


def tx_build(bundle: Path, *more: str) -> subprocess.CompletedProcess[str]:
    sizes = ["--batch-buckets", "1,32", "--max-batch", "32", "--target-buckets", "32,128"]
    command = [sys.executable, "-c", COMMAND, str(bundle), *sizes, "--json", *more]
    return subprocess.run(command, capture_output=True, text=True, timeout=900)


def translator_on(device: str, request: pytest.FixtureRequest) -> Translator:
    """A translator on ONNX Runtime's CUDA provider, or on engines that are built first."""
    if device == "cuda":
        import onnxruntime

        if "CUDAExecutionProvider" not in onnxruntime.get_available_providers():
            pytest.skip("needs onnxruntime-gpu: pip install 'txport[ort-gpu]'")
    return Translator(request.getfixturevalue("built" if device == "trt" else "bundle"), device)


@pytest.mark.parametrize("device", ["cuda", "trt"])
def test_golden_cases_in_any_batch_and_after_any_refill(
    device: str, bundle: Path, request: pytest.FixtureRequest
) -> None:
    translator = translator_on(device, request)
    assert isinstance(translator.engine, DeviceEngine), "the state is on the device"
    golden = load_golden(bundle)
    assert run_golden(translator, golden) == []
    requests = [Request(case.source_ids) for case in golden.cases] * 4
    expected = [result.ids for result in decode_all(translator.engine, requests)]
    for rows in (1, 3, 8):
        assert [result.ids for result in decode_all(translator.engine, requests, rows=rows)] == expected
    reverse = [result.ids for result in decode_all(translator.engine, requests[::-1], rows=5)]
    assert reverse[::-1] == expected
    streamed = [piece.id for piece in translator.stream(golden.cases[0].source)]
    assert streamed == expected[0]


def test_precision_is_proven_and_the_engines_are_chosen(built: Path) -> None:
    (directory,) = directories(built)
    record, manifest = BuildRecord.load(directory), Manifest.load(built)
    assert record.precision.proof == "inspector" and record.precision.layers[manifest.precision.type] > 0
    choice = choose(manifest, bundle=built)
    assert choice.engine == "trt" and directory.name in choice.reason


def test_engines_that_do_not_fit_are_refused(built: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(built, tmp_path / "bundle"))
    (directory,) = directories(copy)
    record = BuildRecord.load(directory)
    gpu = dataclasses.replace(record.gpu, name="NVIDIA Nonesuch")
    dataclasses.replace(record, gpu=gpu).write(directory)
    with pytest.raises(BundleError, match="is for NVIDIA Nonesuch .*run tx-build"):
        Translator(copy, "trt")
    record.write(directory)
    plan = directory / record.engines[0].file
    data = bytearray(plan.read_bytes())
    data[len(data) // 2] ^= 1
    plan.write_bytes(data)
    with pytest.raises(BundleError, match="was changed .*run tx-build"):
        Translator(copy, "trt")


def test_a_second_build_with_the_timing_cache_is_faster(built: Path) -> None:
    first = BuildRecord.load(directories(built)[0])
    again = tx_build(built, "--force")
    assert again.returncode == 0, again.stderr
    second = json.loads(again.stdout)
    print(f"built in {first.build_seconds} s, with the timing cache in {second['build_seconds']} s")
    if first.library.version.startswith("8.6"):
        pytest.skip("needs TensorRT 10 or later: 8.6 may refuse its own cache")
    assert second["build_seconds"] * 3 <= first.build_seconds
