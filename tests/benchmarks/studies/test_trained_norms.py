"""The study of norms in training: it runs, it does not train twice, and it times what it says."""

import json
import re
from collections.abc import Sequence
from pathlib import Path

import pytest
from txport.benchmarks.studies import trainings
from txport.benchmarks.studies.trained_norms import main
from txport.models.checkpoint import load_checkpoint
from txport.runtime.errors import InputError

# `tiny`, and smaller still.
SMALL = (
    *("corpus.train=600", "corpus.validation=12", "corpus.test=12", "tokenizer.vocabulary=400", "model.d_model=32"),
    *("model.max_positions=64", "training.max_length=64", "training.validation_sentences=4"),
)
COMMAND = [
    "--recipe",
    "tiny",
    "--norm",
    "power",
    "--sampling",
    "linear",
    "--steps",
    "2",
    "--seeds",
    "2",
    "--rounds",
    "4",
]


def study(output: Path, *more: str) -> None:
    settings = [argument for value in SMALL for argument in ("--set", value)]
    main([*COMMAND, "-o", str(output), *settings, *more], standalone_mode=False)


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One norm, with and without sampling, two seeds, two steps: nothing is learned, but all is measured."""
    output = tmp_path_factory.mktemp("study") / "norms"
    study(output)
    return output


def test_all_is_in_the_report(output: Path) -> None:
    report = json.loads((output / "trained_norms.json").read_text())
    without, sampled = report["contestants"]
    assert [each["norm"] for each in (without, sampled)] == ["PowerNorm", "PowerNorm"]
    assert [each["scheduled_sampling"] for each in (without, sampled)] == ["none", "linear"]
    assert load_checkpoint(output / "power-none-1").config.norm_kind == "power"
    for each in (without, sampled):
        assert [list(run["losses"]) for run in each["runs"]] == [["1", "2"]] * 2
        first, second = each["runs"]
        assert first["loss"] != second["loss"], "two seeds"
        assert first["loss"] == pytest.approx(first["losses"]["2"], rel=0.1)
        assert each["step_ms"]["p50"] > 0 and each["step_ratio"]["rounds"] == 4
    assert without["step_ratio"]["p50"] == 1
    # The first step has true tokens only.
    losses = [each["runs"][0]["losses"] for each in (without, sampled)]
    assert losses[0]["1"] == losses[1]["1"] and losses[0]["2"] != losses[1]["2"]


def test_table_and_plot(output: Path) -> None:
    lines = (output / "trained_norms.md").read_text().splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]
    assert rows[0][:5] == ["norm", "scheduled sampling", "loss", "exact match", "BLEU"] and len(rows) == 2 + 2
    assert re.fullmatch(r"\d\.\d{3} \(\d\.\d{3} to \d\.\d{3}\)", rows[2][2]), "mean, least, greatest"
    assert rows[2][6] == "1.00" and all(float(row[5]) > 0 for row in rows[2:])
    assert (output / "trained_norms.png").read_bytes().startswith(b"\x89PNG")
    assert "PowerNorm, sampling" in (output / "trained_norms.svg").read_text()


def test_what_is_trained_is_not_trained_again(output: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = json.loads((output / "trained_norms.json").read_text())
    monkeypatch.setattr(trainings, "train", None)  # calling it would fail
    study(output, "--rounds", "1")
    after = json.loads((output / "trained_norms.json").read_text())
    assert [each["runs"] for each in after["contestants"]] == [each["runs"] for each in before["contestants"]]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--steps", "3"], "power-none-1.run is a run of 2 steps, not of 3: choose another directory$"),
        (["--set", "model.ffn=48"], r"recipe.json has another \[model\] than this recipe"),
        (["--set", "training.max_stepz=1"], "unknown field 'max_stepz': did you mean max_steps"),
        (["--recipe", "tny"], "recipe tny cannot be read"),
    ],
)
def test_bad_input_is_one_sentence(output: Path, arguments: Sequence[str], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence) as error:
        study(output, *arguments)
    assert "\n" not in str(error.value)


def test_a_checkpoint_of_somebody_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "power-none-1").mkdir()
    with pytest.raises(InputError, match="exists, but .*power-none-1.run holds no run of it: choose another"):
        study(tmp_path)
