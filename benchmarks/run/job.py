"""Conversion of the options of tx-bench to the job of a session, with all checks of input."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from txport.benchmarks.report.schema import Contestant
from txport.benchmarks.run.plans import PEERS, ContestantPlan, Place, bundle_plan, cpp_plan, peer_plans
from txport.benchmarks.run.workloads import Work, fixed_work, text_work
from txport.runtime.bundle.archive import files_of
from txport.runtime.bundle.manifest import Manifest
from txport.runtime.bundle.strict_json import read
from txport.runtime.engines.choice import FUSED, choose
from txport.runtime.errors import InputError, TxportError

BATCHES = (1, 8, 32)
SOURCE = 32
TARGET = 64
CURVE_BATCHES = (1, 2, 4, 8, 16, 32, 64)
CURVE_TARGETS = (16, 32, 64, 128, 256)
# Fields of a config that do not affect inference. A checkpoint that was trained further may differ in them.
_TRAINING = ("dropout",)


@dataclass(frozen=True)
class BenchOptions:
    """The options of tx-bench, parsed; see its help. Empty sequences stand for the defaults."""

    bundle: Path
    output: Path
    device: str
    engine: str
    lowering: str | None
    threads: int
    batches: Sequence[int]
    sources: Sequence[int]
    targets: Sequence[int]
    text: Path | None
    lines: int
    beam: int
    quick: bool
    calls: int
    seconds: float
    peer_seconds: float
    peers: Sequence[str]
    checkpoint: Path | None
    compute_types: Sequence[str]
    pythons: Mapping[str, str]
    cpp: Path | None
    against: Sequence[Path]
    roofline: bool
    command: tuple[str, ...]

    @property
    def place(self) -> Place:
        return Place(self.device, self.engine, self.lowering, self.threads)


@dataclass(frozen=True)
class Job:
    """Plan of a session.

    Attributes:
        options: options of tx-bench.
        plans: contestants; the first one is the bundle.
        skipped: contestants that cannot take part.
        shared: workloads for all contestants.
        alone: workloads for the bundle only.
    """

    options: BenchOptions
    plans: Sequence[ContestantPlan]
    skipped: Sequence[Contestant]
    shared: Sequence[Work]
    alone: Sequence[Work]


def make_job(options: BenchOptions, scratch: Path) -> Job:
    """Return the contestants and workloads of the options.

    Raises:
        InputError: the bundle does not support a workload, or another option cannot be used.
        BundleError: a bundle cannot be read.
    """
    manifest = Manifest.load(options.bundle)
    plans, skipped = _plans(options, manifest, scratch)
    shared = [fixed_work(manifest, *sizes, options.beam) for sizes in _grid(options, manifest)]
    curves = [fixed_work(manifest, *sizes, options.beam) for sizes in _curves(options, manifest)]
    names = {work.workload.name for work in shared}
    alone = [work for work in curves if work.workload.name not in names]
    return Job(options, plans, skipped, [*shared, *_texts(options, manifest)], alone)


def _grid(options: BenchOptions, manifest: Manifest) -> list[tuple[int, int, int]]:
    """Return batch, source and target of the shared workloads. Defaults are reduced to the limits of the bundle."""
    limits = manifest.limits
    max_batch = max(1, limits.batch // options.beam)
    batches = options.batches or sorted({min(batch, max_batch) for batch in BATCHES})
    sources = options.sources or [min(SOURCE, limits.source)]
    targets = options.targets or [min(TARGET, limits.target)]
    return list(itertools.product(batches, sources, targets))


def _curves(options: BenchOptions, manifest: Manifest) -> list[tuple[int, int, int]]:
    """Return the workloads for the bundle alone: a series of batch sizes and a series of target lengths."""
    if options.quick or options.batches or options.sources or options.targets:
        return []
    limits = manifest.limits
    source = min(SOURCE, limits.source)
    target = min(TARGET, limits.target)
    over_batches = [(batch, source, target) for batch in CURVE_BATCHES if batch * options.beam <= limits.batch]
    return [*over_batches, *((1, source, each) for each in CURVE_TARGETS if each <= limits.target and each != target)]


def _texts(options: BenchOptions, manifest: Manifest) -> list[Work]:
    """Return the text of the options, or that of the checkpoint, or that of the bundle's self-check."""
    if options.lines == 0:
        return []
    file = options.text
    checkpoint = _checkpoint(options)
    if file is None and checkpoint is not None and manifest.tokenizer.source:
        sentences = checkpoint / "sentences.txt"
        if sentences.is_file() and sentences.stat().st_size:
            file = sentences
    return text_work(options.bundle, manifest, file, options.lines, options.beam)


