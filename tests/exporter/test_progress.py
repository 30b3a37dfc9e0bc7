"""Progress where standard error is no terminal: a line now and then, with the time left; nothing from a library."""

import re
import time

import pytest
from txport.exporter.progress import Stages


def test_a_line_now_and_then(capfd: pytest.CaptureFixture[str]) -> None:
    with Stages(every=0.02) as stages:
        stages.stage("graphs")
        time.sleep(0.2)
        stages.stage("verify", 100)
        stages.advance(25)
        time.sleep(0.2)
    out, err = capfd.readouterr()
    lines = [line.partition(": ")[2] for line in err.splitlines()]
    assert out == "" and "graphs" in lines
    assert any(re.fullmatch(r"verify, 25 of 100, about 0:0\d min left", line) for line in lines), lines


def test_the_time_left_is_that_of_the_speed_so_far() -> None:
    stages = Stages(enabled=False)
    stages.stage("verify", 100)
    assert stages.left == ""
    stages._started -= 60  # a minute ago
    stages.advance(10)
    assert stages.left == "about 9:00 min left"
    stages.resize(20)
    assert stages.left == "about 1:00 min left"
    stages.advance(10)
    assert stages.left == ""


def test_a_sentence_is_said_once(capfd: pytest.CaptureFixture[str]) -> None:
    with Stages(every=600) as stages:
        for _ in range(2):
            stages.say("most answers of [model] do not end")
    assert capfd.readouterr().err.count("most answers of [model] do not end") == 1
    with Stages(enabled=False) as silent:
        silent.say("nothing")
    assert capfd.readouterr() == ("", "")
