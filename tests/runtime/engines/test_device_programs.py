"""ONNX Runtime over a device whose memory is the host's; TensorRT's buckets; what is said where there is no GPU."""

from pathlib import Path

import make_build_records
import numpy as np
import pytest
from memory_device import MemoryDevice
from toy import BUNDLE, answer
from txport.runtime.bundle.manifest import Manifest
from txport.runtime.bundle.schema import Lowering
from txport.runtime.device.device import Device
from txport.runtime.device.engine import DeviceEngine
from txport.runtime.device.gpu import find_gpu
from txport.runtime.engine import Limits
from txport.runtime.engines.build_record import BuildRecord
from txport.runtime.engines.choice import choose, open_engine
from txport.runtime.engines.ort import OrtEngine
from txport.runtime.engines.ort_cuda import OrtProgram
from txport.runtime.engines.trt import limits_of, smallest_bucket, step_buckets
from txport.runtime.errors import BundleError, MissingLibrary
from txport.runtime.golden import load_golden
from txport.runtime.greedy import Request, decode_all

no_gpu = pytest.mark.skipif(not isinstance(find_gpu(), str), reason="needs a machine without an NVIDIA GPU")


def over(device: Device, bundle: Path, lowering: Lowering | None = None, poll: int = 4) -> DeviceEngine:
    """ONNX Runtime's CPU provider, bound to the addresses of a device in host memory that does everything at once."""
    manifest = Manifest.load(bundle)
    program = OrtProgram(bundle, manifest, manifest.usable_lowerings(lowering), device, where="cpu")
    return DeviceEngine(device, manifest, program, poll)


def golden_requests(bundle: Path) -> list[Request]:
    """Its golden cases, three times."""
    return [Request(case.source_ids) for case in load_golden(bundle).cases] * 3


def check_like_host(device: Device, bundle: Path, lowering: Lowering) -> DeviceEngine:
    """An engine over a device gives the ids and scores of the one in host memory; it is returned."""
    try:
        host = OrtEngine(bundle, Manifest.load(bundle), [lowering])
    except BundleError as error:
        pytest.skip(f"needs a newer ONNX Runtime: {error}")
    engine, requests = over(device, bundle, lowering), golden_requests(bundle)
    expected = decode_all(host, requests, scores=True)
    assert [result.ids for result in decode_all(engine, requests)] == [result.ids for result in expected]
    found = decode_all(engine, requests, rows=3, scores=True)
    for result, right in zip(found, expected, strict=True):
        assert result.ids == right.ids
        assert result.scores == pytest.approx(right.scores, abs=1e-3)
    return engine


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


def test_a_request_takes_the_smallest_profile_with_room() -> None:
    record = BuildRecord.parse(make_build_records.text(make_build_records.base()))
    (step,) = record.of_role("decoder_step")
    buckets = dict.fromkeys(step_buckets(step))
    assert list(buckets) == [(1, 32), (1, 128), (32, 32), (32, 128)]
    assert smallest_bucket(buckets, 1, 20) == (1, 32)
    assert smallest_bucket(buckets, 1, 33) == (1, 128)
    assert smallest_bucket(buckets, 2, 32) == (32, 32)
    assert smallest_bucket(buckets, 32, 128) == (32, 128)
    for rows, target in ((33, 10), (1, 129)):
        with pytest.raises(BundleError, match=f"no profile for {rows} rows of {target} target tokens.*run tx-build"):
            smallest_bucket(buckets, rows, target)
    assert limits_of(record) == Limits(32, 256, 128)


@no_gpu
def test_without_a_gpu_auto_is_the_cpu_and_the_rest_says_why() -> None:
    manifest = Manifest.load(BUNDLE)
    choice = choose(manifest, bundle=BUNDLE)
    assert (choice.engine, choice.device, choice.directory) == ("ort", "cpu", None)
    assert choice.reason.startswith("auto is the CPU: there is no NVIDIA")
    assert "on cpu" in open_engine(BUNDLE, manifest, choice).name
    with pytest.raises(MissingLibrary, match="device trt cannot be used here: there is no NVIDIA"):
        choose(manifest, "trt", bundle=BUNDLE)
    with pytest.raises(MissingLibrary, match="CUDA"):
        open_engine(BUNDLE, manifest, choose(manifest, "cuda", bundle=BUNDLE))


@no_gpu
def test_the_cuda_device_says_why_it_cannot_be_used() -> None:
    cuda = pytest.importorskip("txport.runtime.device.cuda", reason="needs cuda-python: pip install 'txport[trt]'")
    with pytest.raises(MissingLibrary, match="CUDA cannot be used here: .*; use --device cpu"):
        cuda.CudaDevice()
