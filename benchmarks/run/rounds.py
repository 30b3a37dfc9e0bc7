"""Measurement of contestants on one workload, in rounds.

Each contestant has a turn in each round, so that changes of the machine's speed affect all of them. Before the rounds,
each contestant warms up with each of its settings and keeps the fastest.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace

from txport.benchmarks.contestants.backend import Task
from txport.benchmarks.report.statistics import percentile
from txport.benchmarks.run.plans import Settings
from txport.benchmarks.run.worker_process import ContestantFailed, WorkerProcess

ROUNDS = 10  # in each round, a contestant uses a tenth of its calls or time, and at least one call
WARM_UP_SECONDS = 5.0  # maximum for each setting; half of the budget if that is less
# Timeouts in seconds. Loading and warm-up may compile code; a turn may be one call of a slow contestant.
LOAD_SECONDS = 300.0
WARM_LIMIT = 300.0
TURN_LIMIT = 120.0


@dataclass(frozen=True)
class Budget:
    """Length of a measurement: `calls` calls or `seconds`, whichever ends first, and at least one turn."""

    calls: int
    seconds: float


@dataclass
class Runner:
    """A loaded contestant.

    Attributes:
        name: name of the contestant.
        process: its process.
        settings: the settings to try, for "fixed" workloads and for "text".
        budget: length of its measurement on one workload.
    """

    name: str
    process: WorkerProcess
    settings: Settings
    budget: Budget


@dataclass
class Times:
    """The results of one contestant on one workload.

    Attributes:
        setting: the fastest setting.
        warm_up_calls: number of warm-up calls with this setting.
        ids: ids of each sentence.
        rounds: milliseconds of each call of each round, by part; the whole call is "call".
        peak_resident_bytes: peak of resident memory since the task was received.
        failed: reason of an early end, or None.
    """

    setting: Mapping[str, str] = field(default_factory=dict)
    warm_up_calls: int = 0
    ids: list[list[int]] = field(default_factory=list)
    rounds: list[dict[str, list[float]]] = field(default_factory=list)
    peak_resident_bytes: int | None = None
    failed: str | None = None

    def all(self, part: str = "call") -> list[float]:
        """Return the milliseconds of all calls of a part."""
        return [time for turn in self.rounds for time in turn.get(part, [])]

    def medians(self) -> list[float]:
        """Return the milliseconds of the median call of each round."""
        return [percentile(turn["call"], 0.5) for turn in self.rounds]

    def is_enough(self, budget: Budget) -> bool:
        """Return whether the budget is used up."""
        spent = sum(sum(times) for turn in self.rounds for times in turn.values())
        return len(self.all()) >= budget.calls or spent >= 1e3 * budget.seconds


def run_rounds(runners: Sequence[Runner], task: Task, vocabulary: int) -> dict[str, Times]:
    """Measure all contestants on one task, in rounds. A contestant that has used its budget has no more turns.

    `Task.absent` is replaced by an id of the target vocabulary, of this size, that the first contestant does not
    generate. A contestant that fails has no more turns: `Times.failed` contains the reason, and its earlier results
    count.
    """
    results = {runner.name: Times() for runner in runners}

    def each(selected: Sequence[Runner], request: Callable[[Runner, Times], None]) -> None:
        for runner in selected:
            times = results[runner.name]
            if times.failed is None:
                try:
                    request(runner, times)
                except ContestantFailed as failure:
                    times.failed = str(failure)

    each(runners[:1], lambda runner, times: _start(runner, task, times))
    task = replace(task, absent=_absent(results[runners[0].name].ids, vocabulary, task.absent))
    each(runners[1:], lambda runner, times: _start(runner, task, times))
    for _ in range(ROUNDS):
        unfinished = [runner for runner in runners if not results[runner.name].is_enough(runner.budget)]
        each(unfinished, _turn)
    each(runners, _memory)
    return results


def _absent(ids: Sequence[Sequence[int]], vocabulary: int, preferred: int) -> int:
    present = {token for row in ids for token in row}
    return next((token for token in (preferred, *range(vocabulary)) if token not in present), preferred)


def _start(runner: Runner, task: Task, times: Times) -> None:
    runner.process.ask(60, do="task", task=asdict(task))
    best = None
    max_seconds = min(WARM_UP_SECONDS, runner.budget.seconds / 2)
    settings = runner.settings["fixed" if task.fixed else "text"]
    for setting in settings:
        reply = runner.process.ask(WARM_LIMIT, do="warm", setting=dict(setting), seconds=max_seconds, best=best)
        median = percentile(reply["times"][-3:], 0.5)
        if best is None or median < best:
            best = median
            times.setting = setting
            times.warm_up_calls = len(reply["times"])
            times.ids = reply["ids"]
    if times.setting != settings[-1]:
        runner.process.ask(WARM_LIMIT, do="warm", setting=dict(times.setting), seconds=max_seconds, best=None)


def _turn(runner: Runner, times: Times) -> None:
    calls = math.ceil(runner.budget.calls / ROUNDS)
    seconds = runner.budget.seconds / ROUNDS
    reply = runner.process.ask(TURN_LIMIT + seconds, do="turn", calls=calls, seconds=seconds)
    times.rounds.append(reply["times"])


def _memory(runner: Runner, times: Times) -> None:
    times.peak_resident_bytes = runner.process.ask(30, do="memory")["peak_resident_bytes"]
