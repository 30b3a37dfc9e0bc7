"""A run of tx-bench: load everybody, measure workload after workload, and write after each of them."""

import datetime
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from txport.benchmarks.contestants.backend import Task
from txport.benchmarks.machine.description import describe
from txport.benchmarks.machine.energy import Meter, NvmlMeter, open_meter
from txport.benchmarks.machine.nvml import open_nvml
from txport.benchmarks.machine.roofline import probe, read_shape
from txport.benchmarks.report.report import write_report
from txport.benchmarks.report.schema import FORMAT, FORMAT_VERSION, Contestant, MadeBy, Percentiles, Report
from txport.benchmarks.report.statistics import percentiles
from txport.benchmarks.run.measure import measurement
from txport.benchmarks.run.plans import ANY, Place, Plan
from txport.benchmarks.run.rounds import LOAD_SECONDS, Budget, Racer, race
from txport.benchmarks.run.startup import startup
from txport.benchmarks.run.worker_process import ContestantFailed, WorkerProcess, prepare
from txport.benchmarks.run.workloads import Work
from txport.exporter.progress import Stages
from txport.runtime.bundle.manifest import Manifest
from txport.runtime.errors import InputError
from txport.runtime.version import VERSION
from txport.runtime.workers import cores

NOTES = (
    "Timed: whole calls from ids in memory to ids in memory, encoder and greedy loop; on a GPU until the ids are back.",
    "Not timed: loading, tokenization, conversion of ids for a library, warm-up; a bundle's text is detokenized.",
    "Warm-up: until three calls in a row take the same time within 5%, at most 30 calls or 5 s a setting (peers less).",
    "Interleaved: ten rounds, in each of which everybody has a tenth of its calls or time; the others are stopped.",
    "Fixed workloads: random ids; every sentence makes the same number of tokens, an eos goes on as any other token.",
    "A contestant with several settings (threads, batch size) is measured with the one that warmed up fastest.",
    "Ratios are medians over rounds of a contestant's time over the first one's: above 1 the first one is faster.",
    "The roofline counts weights, caches and products, by the bandwidth and peak that were measured before the run.",
    "Texts: the roofline takes full batches of sentences of the mean length.",
)


@dataclass(frozen=True)
class Job:
    """What to do.

    Attributes:
        bundle: whose report it is.
        place: where it runs.
        plans: contestants; the first one is the bundle.
        shared: workloads for all of them.
        alone: workloads for the bundle only.
        budget: of bundles.
        peer_budget: of the others.
        alone_budget: of the bundle on `alone`.
        probe: measure the machine's bandwidth and peak first.
        startups: processes to start for the start-up time; 0 for none.
        output: the JSON file.
        command: of the report.
        skipped: contestants that were asked for and cannot take part.
    """

    bundle: Path
    place: Place
    plans: Sequence[Plan]
    shared: Sequence[Work]
    alone: Sequence[Work]
    budget: Budget
    peer_budget: Budget
    alone_budget: Budget
    startups: int
    probe: bool
    output: Path
    command: tuple[str, ...]
    skipped: Sequence[Contestant] = ()


