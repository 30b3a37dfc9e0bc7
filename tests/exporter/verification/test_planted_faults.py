"""A bundle with one fault is refused, and none without; the study in exporter/README.md has the rates by size."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from txport.benchmarks.studies.graph_faults import FAULTS, refusals
from txport.benchmarks.studies.planted_faults import KINDS, Planted
from txport.benchmarks.studies.random_checkpoint import random_checkpoint
from txport.exporter.export import ExportOptions, export_bundle

LIMITS: dict[str, Any] = {"max_source": 48, "max_target": 48}


@pytest.fixture(scope="module")
def planted(float16_bundle: Path, checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Planted:
    return Planted(checkpoint, float16_bundle, 32, tmp_path_factory.mktemp("planted"), singles=1)


@pytest.fixture(scope="module")
def rotary(rotary_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Planted:
    """Of a model whose encoder and decoder have rotary positions of their own, so that a fault is in one of them."""
    directory = tmp_path_factory.mktemp("rotary")
    bundle, scratch = directory / "bundle", directory / "scratch"
    export_bundle(rotary_checkpoint, bundle, ExportOptions(float16=True, lowerings=("ort",), verify=False, **LIMITS))
    scratch.mkdir()
    return Planted(rotary_checkpoint, bundle, 32, scratch, singles=1)


def test_nothing_is_refused_without_a_fault(planted: Planted, rotary: Planted) -> None:
    assert planted.report().failures == rotary.report().failures == []
    assert planted.weights_report().failures == rotary.weights_report().failures == []


@pytest.mark.parametrize(
    ("kind", "size"), [("one weight", 10.0), ("swapped heads", 1.0), ("one position", 1.0), ("overflow", 2.0**18)]
)
def test_a_fault_is_refused(planted: Planted, kind: str, size: float) -> None:
    random = np.random.default_rng(0)
    for _ in range(3):
        with planted.fault(KINDS[kind](planted, random, size)):
            assert planted.report().failures
    assert planted.report().failures == [], "it is taken out again"


@pytest.mark.parametrize("size", [0.03, 0.3])
def test_a_weight_that_sentences_may_not_need_is_refused(planted: Planted, size: float) -> None:
    random = np.random.default_rng(0)
    for _ in range(10):
        with planted.fault(KINDS["one weight"](planted, random, size)):
            (failure,) = planted.weights_report().failures
            assert failure.startswith("1 of ")
    assert planted.weights_report().failures == [], "it is taken out again"


@pytest.fixture(scope="module")
def float32(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Planted:
    """A float32 bundle of which the lowering `scatter` is verified."""
    directory = tmp_path_factory.mktemp("float32")
    export_bundle(checkpoint, directory / "bundle", ExportOptions(lowerings=("ort", "scatter"), verify=False, **LIMITS))
    (directory / "scratch").mkdir()
    return Planted(checkpoint, directory / "bundle", 32, directory / "scratch", "scatter", singles=1)


@pytest.mark.parametrize(
    ("kind", "places"), [("padding let through", 3), ("future let through", 2), ("wrong head size", 6)]
)
def test_a_fault_of_a_graph_is_refused_wherever_it_is(float32: Planted, kind: str, places: int) -> None:
    """No comparison of weights can see these."""
    assert float32.report().failures == []
    refused = [failures != [] for _, failures in refusals(float32, FAULTS[kind])]
    assert refused == [True] * places
    assert float32.report().failures == [], "it is taken out again"


@pytest.mark.parametrize("kind", ["length limit, one token more", "length limit, one token less"])
def test_a_wrong_length_limit_is_refused_where_answers_reach_it(kind: str, tmp_path: Path) -> None:
    """Answers of random weights do not end."""
    random_checkpoint(tmp_path / "checkpoint", "tiny", vocabulary=500, positions=48)
    options = ExportOptions(lowerings=("ort", "scatter"), verify=False, sentences=8)
    export_bundle(tmp_path / "checkpoint", tmp_path / "bundle", options)
    (tmp_path / "scratch").mkdir()
    planted = Planted(tmp_path / "checkpoint", tmp_path / "bundle", 8, tmp_path / "scratch", "scatter", singles=1)
    assert planted.report().failures == []
    assert all(failures for _, failures in refusals(planted, FAULTS[kind]))


def test_a_wrong_rotary_position_is_refused(rotary: Planted) -> None:
    random, tables = np.random.default_rng(0), set[str]()
    for _ in range(6):
        changes = KINDS["one position"](rotary, random, 0.1)
        tables |= changes.keys()
        with rotary.fault(changes):
            assert rotary.report().failures
    assert len(tables) == 4, "cosines and sines of both sides"
