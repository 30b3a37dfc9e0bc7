"""A checkpoint and a bundle from before T5 (commit 61714af6): today's code reads both, and they say what they said.

`tests/data/before_t5` was written by that commit: `save_checkpoint` of a random model, `export_bundle`, and what its
`Translator` answered by ONNX Runtime, in ids and in the sum of their scores.
"""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from parity import by_cpp, by_python
from txport.exporter.export import ExportOptions, export_bundle
from txport.exporter.graphs.lowerings import LOWERINGS
from txport.exporter.reference import answers
from txport.models.checkpoint import load_checkpoint
from txport.runtime.bundle.manifest import Manifest
from txport.runtime.engines.native import missing
from txport.runtime.translator import Translator

OLD = Path(__file__).parents[1] / "data" / "before_t5"
ANSWERS: dict[str, Any] = json.loads((OLD / "answers.json").read_text())
LIMIT = 24
ENGINES = [*(("ort", lowering) for lowering in LOWERINGS), ("fused", None)]


def check(bundle: Path, engine: str, lowering: str | None) -> None:
    translator = Translator(bundle, "cpu", engine, lowering=lowering, workers=0)
    results = translator.translate_ids(ANSWERS["sources"], max_length=LIMIT, scores=True)
    assert [result.ids for result in results] == ANSWERS["ids"]
    assert [sum(result.scores or []) for result in results] == pytest.approx(ANSWERS["scores"], abs=1e-3)


@pytest.mark.parametrize(("engine", "lowering"), ENGINES)
def test_an_old_bundle_says_what_it_said(engine: str, lowering: str | None) -> None:
    if engine == "fused":  # such a bundle has the table of parameters already
        if reason := missing():
            pytest.skip(reason)
        assert Manifest.load(OLD / "bundle").parameters
    check(OLD / "bundle", engine, lowering)


@pytest.mark.skipif("TXPORT_CPP_BUILD" not in os.environ, reason="needs the C++ build: make cpp")
def test_cpp_reads_an_old_bundle() -> None:
    tool = Path(os.environ["TXPORT_CPP_BUILD"]) / "txport-translate"
    lines = ["one two three", "", "four five six seven"]
    for lowering in LOWERINGS:
        where = {"lowering": lowering}
        assert by_cpp(tool, OLD / "bundle", lines, where, 2) == by_python(OLD / "bundle", lines, where, 2)


def test_an_old_checkpoint_is_the_same_model(tmp_path: Path) -> None:
    """By PyTorch, and by a bundle that is exported of it now."""
    model = load_checkpoint(OLD / "checkpoint").model
    for answer in answers(model, ANSWERS["sources"], LIMIT):
        assert answer.batch.targets == [ANSWERS["ids"][index] for index in answer.batch.indices]
    export_bundle(OLD / "checkpoint", tmp_path / "bundle", ExportOptions(verify=False, max_source=LIMIT, max_target=32))
    for lowering in LOWERINGS:
        check(tmp_path / "bundle", "ort", lowering)
