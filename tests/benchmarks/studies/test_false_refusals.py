"""The short form of the study of false refusals: recorded checkpoints, which are the same on every processor."""

import json
from pathlib import Path

import pytest
from txport.benchmarks.studies.false_refusals import (
    FORMATS,
    RESULTS,
    Variant,
    interval,
    is_justified,
    read_results,
    study,
    tables,
    variants,
)
from txport.training.recipe import read


def test_no_good_model_is_refused(checkpoint: Path, rotary_checkpoint: Path, tmp_path: Path) -> None:
    """In any format; and a study that was interrupted continues where it stopped."""
    models = [("tiny", lambda: checkpoint), ("rotary", lambda: rotary_checkpoint)]
    running = study(tmp_path, models, (32,))
    first = next(running)
    running.close()
    with (tmp_path / RESULTS).open("a") as file:
        file.write('{"model": "tiny", "format": "float16", "runs": [{"sente')
    lines = [first, *study(tmp_path, models, (32,))]
    assert [(line["model"], line["format"]) for line in lines] == [
        (name, weights) for name, _ in models for weights in FORMATS
    ]
    assert lines == read_results(tmp_path)
    assert [run["failure"] for line in lines for run in line["runs"]] == [None] * 6
    assert not any(is_justified(run) for line in lines for run in line["runs"])
    assert list(study(tmp_path, [("tiny", pytest.fail)], (32,))) == [], "its results are there"
    text = tables(lines)
    assert "| float32, 32 sentences | 0 of 2 |" in text and "| int8, 32 sentences | 0 of 2 |" in text
    assert "models: 0 of 2 refused falsely; 95% interval 0 to 0.78" in text


def test_a_refusal_with_lost_quality_is_not_false() -> None:
    def line(model: str, lost: bool) -> dict:
        lowering = {"average": 3.0, "lead": 1.0, "examined": 2, "quality_lost": lost}
        run = {"sentences": 200, "passed": False, "failure": "it is wrong", "lowerings": {"ort": lowering}}
        return {"model": model, "format": "int8", "runs": [run]}

    text = tables([line("one", False), line("two", True), {**line("three", False), "runs": [], "error": "gone"}])
    assert "| int8, 200 sentences | 1 of 2 | 3.00 to 3.00 | 2 |" in text
    assert "one, int8, 200 sentences: it is wrong" in text
    assert "two, int8, 200 sentences (quality is lost): it is wrong" in text and "three, int8: gone" in text


@pytest.mark.parametrize(
    ("events", "trials", "lower", "upper"),
    [(0, 60, 0, 0.04870), (3, 60, 0.010430, 0.13925), (60, 60, 0.95130, 1), (0, 100_000, 0, 2.9957e-5)],
)
def test_the_interval_is_that_of_clopper_and_pearson(events: int, trials: int, lower: float, upper: float) -> None:
    """As the beta distribution gives it; with no event or nothing else the whole tail is on one side."""
    assert interval(events, trials) == pytest.approx((lower, upper), rel=1e-3)


def test_every_variant_can_be_trained() -> None:
    """At least 50 models, of every width and kind, whose recipes can be read."""
    models = variants()
    assert len({each.name for each in models}) == len(models) >= 50
    chosen = [read("demo", each.overrides).model for each in models]
    for name, count in (("norm", 3), ("norm_kind", 3), ("positions", 4), ("activation", 4), ("d_model", 5)):
        assert len({json.dumps(model.get(name)) for model in chosen if name in model}) == count
    assert isinstance(models[0], Variant)
