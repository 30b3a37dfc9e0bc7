"""A run of tx-bench: load all contestants, measure all workloads, and write the report after each of them."""

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from txport.benchmarks.machine.description import describe
from txport.benchmarks.machine.nvml import open_nvml
from txport.benchmarks.machine.probe import probe
from txport.benchmarks.machine.roofline import read_shape
from txport.benchmarks.report.report import header, write_report
from txport.benchmarks.report.schema import BENCH_FORMAT, BENCH_FORMAT_VERSION, BenchReport, Contestant
from txport.benchmarks.report.statistics import percentiles
from txport.benchmarks.run.job import Job
from txport.benchmarks.run.measure import measurement
from txport.benchmarks.run.plans import ANY, ContestantPlan
from txport.benchmarks.run.rounds import LOAD_SECONDS, Budget, Runner, run_rounds
from txport.benchmarks.run.startup import REPEATS, startup
from txport.benchmarks.run.worker_process import ContestantFailed, WorkerProcess, prepare
from txport.benchmarks.run.workloads import Work
from txport.runtime.bundle.manifest import Manifest
from txport.runtime.console.progress import Stages
from txport.runtime.errors import EngineError, InputError

CURVE_SECONDS = 2.0  # maximum for a workload of the bundle alone
NOTES = (
    "Timed: whole calls from ids in memory to ids in memory, encoder and search; on a GPU until the ids are back.",
    "Not timed: loading, tokenization, conversion of ids for a library, warm-up; a bundle's text is detokenized.",
    "Warm-up: until three calls in a row take the same time within 5%, at most 30 calls or 5 s a setting (peers less).",
    "Interleaved: ten rounds, in each of which each has a tenth of its calls or time; the others are stopped.",
    "Fixed workloads: random ids; every sentence makes the same number of tokens, an eos is a token like any other.",
    "A contestant with several settings (threads, batch size) is measured with the one that warmed up fastest.",
    "Ratios are medians over rounds of a contestant's time over the first one's: above 1 the first one is faster.",
    "The roofline counts weights, caches and products, by the bandwidth and peak that were measured before the run.",
    "Texts: the roofline takes full batches of sentences of the mean length.",
)


