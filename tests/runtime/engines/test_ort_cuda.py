"""ONNX Runtime over a device whose memory is the host's."""

from pathlib import Path

import numpy as np
import pytest
from memory_device import MemoryDevice
from ort_over_device import check_like_host, golden_requests, over
from toy import BUNDLE, answer
from txport.runtime.bundle.schema import Lowering
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
