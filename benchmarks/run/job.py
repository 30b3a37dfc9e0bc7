"""From the options of tx-bench to what a session does; everything that can be refused is refused here."""

import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from txport.benchmarks.report.schema import Contestant
from txport.benchmarks.run.plans import PEERS, Place, Plan, bundle_plan, cpp_plan, peer_plans
from txport.benchmarks.run.rounds import Budget
from txport.benchmarks.run.session import Job
from txport.benchmarks.run.startup import REPEATS
from txport.benchmarks.run.workloads import Work, fixed_work, text_work
from txport.runtime.bundle.manifest import Manifest
from txport.runtime.errors import InputError

BATCHES, SOURCE, TARGET = (1, 8, 32), 32, 64
CURVE_BATCHES, CURVE_TARGETS = (1, 2, 4, 8, 16, 32, 64), (16, 32, 64, 128, 256)
CURVE_SECONDS = 2.0
# Fields of a config that say nothing of what is computed.
_TRAINING = ("dropout",)


@dataclass(frozen=True)
class Request:
    """The options of tx-bench, parsed; see its help. Empty lists stand for the defaults."""

    bundle: Path
    output: Path
    place: Place
    batches: Sequence[int]
    sources: Sequence[int]
    targets: Sequence[int]
    text: Path | None
    lines: int
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
    probe: bool
    command: tuple[str, ...]


def make_job(request: Request, scratch: Path) -> Job:
    """What to do.

    Raises:
        InputError: a workload that the bundle does not take, or anything else that cannot be used.
        BundleError: a bundle that cannot be read.
    """
    manifest = Manifest.load(request.bundle)
    plans, skipped = _plans(request, manifest, scratch)
    shared = [fixed_work(manifest, *sizes) for sizes in _grid(request, manifest)]
    curves = [fixed_work(manifest, *sizes) for sizes in _curves(request, manifest)]
    named = {work.workload.name for work in shared}
    return Job(
        bundle=request.bundle,
        place=request.place,
        plans=plans,
        shared=[*shared, *_texts(request, manifest)],
        alone=[work for work in curves if work.workload.name not in named],
        budget=Budget(request.calls, request.seconds),
        peer_budget=Budget(request.calls, request.peer_seconds),
        alone_budget=Budget(request.calls, min(request.seconds, CURVE_SECONDS)),
        startups=min(REPEATS, request.calls),
        probe=request.probe,
        output=request.output,
        command=request.command,
        skipped=skipped,
    )


def _grid(request: Request, manifest: Manifest) -> list[tuple[int, int, int]]:
    """Batch, source, target of the workloads for all. What was not asked for is kept within the bundle's limits."""
    limits = manifest.limits
    batches = request.batches or sorted({min(batch, limits.batch) for batch in BATCHES})
    sources = request.sources or [min(SOURCE, limits.source)]
    targets = request.targets or [min(TARGET, limits.target)]
    return list(itertools.product(batches, sources, targets))


def _curves(request: Request, manifest: Manifest) -> list[tuple[int, int, int]]:
    """Those for the bundle alone: over batches, and over target lengths."""
    if request.quick or request.batches or request.sources or request.targets:
        return []
    limits = manifest.limits
    source, target = min(SOURCE, limits.source), min(TARGET, limits.target)
    over_batches = [(batch, source, target) for batch in CURVE_BATCHES if batch <= limits.batch]
    return [*over_batches, *((1, source, each) for each in CURVE_TARGETS if each <= limits.target and each != target)]


def _texts(request: Request, manifest: Manifest) -> list[Work]:
    if request.lines == 0:
        return []
    file = request.text
    checkpoint = _checkpoint(request)
    if (
        file is None
        and checkpoint is not None
        and (checkpoint / "sentences.txt").is_file()
        and manifest.tokenizer.source
    ):
        file = checkpoint / "sentences.txt"
        if not file.stat().st_size:
            file = None
    work = text_work(request.bundle, manifest, file, request.lines)
    return [work] if work is not None else []


def _plans(request: Request, manifest: Manifest, scratch: Path) -> tuple[list[Plan], list[Contestant]]:
    plans = [bundle_plan(request.bundle, manifest, request.place, "txport")]
    for other in request.against:
        plans.append(bundle_plan(other, Manifest.load(other), request.place, _name(other, plans)))
    if request.cpp is not None:
        plans.append(cpp_plan(request.bundle, manifest, request.place, request.cpp))
    if not request.peers:
        return plans, []
    checkpoint = _checkpoint(request)
    names = [name for name in PEERS if name in request.peers]
    arguments = (request.place, manifest.tokens.eos, scratch, request.compute_types, request.pythons)
    peers = peer_plans(names, checkpoint or request.bundle, *arguments)
    reason = _no_peers(request, checkpoint)
    if reason is None:
        return [*plans, *peers], []
    return plans, [replace(plan.contestant, skipped=reason) for plan in peers]


def _name(other: Path, plans: Sequence[Plan]) -> str:
    taken = {plan.contestant.name for plan in plans}
    candidates = itertools.chain(
        [f"txport: {other.resolve().name}"], (f"txport: {other}, {n}" for n in itertools.count())
    )
    return next(name for name in candidates if name not in taken)


def _checkpoint(request: Request) -> Path | None:
    """The one that was given, else the one beside the bundle, as `make demo` leaves it, if there is one."""
    if request.checkpoint is not None:
        return request.checkpoint
    beside = request.bundle.resolve().parent / "checkpoint"
    return beside if (beside / "config.json").is_file() else None


def _no_peers(request: Request, checkpoint: Path | None) -> str | None:
    """Why no peer can take part, None if they can.

    Raises:
        InputError: the checkpoint is not one, or of another model than the bundle.
    """
    if checkpoint is None:
        return "the checkpoint that the bundle was exported from is needed: give --checkpoint"
    ours, theirs = _config(request.bundle / "config.json"), _config(checkpoint / "config.json").get("config")
    if not isinstance(theirs, dict):
        raise InputError(
            f"{checkpoint / 'config.json'} is not that of a checkpoint: give the right one with --checkpoint"
        )
    different = [name for name in ours if ours[name] != theirs.get(name) and name not in _TRAINING]
    if different:
        raise InputError(
            f"{checkpoint} is not what {request.bundle} was exported from ({different[0]} differs): "
            "give the right one with --checkpoint"
        )
    return None


def _config(file: Path) -> dict[str, object]:
    try:
        value = json.loads(file.read_bytes())
    except (OSError, ValueError) as error:
        raise InputError(f"{file} cannot be read ({error}): give another checkpoint with --checkpoint") from None
    return value if isinstance(value, dict) else {}
