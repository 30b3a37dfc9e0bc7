"""Contestants on one workload, in rounds: each has its turn in each round, so that a drift of the machine hits all.

Before the rounds each contestant warms up with each of its settings, and keeps the fastest.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace

from txport.benchmarks.contestants.backend import Task
from txport.benchmarks.machine.energy import Meter
from txport.benchmarks.report.statistics import percentile
from txport.benchmarks.run.worker_process import ContestantFailed, WorkerProcess

ROUNDS = 10  # in each everybody has a tenth of its calls or time, and one call at least
WARM_UP_SECONDS = 5.0  # the most for each setting; half of the budget if that is less
# Loading and warming up may compile something; a turn may be one call of a slow contestant.
LOAD_SECONDS, WARM_LIMIT, TURN_LIMIT = 300.0, 300.0, 120.0


@dataclass(frozen=True)
class Budget:
    """How long a contestant is measured: until it made `calls` calls, or for `seconds`, and one turn at least."""

    calls: int
    seconds: float


@dataclass
class Racer:
    """A contestant that was loaded.

    Attributes:
        name: of the contestant.
        process: loaded.
        settings: what it may be set to for a fixed workload and for a text.
        budget: how long it is measured on one workload.
    """

    name: str
    process: WorkerProcess
    settings: Mapping[str, Sequence[Mapping[str, str]]]
    budget: Budget


@dataclass
class Times:
    """What one contestant did on one workload.

    Attributes:
        setting: the one that was fastest.
        warm_up_calls: with that setting.
        ids: of each sentence.
        rounds: milliseconds of each call of each round, by part; the whole is "call".
        joules: of all turns, None without a meter.
        peak_resident_bytes: during the turns.
        failed: why it stopped early.
    """

    setting: Mapping[str, str] = field(default_factory=dict)
    warm_up_calls: int = 0
    ids: list[list[int]] = field(default_factory=list)
    rounds: list[dict[str, list[float]]] = field(default_factory=list)
    joules: float | None = None
    peak_resident_bytes: int | None = None
    failed: str | None = None

    def all(self, part: str = "call") -> list[float]:
        """Milliseconds of all calls of a part."""
        return [time for turn in self.rounds for time in turn.get(part, [])]

    def medians(self) -> list[float]:
        """The median call of each round, milliseconds."""
        return [percentile(turn["call"], 0.5) for turn in self.rounds]

    def enough(self, budget: Budget) -> bool:
        """Whether the budget is used up."""
        spent = sum(sum(times) for turn in self.rounds for times in turn.values())
        return len(self.all()) >= budget.calls or spent >= 1e3 * budget.seconds


def race(racers: Sequence[Racer], task: Task, meter: Meter | None, vocabulary: int) -> dict[str, Times]:
    """Measure all on one task, in rounds; one that takes longer than its time for a few calls is done earlier.

    `Task.absent` is replaced by an id, of a target vocabulary of this size, that the first one does not make.
    A contestant that fails leaves the race: `Times.failed` says why, and what it did before counts.
    """
    found = {racer.name: Times() for racer in racers}

    def turn(racer: Racer, times: Times) -> None:
        _turn(racer, times, meter)

    def each(chosen: Sequence[Racer], ask: Callable[[Racer, Times], None]) -> None:
        for racer in chosen:
            times = found[racer.name]
            if times.failed is None:
                try:
                    ask(racer, times)
                except ContestantFailed as failure:
                    times.failed = str(failure)

    each(racers[:1], lambda racer, times: _start(racer, task, times))
    task = replace(task, absent=_absent(found[racers[0].name].ids, vocabulary, task.absent))
    each(racers[1:], lambda racer, times: _start(racer, task, times))
    for _ in range(ROUNDS):
        each([racer for racer in racers if not found[racer.name].enough(racer.budget)], turn)
    each(racers, _memory)
    return found


def _absent(ids: Sequence[Sequence[int]], vocabulary: int, preferred: int) -> int:
    made = {token for row in ids for token in row}
    return next((token for token in (preferred, *range(vocabulary)) if token not in made), preferred)


def _memory(racer: Racer, times: Times) -> None:
    times.peak_resident_bytes = racer.process.ask(30, do="memory")["peak_resident_bytes"]


def _start(racer: Racer, task: Task, times: Times) -> None:
    racer.process.ask(60, do="task", task=asdict(task))
    best, most = None, min(WARM_UP_SECONDS, racer.budget.seconds / 2)
    settings = racer.settings["fixed" if task.fixed else "text"]
    for setting in settings:
        reply = racer.process.ask(WARM_LIMIT, do="warm", setting=dict(setting), seconds=most, best=best)
        median = percentile(reply["times"][-3:], 0.5)
        if best is None or median < best:
            best, times.setting = median, setting
            times.warm_up_calls, times.ids = len(reply["times"]), reply["ids"]
    if times.setting != settings[-1]:
        racer.process.ask(WARM_LIMIT, do="warm", setting=dict(times.setting), seconds=most, best=None)


def _turn(racer: Racer, times: Times, meter: Meter | None) -> None:
    before = meter.joules() if meter else 0.0
    calls, seconds = math.ceil(racer.budget.calls / ROUNDS), racer.budget.seconds / ROUNDS
    reply = racer.process.ask(TURN_LIMIT + seconds, do="turn", calls=calls, seconds=seconds)
    times.rounds.append(reply["times"])
    if meter:
        times.joules = (times.joules or 0.0) + meter.joules() - before
