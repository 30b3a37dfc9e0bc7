"""How cost grows with each size: of bundles with random weights, exported on the way, and of one file of sentences.

Every point of an axis is measured in each of several rounds, so that a drift of the machine does not look like growth.
"""

import itertools
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from txport.benchmarks.report.statistics import percentile
from txport.benchmarks.run.rounds import TURN_LIMIT, WARM_LIMIT
from txport.benchmarks.run.worker_process import ContestantFailed, WorkerProcess
from txport.benchmarks.run.workloads import Work, first_sentences, fixed_work
from txport.benchmarks.scale.schema import Axis, Fit, Point
from txport.benchmarks.scale.sizes import FULL
from txport.benchmarks.studies.random_checkpoint import random_checkpoint
from txport.exporter.export import ExportOptions, export_bundle
from txport.exporter.progress import Stages
from txport.runtime.bundle.manifest import Manifest
from txport.runtime.errors import InputError
from txport.runtime.golden import load_golden

ROUNDS, TURN_SECONDS = 4, 0.5
SIZES: Mapping[str, int] = {"source": 32, "target": 32, "batch": 1}  # of the axes that do not grow
VOCABULARY = 8_000

# Reads and writes files as tx-translate does; prints seconds and the peak memory.
_FILE = """
import sys, time
from txport.runtime import Translator
bundle, source, target, threads = sys.argv[1:]
translator = Translator(bundle, threads=int(threads))
translator.translate(["a"])
start = time.perf_counter()
translator.translate_file(source, target)
seconds = time.perf_counter() - start
from txport.runtime.system import process_memory
print(seconds, process_memory("VmHWM"))
"""


@dataclass(frozen=True)
class Study:
    """The options that all axes share.

    Attributes:
        preset: of the random models.
        threads: of the engine; 0 for the default.
        scratch: for random bundles.
        bundle: a trained one, for the axis "sentences".
        text: its sentences, repeated as often as needed; None for those of its self-check.
    """

    preset: str
    threads: int
    scratch: Path
    bundle: Path | None
    text: Path | None


def measure_axis(study: Study, name: str, values: Sequence[int], stages: Stages) -> Axis:
    """Measure one axis.

    Raises:
        InputError: the axis needs a bundle and there is none, or a value is not possible.
    """
    if name == "sentences":
        points = _sentences(study, values, stages)
        fixed = "a text file, sorted and batched by the runtime"
        return Axis(name, "sentences a second", fixed, tuple(points), fit(points))
    try:
        with ExitStack() as stack:
            points = _rounds(_works(study, name, values, stack, stages), values, stages)
    except ContestantFailed as failure:
        raise InputError(f"{name} cannot be measured: {failure}; choose smaller sizes with --values") from None
    words = {"source": "{} source tokens", "target": "{} new tokens", "batch": "batch {}"}
    others = [words[axis].format(size) for axis, size in SIZES.items() if axis != name]
    return Axis(name, "ms a call", ", ".join([f"preset {study.preset}", *others]), tuple(points), fit(points))


def fit(points: Sequence[Point]) -> Fit | None:
    """The exponent of the figures, by least squares of logarithms, with its standard error; None for two points."""
    if len(points) < 3:
        return None
    x, y = (np.log([getattr(point, name) for point in points]) for name in ("value", "figure"))
    centred = x - x.mean()
    slope = float(centred @ y / (centred @ centred))
    residuals = y - y.mean() - slope * centred
    error = float(np.sqrt(residuals @ residuals / (len(points) - 2) / (centred @ centred)))
    return Fit(slope, error)


def _works(
    study: Study, name: str, values: Sequence[int], stack: ExitStack, stages: Stages
) -> list[tuple[WorkerProcess, Work]]:
    """A process with its bundle, and a workload, for each value."""
    if name in ("layers", "vocabulary"):
        fields = ("vocabulary",) if name == "vocabulary" else ("encoder_layers", "decoder_layers")
        bundles = []
        for value in values:
            stages.stage(f"export a model with {name} {value}")
            bundles.append(_random_bundle(study, f"{name}-{value}", {}, **dict.fromkeys(fields, value)))
        return [(_open(study, bundle, stack), _work(bundle, {})) for bundle in bundles]
    stages.stage(f"export a model for {name}")
    bundle = _random_bundle(study, name, {name: max(values)})
    process = _open(study, bundle, stack)
    return [(process, _work(bundle, {name: value})) for value in values]


