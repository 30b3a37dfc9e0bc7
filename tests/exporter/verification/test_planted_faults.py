"""A bundle with one fault is refused, and none without; the study in exporter/README.md has the rates by size."""

from pathlib import Path

import numpy as np
import pytest
from txport.benchmarks.studies.planted_faults import KINDS, Planted


@pytest.fixture(scope="module")
def planted(float16_bundle: Path, checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Planted:
    return Planted(checkpoint, float16_bundle, 64, tmp_path_factory.mktemp("planted"))


def test_nothing_is_refused_without_a_fault(planted: Planted) -> None:
    assert planted.report().failures == []


@pytest.mark.parametrize(
    ("kind", "size"), [("one weight", 10.0), ("swapped heads", 1.0), ("one position", 1.0), ("overflow", 2.0**18)]
)
def test_a_fault_is_refused(planted: Planted, kind: str, size: float) -> None:
    random = np.random.default_rng(0)
    for _ in range(3):
        with planted.fault(KINDS[kind](planted, random, size)):
            assert planted.report().failures
    assert planted.report().failures == [], "it is taken out again"