class Session:
    """One run. `report` contains the measurements so far.

    Args:
        job: contestants, workloads and options.
        stages: display of the progress.
    """

    def __init__(self, job: Job, stages: Stages) -> None:
        self._job = job
        self._options = job.options
        self._stages = stages
        self._manifest = Manifest.load(self._options.bundle)
        self._shape = read_shape(self._options.bundle, self._manifest)
        self._nvml = open_nvml()
        self._processes: dict[str, WorkerProcess] = {}
        self._settings = {plan.contestant.name: plan.settings for plan in job.plans}
        start = header(BENCH_FORMAT, BENCH_FORMAT_VERSION, self._options.command, describe(self._nvml))
        self.report = BenchReport(**start, notes=NOTES)

    def run(self) -> None:
        """Load and measure everything. After an error, `self.report` contains the earlier results.

        Raises:
            InputError: the bundle cannot be loaded; the message contains the reason.
            EngineError: the bundle failed later.
        """
        try:
            for plan in self._job.plans:
                self._change(contestants=(*self.report.contestants, self._loaded(plan)))
            self._probe()
            self._change(contestants=(*self.report.contestants, *self._job.skipped), reference=self._reference())
            for work in self._job.shared:
                self._measure(work, self._runners())
            for work in self._job.alone:
                self._measure(work, self._runners(alone=True))
        finally:  # stopped processes would stay forever
            for process in self._processes.values():
                process.close()
        self._save(complete=True)

    def _reference(self) -> str:
        """Return the contestant whose ids are the reference: PyTorch or, with beams, Hugging Face, if it takes part."""
        if self._options.beam > 1:
            reference_kind = "huggingface"
        else:
            reference_kind = "pytorch"
        names = [each.name for each in self.report.contestants if each.kind == reference_kind and not each.skipped]
        return (names or [self.report.contestants[0].name])[0]

    def _probe(self) -> None:
        if self._options.roofline:
            self._stages.stage("bandwidth and peak of this machine")
            machine = self.report.machine
            device = self.report.contestants[0].device
            probed = probe(device, int(self._options.place.width), machine.memory_bytes)
            self._change(machine=replace(machine, bandwidth=probed.bandwidth, peaks=probed.peaks))

    def _loaded(self, plan: ContestantPlan) -> Contestant:
        """Load a contestant and describe it for the report, with the reason if it failed."""
        contestant = plan.contestant
        first = not self.report.contestants
        self._stages.stage(f"load {contestant.name}")
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
            load_ms = (time.monotonic() - started) * 1e3
            contestant = replace(contestant, engine=reply["engine"], device=reply["device"], load_ms=load_ms)
            if reply["startup_ms"]:
                return replace(contestant, startup_ms=percentiles(reply["startup_ms"]))
            if contestant.kind == "bundle":
                self._stages.stage(f"start-up of {contestant.name}")
                source = self._job.shared[0].task.sources[0]
                repeats = min(REPEATS, self._options.calls)
                return replace(contestant, startup_ms=startup(plan.description, source, repeats))
            return contestant
        except ContestantFailed as failure:
            if process is not None:
                process.close()
            if first:  # without the bundle, there is nothing to compare with
                raise InputError(f"{self._options.bundle} does not run on this machine: {failure}") from None
            return replace(contestant, skipped=str(failure))

    def _measure(self, work: Work, runners: Sequence[Runner]) -> None:
        self._stages.stage(f"measure {work.workload.name}")
        times = run_rounds(runners, work.task, self._manifest.model.target_vocabulary)
        first = runners[0].name
        rows = self._manifest.limits.batch
        reference = self.report.reference or first
        if reference not in times:
            reference = first
        measurements = []
        for runner in runners:
            if times[runner.name].rounds:
                contestant = next(each for each in self.report.contestants if each.name == runner.name)
                if self._nvml:
                    gpu = self._nvml.process_bytes(runner.process.pid)
                else:
                    gpu = None
                arguments = (contestant, work, times, first, reference, self._shape, self.report.machine, rows, gpu)
                measurements.append(measurement(*arguments))
            if (reason := times[runner.name].failed) is not None:
                self._leave(runner, f"{work.workload.name}: {reason}")
        self._change(
            workloads=(*self.report.workloads, work.workload),
            measurements=(*self.report.measurements, *measurements),
        )
        self._save(complete=False)

    def _runners(self, alone: bool = False) -> list[Runner]:
        """Return the contestants that are loaded, or the bundle alone, with their budgets."""
        runners = []
        for each in self.report.contestants[: 1 if alone else None]:
            if each.name in self._processes:
                options = self._options
                ours = each.kind == "bundle"
                if ours:
                    seconds = options.seconds
                else:
                    seconds = options.peer_seconds
                budget = Budget(options.calls, min(seconds, CURVE_SECONDS) if alone else seconds)
                # On a device, the number of host threads does not matter, so only one setting is tried.
                if ours and each.device != "cpu":
                    settings = ANY
                else:
                    settings = self._settings[each.name]
                runners.append(Runner(each.name, self._processes[each.name], settings, budget))
        return runners

    def _leave(self, runner: Runner, reason: str) -> None:
        """Remove a contestant after a failure, unless it only refused this workload."""
        contestants = {each.name: each for each in self.report.contestants}
        contestant = contestants[runner.name]
        contestants[contestant.name] = replace(
            contestant, skipped="; ".join(filter(None, [contestant.skipped, reason]))
        )
        self._change(contestants=tuple(contestants.values()))
        if not runner.process.alive():
            self._processes.pop(runner.name).close()
            if runner.name == self.report.contestants[0].name:
                raise EngineError(f"the bundle failed on {reason}; earlier results are in {self._options.output}")

    def _change(self, **fields: Any) -> None:
        self.report = replace(self.report, **fields)

    def _save(self, complete: bool) -> None:
        self._change(complete=complete)
        write_report(self._options.output, self.report)
