"""Signals: what is saved, what is said, and that a run goes on as if nothing had happened."""

import logging
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from checkpoints import weights
from txport.training.loop import train
from txport.training.recipe import Recipe
from txport.training.run.interruption import Interrupted
from txport.training.run.paths import Finished
from warm import warm_commands

Tiny = Callable[..., Recipe]
# Epochs of some steps, validation between them, dropout, averaged weights.
OPTIONS = ("corpus.train=150", "training.validate_every=5", "model.dropout=0.1", "training.average=0.5")
LAST = ("tokenizer.vocabulary=250", "training.keep=last", "training.max_steps=12")


class Raise(logging.Handler):
    """Sends a signal to this process when a line is logged."""

    def __init__(self, text: str, number: signal.Signals) -> None:
        super().__init__()
        self.text, self.number = text, number

    def emit(self, record: logging.LogRecord) -> None:
        if self.text in record.getMessage():
            signal.raise_signal(self.number)


@contextmanager
def signal_at(text: str, number: signal.Signals) -> Iterator[None]:
    logger, handler = logging.getLogger("txport"), Raise(text, number)
    level = logger.level
    logger.setLevel(logging.INFO)
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)


@pytest.fixture(scope="module")
def whole(tiny: Tiny, tmp_path_factory: pytest.TempPathFactory) -> dict[str, torch.Tensor]:
    output = tmp_path_factory.mktemp("whole") / "checkpoint"
    train(tiny(*OPTIONS, *LAST), output, Path())
    return weights(output)


@pytest.mark.parametrize(
    ("text", "number", "step"),
    [
        ("steps an epoch", signal.SIGINT, 1),  # noted before the first step, saved after it
        ("step 5, ", signal.SIGTERM, 5),  # in a validation
        ("step 10, ", signal.SIGINT, 10),
    ],
)
def test_an_interrupted_run_goes_on_bit_by_bit(
    tiny: Tiny, tmp_path: Path, whole: dict[str, torch.Tensor], text: str, number: signal.Signals, step: int
) -> None:
    recipe, output = tiny(*OPTIONS, *LAST), tmp_path / "checkpoint"
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    said = f"interrupted at step {step}; the state of step {step} is saved: continue with --resume"
    if step == 1:
        said = "interrupted before the first step"
    with signal_at(text, number), pytest.raises(Interrupted, match=said) as caught:
        train(recipe, output, Path())
    assert caught.value.exit_code == 128 + number
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before
    outcome = train(recipe, output, Path(), resume=step > 1)
    assert outcome is not None and outcome.steps == 12
    assert all(torch.equal(value, weights(output)[name]) for name, value in whole.items())


@pytest.mark.parametrize("step", [1, 3, 4, 6, 11])
def test_a_state_between_validations_goes_on_bit_by_bit(
    tiny: Tiny, tmp_path: Path, whole: dict[str, torch.Tensor], step: int
) -> None:
    """In an epoch, at its end, after a validation: each step can be the last that was saved."""
    recipe, output = tiny(*OPTIONS, *LAST, f"training.max_steps={step}"), tmp_path / "checkpoint"
    train(recipe, output, Path())
    assert torch.load(tmp_path / "checkpoint.run" / "state" / "last.ckpt", weights_only=True)["global_step"] == step
    outcome = train(tiny(*OPTIONS, *LAST), output, Path(), resume=True)
    assert outcome is not None and outcome.steps == 12
    assert all(torch.equal(value, weights(output)[name]) for name, value in whole.items())


def test_a_finished_run_stays_as_it_is(tiny: Tiny, tmp_path: Path, whole: dict[str, torch.Tensor]) -> None:
    recipe, output = tiny(*OPTIONS, *LAST), tmp_path / "checkpoint"
    train(recipe, output, Path())
    with pytest.raises(Finished, match=r"the run is finished \(\d+ steps, BLEU .*\): raise max_steps to continue"):
        train(recipe, output, Path(), resume=True)
    assert all(torch.equal(value, weights(output)[name]) for name, value in whole.items())


def test_the_second_signal_does_not_wait(tiny: Tiny, tmp_path: Path) -> None:
    with signal_at("interrupted: the state", signal.SIGINT), signal_at("step 5, ", signal.SIGINT):
        with pytest.raises(Interrupted, match="interrupted at step 5; |interrupted before the first step was saved"):
            train(tiny(*OPTIONS, *LAST), tmp_path / "checkpoint", Path())


def test_a_process_says_one_sentence_and_its_exit_code(tmp_path: Path) -> None:
    """For SIGTERM two do, in test_processes.py: a process takes seconds to start."""
    line = [warm_commands() / "tx-train", "--recipe", "tiny", "-o", "mine", "--max-steps", "100000"]
    small = ("corpus.train=300", "training.validation_sentences=2", "training.validate_every=2")
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(
        [*line, *(word for value in small for word in ("--set", value))],
        cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stderr is not None
        while "step 2, " not in (said := process.stderr.readline()):
            assert said, "it ended by itself"
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=500)
    assert process.returncode == 130
    assert output == "" and "Traceback" not in errors
    assert errors.splitlines()[-1].endswith("is saved: continue with --resume")
