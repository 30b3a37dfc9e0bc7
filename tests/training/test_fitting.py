"""What a recipe leaves open is chosen by the corpus and the time, said, and kept."""

import json
import logging
import re
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from txport.models.config import preset
from txport.training import fitting
from txport.training.fitting import fit
from txport.training.loop import train
from txport.training.options import TrainingOptions
from txport.training.recipe import Recipe, as_before, from_table

OPEN = {"corpus": {"kind": "parallel"}}


def recipe(**training: float) -> Recipe:
    return from_table({**OPEN, "training": training}, "mine.toml")


def pairs(count: int, characters: int) -> list[tuple[str, str]]:
    return [("abcdefghij" * (characters // 10), "klmnopqrst" * (characters // 10))] * count


@pytest.fixture(autouse=True)
def two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """As measured on two cores, so that what is chosen does not depend on this machine."""
    monkeypatch.setattr(fitting, "_measure", lambda options, vocabulary: (1.28e11, 1.0))


@given(
    count=st.sampled_from([1, 30, 3_000, 30_000]),
    characters=st.sampled_from([10, 60, 200]),
    minutes=st.floats(0.1, 1e4),
    steps=st.none() | st.integers(1, 10**6),
)
@settings(deadline=None, max_examples=40)
def test_nothing_stays_open_and_all_of_it_is_valid(
    count: int, characters: int, minutes: float, steps: int | None
) -> None:
    limits = {"max_minutes": minutes, **({"max_steps": steps} if steps else {})}
    fitted, choices = fit(recipe(**limits), pairs(count, characters))
    again = from_table(fitted.to_json(), "fitted")
    assert again == fitted and fit(again, pairs(7, 10)) == (fitted, {})
    optional = {"max_steps", "max_epochs", "max_minutes", "validate_every", "batch_pairs", "sampling_steps"}
    optional |= {"from_checkpoint", "stop_at"}
    for field in fields(TrainingOptions):
        assert field.name in optional or getattr(fitted.training, field.name) is not None
    assert {"tokenizer.vocabulary", "model.preset", "training.warmup_steps"} <= choices.keys()


@pytest.mark.parametrize("algorithm", ["word", "char"])
def test_all_words_or_characters_and_a_constant_rate(algorithm: str) -> None:
    """What a constant rate would do with a cool-down is not what was asked for."""
    table = {**OPEN, "training": {"max_epochs": 3, "schedule": "constant"}, "tokenizer": {"algorithm": algorithm}}
    given = [("zero one two three four five six", "uno due tre quattro cinque sei"), ("one", "uno sette")] * 20
    fitted, _ = fit(from_table(table, "mine.toml"), given)
    characters = {character for pair in given for side in pair for character in side}  # the space is one
    assert fitted.tokenizer.vocabulary == 4 + {"word": 14, "char": len(characters)}[algorithm]
    training = fitted.training
    assert (training.warmup_steps, training.cooldown, training.keep) == (1, 0.0, "best")


def test_what_a_recipe_says_is_kept() -> None:
    said = {"batch_tokens": 333, "max_length": 99, "warmup_steps": 5, "max_steps": 9, "keep": "best", "cooldown": 0.1}
    table = {**OPEN, "model": {"preset": "big", "norm": "post"}, "training": said, "tokenizer": {"vocabulary": 77}}
    fitted, choices = fit(from_table(table, "mine.toml"), pairs(100, 50))
    assert fitted.model == {"preset": "big", "norm": "post"} and fitted.tokenizer.vocabulary == 77
    assert all(getattr(fitted.training, key) == value for key, value in said.items())
    assert set(choices) == {"training.learning_rate", "training.validation_sentences"}


def test_more_text_and_more_time_make_larger_models() -> None:
    def width(count: int, minutes: float) -> int:
        model = fit(recipe(max_minutes=minutes), pairs(count, 60))[0].model
        return preset(**{"name" if key == "preset" else key: value for key, value in model.items()}).d_model

    assert width(300, 5) <= 128 and width(300, 1_000) <= 128
    assert width(20_000, 1) <= width(20_000, 10) <= width(20_000, 100) == 256
    assert width(2_000_000 // 2, 100_000) == 512


def test_the_warmup_fits_the_steps() -> None:
    fitted = fit(recipe(max_steps=1_000), pairs(3_000, 10))[0]
    assert fitted.training.warmup_steps == 40
    assert fit(recipe(max_steps=10**6), pairs(3_000, 10))[0].training.warmup_steps == 4_000


def test_a_resumed_run_takes_what_was_chosen() -> None:
    fitted, _ = fit(recipe(max_minutes=1), pairs(3_000, 10))
    longer = as_before(recipe(max_minutes=60), fitted)
    assert longer.training.max_minutes == 60
    assert longer.model == fitted.model and longer.training.warmup_steps == fitted.training.warmup_steps


def test_a_run_says_what_it_chose_and_writes_it_down(
    write: Callable[..., Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "txport")
    lines = "".join(f"{word} {number}\t{number} {word}\n" for word in ("a", "bee") for number in range(40))
    write("mine.tsv", lines)
    own = write("own.toml", '[corpus]\nkind = "table"\ntrain = "mine.tsv"\nheld_out = 20\n[training]\nmax_steps = 3\n')
    from txport.training.recipe import read

    outcome = train(read(str(own)), tmp_path / "checkpoint", tmp_path)
    assert outcome is not None
    chosen = re.search(r"chosen for [\d,]+ training pairs: (.*)", caplog.text)
    assert chosen is not None and "preset = tiny" in chosen[1] and "warmup_steps = 20" in chosen[1]
    assert re.search(r"\d+ steps? an epoch; validates .* on \d+ sentences; ends after 3 steps", caplog.text)
    assert "3 steps in" in outcome.sentence()
    stored = json.loads((tmp_path / "checkpoint" / "training.json").read_text())["recipe"]
    assert stored["training"]["warmup_steps"] == 20 and stored["model"]["norm"] == "pre"
    assert stored["tokenizer"]["vocabulary"] > 0