class Session:
    """One run."""

    def __init__(self, job: Job, stages: Stages) -> None:
        self._job, self._stages = job, stages
        self._manifest = Manifest.load(job.bundle)
        self._shape = read_shape(job.bundle, self._manifest)
        self._nvml = open_nvml()
        self._processes: dict[str, WorkerProcess] = {}
        self._settings = {plan.contestant.name: plan.settings for plan in job.plans}
        self.report = Report(
            format=FORMAT,
            format_version=FORMAT_VERSION,
            made_by=MadeBy("txport", VERSION),
            created=datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
            command=job.command,
            complete=False,
            notes=NOTES,
            machine=describe(self._nvml),
            reference=None,
            contestants=(),
            workloads=(),
            measurements=(),
        )

    def run(self) -> Report:
        """Do everything; `self.report` holds what was done if this raises.

        Raises:
            InputError: the bundle itself cannot be loaded; the message says why.
        """
        with open_meter(self._nvml) as meter:
            try:
                for plan in self._job.plans:
                    self._add(self._loaded(plan))
                self._probe()
                self._add(*self._job.skipped)
                self._reference()
                if self.report.contestants[0].device == "cpu" and isinstance(meter, NvmlMeter):
                    meter = None  # it says nothing of the processor
                for work in self._job.shared:
                    self._measure(work, self._job.plans, meter)
                for work in self._job.alone:
                    self._measure(work, self._job.plans[:1], meter, alone=True)
            finally:
                for process in self._processes.values():
                    process.close()
        self._save(complete=True)
        return self.report

    def _probe(self) -> None:
        if self._job.probe:
            self._stages.stage("bandwidth and peak of this machine")
            machine, device = self.report.machine, self.report.contestants[0].device
            found = probe(device, self._job.place.threads or cores(), machine.memory_bytes)
            machine = replace(machine, bandwidth=found.bandwidth, peaks=found.peaks)
            self.report = replace(self.report, machine=machine)

    def _loaded(self, plan: Plan) -> Contestant:
        """Load a contestant; what the report says of it."""
        contestant, first = plan.contestant, not self.report.contestants
        self._stages.stage(f"load {contestant.name}")
        started = time.monotonic()
        process: WorkerProcess | None = None
        try:
            if plan.prepare and not Path(plan.prepare[-1]).exists():
                prepare(list(plan.prepare), plan.python, LOAD_SECONDS)
                started = time.monotonic()
            process = WorkerProcess(plan.python, plan.environment)
            description = dict(plan.description)
            description.setdefault("device", self.report.contestants[0].device if not first else None)
            reply = process.ask(LOAD_SECONDS, do="load", kind=contestant.kind, description=description)
            self._processes[contestant.name] = process
            found = {"engine": reply["engine"], "device": reply["device"]}
            contestant = replace(contestant, **found, load_ms=(time.monotonic() - started) * 1e3)
            if reply["startup_ms"]:
                contestant = replace(contestant, startup_ms=percentiles(reply["startup_ms"]))
            elif contestant.kind == "bundle":
                contestant = replace(contestant, startup_ms=self._startup(plan))
        except ContestantFailed as failure:
            if process is not None:
                process.close()
            if first:
                raise InputError(f"{self._job.bundle} does not run here: {failure}") from None
            contestant = replace(contestant, skipped=str(failure))
        return contestant

    def _startup(self, plan: Plan) -> Percentiles:
        self._stages.stage(f"start-up of {plan.contestant.name}")
        given, source = plan.description, [*self._job.shared, *self._job.alone][0].sources[0]
        return startup(
            Path(given["bundle"]), given["device"], given["lowering"], given["threads"], source, self._job.startups
        )

    def _reference(self) -> None:
        names = [each.name for each in self.report.contestants if each.kind == "pytorch" and not each.skipped]
        self.report = replace(self.report, reference=(names or [self.report.contestants[0].name])[0])

    def _measure(self, work: Work, plans: Sequence[Plan], meter: Meter | None, alone: bool = False) -> None:
        self._stages.stage(f"measure {work.workload.name}")
        names = [plan.contestant.name for plan in plans]
        racers = [self._racer(name, alone) for name in names if name in self._processes]
        task = Task(work.sources, work.target, work.workload.kind == "fixed", work.prefix, self._manifest.tokens.pad)
        times = race(racers, task, meter, self._manifest.model.target_vocabulary)
        reference = self.report.reference
        assert reference is not None
        reference = reference if reference in times else racers[0].name
        found = []
        for racer in racers:
            ours = times[racer.name]
            if ours.rounds:
                contestant = next(each for each in self.report.contestants if each.name == racer.name)
                gpu = self._nvml.process_bytes(racer.process.pid) if self._nvml else None
                rows = self._manifest.limits.batch
                found.append(
                    measurement(
                        contestant, work, times, racers[0].name, reference, self._shape, self.report.machine, rows, gpu
                    )
                )
            if ours.failed is not None:
                self._leave(racer, f"{work.workload.name}: {ours.failed}")
        self.report = replace(
            self.report,
            workloads=(*self.report.workloads, work.workload),
            measurements=(*self.report.measurements, *found),
        )
        self._save(complete=False)

    def _racer(self, name: str, alone: bool) -> Racer:
        contestant = next(each for each in self.report.contestants if each.name == name)
        budget = self._job.budget if contestant.kind == "bundle" else self._job.peer_budget
        # Threads of the host are no matter on a device.
        settings = ANY if contestant.kind == "bundle" and contestant.device != "cpu" else self._settings[name]
        return Racer(name, self._processes[name], settings, self._job.alone_budget if alone else budget)

    def _leave(self, racer: Racer, reason: str) -> None:
        """A contestant that failed takes part in nothing more, unless it only refused this workload."""
        changed = [
            replace(each, skipped="; ".join(filter(None, [each.skipped, reason]))) if each.name == racer.name else each
            for each in self.report.contestants
        ]
        self.report = replace(self.report, contestants=tuple(changed))
        if not racer.process.alive():
            self._processes.pop(racer.name).close()
            if racer.name == self.report.contestants[0].name:
                raise InputError(f"the bundle failed on {reason}; what was measured is in {self._job.output}")

    def _add(self, *contestants: Contestant) -> None:
        self.report = replace(self.report, contestants=(*self.report.contestants, *contestants))

    def _save(self, complete: bool) -> None:
        self.report = replace(self.report, complete=complete)
        write_report(self._job.output, self.report)
