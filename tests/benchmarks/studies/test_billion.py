"""The plan for a corpus: its figures agree with each other, and what it multiplies is what the toy bundle does."""

import os
from dataclasses import replace
from pathlib import Path

import pytest
from corpora import BUNDLE, LIMIT, sentences
from txport.benchmarks.studies.machines.billion import Measured, measure, plan
from txport.runtime.translator import Translator

MEASURED = Measured(
    rate=100, efficiency=1, start=0.5, tokens=10, input_bytes=100, output_bytes=200, reading=1e6
)  # fmt: skip


def test_the_figures_of_a_plan() -> None:
    told = plan(7.2e6, MEASURED, cores=2, price=0.5)
    assert told["core hours"] == "20" and told["cost"] == "10"
    assert told["hours"] == "10.0 on 2 cores"
    assert told["rate"] == "200 lines/s, 2,000 tokens/s"
    assert told["input"] == "1 GB, 0.02 MB/s" and told["output"] == "1 GB, 0.04 MB/s"
    assert told["parts"] == "110 of 65,536 lines, 10.9 minutes each"
    assert plan(6e8, MEASURED, cores=2, price=0.5)["of one file"].startswith("10 minutes of each")
    half = plan(7.2e6, replace(MEASURED, efficiency=0.5), cores=2, price=0.5)
    assert float(half["core hours"]) == pytest.approx(2 * float(told["core hours"]))


def test_what_is_measured(tmp_path: Path) -> None:
    if not hasattr(os, "sched_getaffinity") or len(os.sched_getaffinity(0)) < 2:
        pytest.skip("needs two cores to be pinned to")
    pytest.importorskip("pyarrow", reason="needs zstd: pip install 'txport[corpus]'")
    texts = [text for text in sentences(40) if text]
    (tmp_path / "text").write_text("\n".join(texts))
    found = measure(BUNDLE, tmp_path / "text", 60, LIMIT, rounds=1)
    rows = [f"{number} {texts[number % len(texts)]}" for number in range(60)]
    with Translator(BUNDLE, threads=1) as translator:
        tokens = sum(len(result.ids) for result in translator.translate(rows, max_length=LIMIT))
    assert found.tokens == tokens / 60
    assert 0 < found.input_bytes < found.output_bytes < 200
    assert found.start > 0 and found.reading > 10_000