def _random_bundle(study: Study, name: str, largest: Mapping[str, int], **fields: int) -> Path:
    """A bundle for workloads up to the largest sizes; `fields` are of the model's config."""
    checkpoint, bundle = study.scratch / f"{name}-checkpoint", study.scratch / name
    sizes, vocabulary = {**SIZES, **largest}, fields.pop("vocabulary", VOCABULARY)
    positions = max(SIZES["source"], SIZES["target"], sizes["source"], sizes["target"])
    random_checkpoint(checkpoint, study.preset, vocabulary=vocabulary, positions=positions, **fields)
    options = ExportOptions(lowerings=("ort",), max_batch=sizes["batch"], verify=False, sentences=1)
    export_bundle(checkpoint, bundle, options)
    return bundle


def _work(bundle: Path, sizes: Mapping[str, int]) -> Work:
    return fixed_work(Manifest.load(bundle), **{**SIZES, **sizes})


def _open(study: Study, bundle: Path, stack: ExitStack) -> WorkerProcess:
    process = WorkerProcess(None, {})
    stack.callback(process.close)
    description = {"bundle": str(bundle), "device": "cpu", "lowering": None, "threads": study.threads}
    process.ask(WARM_LIMIT, do="load", kind="bundle", description=description)
    return process


def _rounds(works: Sequence[tuple[WorkerProcess, Work]], values: Sequence[int], stages: Stages) -> list[Point]:
    times: list[list[float]] = [[] for _ in works]
    peaks: list[int | None] = [None] * len(works)
    stages.stage("measure", ROUNDS * len(works))
    for _ in range(ROUNDS):
        for index, (process, work) in enumerate(works):
            process.ask(60, do="task", task=asdict(work.task))
            process.ask(WARM_LIMIT, do="warm", setting={}, seconds=TURN_SECONDS, best=None)
            times[index] += process.ask(TURN_LIMIT, do="turn", calls=200, seconds=TURN_SECONDS)["times"]["call"]
            peaks[index] = process.ask(60, do="memory")["peak_resident_bytes"]
            stages.advance()
    return [
        Point(value, percentile(each, 0.5), percentile(each, 0.1), percentile(each, 0.9), peak)
        for value, each, peak in zip(values, times, peaks, strict=True)
    ]


def _sentences(study: Study, values: Sequence[int], stages: Stages) -> list[Point]:
    if study.bundle is None:
        raise InputError("the axis of sentences needs a trained bundle: give one with --bundle")
    if study.text is not None:
        lines = first_sentences(study.text, max(FULL["sentences"]))
    elif not (lines := [case.source for case in load_golden(study.bundle).cases if case.source]):
        raise InputError(f"{study.bundle} has no sentences of its own: give a file of some with --text")
    points = []
    for value in values:
        stages.stage(f"translate {value} sentences")
        source, target = study.scratch / "source.txt", study.scratch / "target.txt"
        with source.open("w", encoding="utf-8") as file:
            file.writelines(f"{line}\n" for line in itertools.islice(itertools.cycle(lines), value))
        # Short runs are repeated: a single one would say more about the moment than about the runtime.
        runs = [_translate(study, source, target) for _ in range(3 if value <= 1000 else 1)]
        rates = [value / seconds for seconds, _ in runs]
        peak = max(peak for _, peak in runs)
        points.append(Point(value, percentile(rates, 0.5), min(rates), max(rates), peak))
    return points


def _translate(study: Study, source: Path, target: Path) -> tuple[float, int]:
    arguments = [str(study.bundle), str(source), str(target), str(study.threads)]
    done = subprocess.run([sys.executable, "-c", _FILE, *arguments], capture_output=True, text=True)
    if done.returncode:
        raise InputError(f"{study.bundle} does not translate: {done.stderr.strip().splitlines()[-1]}")
    seconds, peak = done.stdout.split()
    return float(seconds), int(peak)
