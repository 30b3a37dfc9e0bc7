"""Rounds of real processes: who fails leaves, the others go on."""

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from txport.benchmarks.contestants.backend import Task
from txport.benchmarks.run.rounds import ROUNDS, Budget, Racer, race
from txport.benchmarks.run.worker_process import WorkerProcess

TASK = Task([[4, 5, 6, 3], [7, 8, 9, 3]], 4, True, [], 0)
SETTINGS = {"fixed": [{"threads": "1"}], "text": [{"threads": "1"}]}


@pytest.fixture
def racers(bundle: Path) -> Iterator[list[Racer]]:
    made = []
    for name in ("first", "second"):
        process = WorkerProcess(None, {})
        process.ask(60, do="load", kind="bundle", description={
            "bundle": str(bundle), "device": "cpu", "lowering": None, "threads": 1
        })  # fmt: skip
        made.append(Racer(name, process, SETTINGS, Budget(calls=10**6, seconds=0.6)))
    yield made
    for racer in made:
        racer.process.close()


def test_everybody_has_a_turn_in_each_round_and_makes_the_same_ids(racers: list[Racer]) -> None:
    found = race(racers, TASK, None, vocabulary=256)
    first, second = (found[name] for name in ("first", "second"))
    assert first.failed is None and second.failed is None
    assert first.ids == second.ids and [len(row) for row in first.ids] == [4, 4]
    assert 2 <= len(first.rounds) <= ROUNDS and 2 <= len(second.rounds) <= ROUNDS
    assert first.setting == {"threads": "1"} and first.warm_up_calls >= 2
    assert all(0 < time < 60e3 for time in second.all())
    assert first.joules is None, "there was no meter"


def test_one_that_crashes_leaves_and_keeps_its_figures(racers: list[Racer]) -> None:
    timer = threading.Timer(0.5, os.kill, (racers[1].process.pid, signal.SIGKILL))
    racers[1].budget = Budget(10**6, 60.0)
    timer.start()
    found = race(racers, TASK, None, vocabulary=256)
    assert found["second"].failed is not None and "ended by signal 9" in found["second"].failed
    assert found["first"].failed is None and len(found["first"].rounds) >= 2
    assert not racers[1].process.alive()
