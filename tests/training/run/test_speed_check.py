"""Warnings of a run on a busy or slow machine."""

import logging
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from txport.training import fitting
from txport.training.fitting import fit
from txport.training.loop import train
from txport.training.recipe import Recipe, from_table
from txport.training.run.speed_check import MINIMUM_SHARE
from txport.training.speed_estimate import BUSY, ProcessorShare, SpeedEstimate


def test_others_on_the_same_core_take_their_share(caplog: pytest.LogCaptureFixture) -> None:
    if not hasattr(os, "sched_setaffinity"):
        pytest.skip("needs an operating system that binds processes to a core")
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})  # processes that are started meanwhile inherit it
    others = [subprocess.Popen([sys.executable, "-c", "print('there', flush=True)\nwhile True: pass"],
                               stdout=subprocess.PIPE) for _ in range(4)]  # fmt: skip
    try:
        for other in others:
            assert other.stdout is not None and other.stdout.readline()
        share, end = ProcessorShare(), time.monotonic() + 1
        while time.monotonic() < end:
            pass
        left = share.measured()
    finally:
        os.sched_setaffinity(0, before)
        for other in others:
            other.kill()
            other.communicate()
    assert 0 < left < BUSY
    estimate = SpeedEstimate()
    estimate.look_at(left)
    estimate.look_at(left)
    assert caplog.messages == [f"this machine is busy: training gets {100 * left:.0f}% of the time that it could use"]


def test_a_thread_that_has_all_of_its_time_is_not_busy(caplog: pytest.LogCaptureFixture) -> None:
    estimate = SpeedEstimate()
    estimate.look_at(1.0)
    assert not estimate.busy and not caplog.messages


def test_half_of_the_steps_foreseen_are_warned_of(
    tiny: Callable[..., Recipe], tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a tenth of the run: the sizes were chosen for a machine a million times as fast."""
    monkeypatch.setattr(fitting, "_measure", lambda options, vocabulary: (1e18, 1.0))
    train(tiny("training.max_minutes=0.1", "training.max_steps=1000000000"), tmp_path / "checkpoint", Path())
    (said,) = [text for text in caplog.messages if text.startswith("at this speed the run will make about")]
    expected, foreseen = (float(word) for word in said.split() if word.isdigit())
    assert 0 < expected <= MINIMUM_SHARE * foreseen


def test_it_looks_also_where_more_than_a_tenth_is_used_before_the_first_step(
    tiny: Callable[..., Recipe], tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And says at the end that a run has made too few steps."""
    monkeypatch.setattr(fitting, "_measure", lambda options, vocabulary: (1e18, 1.0))
    recipe = tiny("training.max_minutes=0.1", "training.max_steps=1000000000", "training.batch_tokens=20000")
    caplog.set_level(logging.INFO)
    train(recipe, tmp_path / "checkpoint", Path(), started=time.monotonic() - 3)
    said = caplog.messages
    assert [text for text in said if text.startswith("at this speed the run will make about")], said
    assert [text for text in said if text.startswith("the run made ") and "a model needs some 2000" in text], said
    assert [text for text in said if "; about " in text and text.endswith(" steps")], said


def test_too_little_time_for_a_model_is_said(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fitting, "_measure", lambda options, vocabulary: (1.28e11, 1.0))
    pairs = [("one two three", "uno due tre")] * 3_000

    def said(**limits: float) -> list[str]:
        caplog.clear()
        with caplog.at_level(logging.WARNING, "txport"):
            fit(from_table({"corpus": {"kind": "parallel"}, "training": limits}, "mine.toml"), pairs)
        return [text for text in caplog.messages if "is too short" in text]

    (text,) = said(max_minutes=0.01)
    assert text.startswith("training.max_minutes = 0.01 is too short: it allows about ")
    assert not said(max_minutes=10) and not said(max_steps=3) and not said(max_steps=3, max_minutes=0.1)


def test_speed_is_the_mean_of_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine the best of three steps is what an idle one would do."""
    recipe = from_table({"corpus": {"kind": "parallel"}, "training": {"max_minutes": 1}}, "mine.toml")
    began = time.monotonic()
    flops, share = fitting._measure(recipe.training, 64)
    assert flops > 0 and 0 < share <= 1 and time.monotonic() - began >= fitting.TRIAL
