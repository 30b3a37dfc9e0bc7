"""Rounds of real processes: one that fails leaves, the others go on."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from txport.benchmarks.contestants.backend import Task
from txport.benchmarks.run.rounds import ROUNDS, Budget, Runner, run_rounds
from txport.benchmarks.run.worker_process import WorkerProcess

TASK = Task([[4, 5, 6, 3], [7, 8, 9, 3]], 4, True, [], 0)
SETTINGS = {"fixed": [{"threads": "1"}], "text": [{"threads": "1"}]}


class Doomed(WorkerProcess):
    """A process that is killed when it is asked for its second turn."""

    turns = 0

    def ask(self, within: float, /, **request: Any) -> dict[str, Any]:
        self.turns += request["do"] == "turn"
        if self.turns == 2:
            os.kill(self.pid, signal.SIGKILL)
        return super().ask(within, **request)


@pytest.fixture
def runners(bundle: Path, request: pytest.FixtureRequest) -> Iterator[list[Runner]]:
    """Two contestants with the same bundle; the second of the kind that the test asks for."""
    loaded = []
    for name, kind in (("first", WorkerProcess), ("second", getattr(request, "param", WorkerProcess))):
        process = kind(None, {})
        description = {"bundle": str(bundle), "device": "cpu", "engine": "auto", "lowering": None, "threads": 1}
        process.ask(60, do="load", kind="bundle", description=description)
        loaded.append(Runner(name, process, SETTINGS, Budget(calls=10**6, seconds=0.3)))
    yield loaded
    for runner in loaded:
        runner.process.close()


def test_everybody_has_a_turn_in_each_round_and_makes_the_same_ids(runners: list[Runner]) -> None:
    results = run_rounds(runners, TASK, vocabulary=256)
    first, second = results["first"], results["second"]
    assert first.failed is None and second.failed is None
    assert first.ids == second.ids and [len(row) for row in first.ids] == [4, 4]
    assert 2 <= len(first.rounds) <= ROUNDS and 2 <= len(second.rounds) <= ROUNDS
    assert first.setting == {"threads": "1"} and first.warm_up_calls >= 2
    assert all(0 < time < 60e3 for time in second.all())


@pytest.mark.parametrize("runners", [Doomed], indirect=True)
def test_one_that_crashes_leaves_and_keeps_its_figures(runners: list[Runner]) -> None:
    results = run_rounds(runners, TASK, vocabulary=256)
    assert results["second"].failed is not None and "ended by signal 9" in results["second"].failed
    assert len(results["second"].rounds) == 1
    assert results["first"].failed is None and len(results["first"].rounds) >= 2
    assert not runners[1].process.alive()