def _plans(
    options: BenchOptions, manifest: Manifest, scratch: Path
) -> tuple[list[ContestantPlan], Sequence[Contestant]]:
    plans = _bundle_plans(options, options.bundle, manifest, "txport")
    for other in options.against:
        plans += _bundle_plans(options, other, Manifest.load(other), _name(other, plans))
    if options.cpp is not None:
        plans.append(cpp_plan(options.bundle, manifest, options.place, options.cpp))
    if not options.peers:
        return plans, []
    checkpoint = _checkpoint(options)
    names = [name for name in PEERS if name in options.peers]
    arguments = (options.place, manifest.tokens.eos, scratch, options.compute_types, options.pythons)
    peers = peer_plans(names, checkpoint or options.bundle, *arguments)
    if checkpoint is None:
        reason = "the checkpoint that the bundle was exported from is needed: give --checkpoint"
        return plans, [replace(plan.contestant, skipped=reason) for plan in peers]
    _check_checkpoint(options.bundle, checkpoint)
    return [*plans, *peers], []


def _bundle_plans(options: BenchOptions, bundle: Path, manifest: Manifest, name: str) -> list[ContestantPlan]:
    """Return the plan of a bundle and, if the fused engine runs it, also its plan for ONNX Runtime's best lowering."""
    plans = [bundle_plan(bundle, manifest, options.place, name)]
    try:
        choice = choose(manifest, options.device, options.engine, options.lowering, bundle)
    except TxportError:  # the process of the bundle reports this error
        return plans
    if choice.engine == FUSED and choice.fallback is not None:
        ort_place = replace(options.place, engine=choice.fallback.engine)
        plans.append(bundle_plan(bundle, manifest, ort_place, f"{name}, ONNX Runtime"))
    return plans


def _name(bundle: Path, plans: Sequence[ContestantPlan]) -> str:
    used_names = {plan.contestant.name for plan in plans}
    numbered = (f"txport: {bundle}, {number}" for number in itertools.count())
    return next(
        name for name in itertools.chain([f"txport: {bundle.resolve().name}"], numbered) if name not in used_names
    )


def _checkpoint(options: BenchOptions) -> Path | None:
    """Return the checkpoint of the options, or the one beside the bundle (as after `make demo`), or None."""
    if options.checkpoint is not None:
        return options.checkpoint
    default = options.bundle.resolve().parent / "checkpoint"
    if (default / "config.json").is_file():
        return default
    return None


def _check_checkpoint(bundle: Path, checkpoint: Path) -> None:
    """Refuse a directory that is not a checkpoint, or contains another model than the bundle."""
    ours = read(files_of(bundle) / "config.json")
    theirs = read(checkpoint / "config.json", "give the right one with --checkpoint", InputError).get("config")
    if not isinstance(theirs, dict):
        raise InputError(
            f"{checkpoint / 'config.json'} does not belong to a checkpoint: give the right one with --checkpoint"
        )
    different = [name for name in ours if ours[name] != theirs.get(name) and name not in _TRAINING]
    if different:
        raise InputError(
            f"{bundle} was not exported from {checkpoint} ({different[0]} differs): "
            "give the right one with --checkpoint"
        )
