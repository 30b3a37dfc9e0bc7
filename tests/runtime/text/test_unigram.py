"""Both arithmetics of SentencePiece's unigram models, with whatever version is installed.

`score_sums.json` contains the results of both versions of the library (tests/foreign/tied_models.py).
TXPORT_OTHER_SENTENCEPIECE names a folder with a version of the other arithmetic (pip install --target).
"""

import json
import os
import random
from pathlib import Path
from typing import get_args

import pytest
import sentencepiece
from tied_models import NORMAL, USER_DEFINED, model_of, results_of, tied_model, tied_text
from txport.runtime.bundle.tokenizer_schema import ScoreSums
from txport.runtime.text.sides import SentencePieceSide
from txport.runtime.text.unigram import library_sums, other_unigram

ROOT = Path(__file__).parents[3]
RECORDED = json.loads((ROOT / "tests" / "data" / "tokenizer" / "score_sums.json").read_bytes())
OTHER = os.environ.get("TXPORT_OTHER_SENTENCEPIECE", "")


def pieces_of(model: bytes, sums: ScoreSums, directory: Path) -> SentencePieceSide:
    file = directory / "x.model"
    file.write_bytes(model)
    return SentencePieceSide(file, None, sums)


def test_the_installed_library_has_the_arithmetic_of_its_version() -> None:
    version = tuple(int(part) for part in sentencepiece.__version__.split(".")[:3])
    assert library_sums() == ("float32" if version >= (0, 2, 2) else "float64")


@pytest.mark.parametrize("sums", get_args(ScoreSums))
def test_ids_and_spans_are_those_of_the_library_with_this_arithmetic(sums: ScoreSums, tmp_path: Path) -> None:
    differing = 0
    for case in RECORDED["cases"]:
        pieces = pieces_of(bytes.fromhex(case["model"]), sums, tmp_path)
        for text, expected in zip(case["texts"], case[sums], strict=True):
            assert pieces.encode(text) == expected["ids"], text
            assert pieces.locate(text) == (expected["ids"], [tuple(span) for span in expected["spans"]])
            assert len(pieces.split(text)) == len(expected["ids"])
        differing += sum(a["ids"] != b["ids"] for a, b in zip(case["float64"], case["float32"], strict=True))
    assert differing > 30


def test_only_texts_that_may_differ_are_segmented_by_txport(tmp_path: Path) -> None:
    other = next(sums for sums in get_args(ScoreSums) if sums != library_sums())
    scores = {"▁": -2.5, "0": -3.0, "00": -4.0, "a": -5.0, "b": -6.25, "▁ab": -7.0, "▁a": -6.0, "c": -4.0}
    model = model_of([(text, score, NORMAL) for text, score in scores.items()])
    pieces = pieces_of(model, other, tmp_path)
    assert pieces._segmented("ab ab") is None
    assert pieces._segmented("ab 000") is not None
    defined = pieces_of(model_of([("▁a", -6.0, NORMAL), ("ab", 0.0, USER_DEFINED)]), other, tmp_path)
    assert defined._segmented("ab") is not None
    assert other_unigram(model, library_sums()) is None


@pytest.mark.skipif(not OTHER, reason="TXPORT_OTHER_SENTENCEPIECE names no other version: make test-sentencepiece")
@pytest.mark.parametrize("seed", range(100))
def test_random_models_give_the_ids_of_the_other_version(seed: int, tmp_path: Path) -> None:
    other = next(sums for sums in get_args(ScoreSums) if sums != library_sums())
    rng = random.Random(seed)
    model = tied_model(rng)
    texts = [tied_text(rng) for _ in range(40)]
    (case,) = results_of(OTHER, [{"model": model.hex(), "texts": texts}])
    pieces = pieces_of(model, other, tmp_path)
    assert [pieces.encode(text) for text in texts] == [each["ids"] for each in case["results"]]
