"""The contestants of a run before they are loaded: the bundle, other bundles, txport-bench, and the peers."""

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from txport.benchmarks.contestants.backend import DEFAULT
from txport.benchmarks.contestants.cpp import CPP_NAME
from txport.benchmarks.report.schema import BundleFacts, Contestant, Kind
from txport.runtime.bundle.manifest import WEIGHTS, Manifest
from txport.runtime.engines.build_record import BuildRecord
from txport.runtime.engines.directories import directories, user_engines
from txport.runtime.errors import InputError
from txport.runtime.system import cores

Settings = Mapping[str, Sequence[Mapping[str, str]]]
PEERS: tuple[Kind, ...] = ("pytorch", "compile", "huggingface", "ctranslate2", "optimum")
_TITLES: Mapping[Kind, str] = {
    "pytorch": "PyTorch eager",
    "compile": "PyTorch compiled",
    "huggingface": "Hugging Face",
    "optimum": "optimum-onnx",
}
TEXT_ROWS = ("64", "16")  # batch sizes that peers try on a text
ANY: Settings = {"fixed": ({},), "text": ({},)}


@dataclass(frozen=True)
class Place:
    """Placement of contestants: options of tx-bench, and keywords of the backends that run a bundle."""

    device: str
    engine: str
    lowering: str | None
    threads: int

    @property
    def width(self) -> str:
        """Number of threads, for contestants that need an explicit number."""
        return str(self.threads or cores())


@dataclass(frozen=True)
class ContestantPlan:
    """One contestant before it is loaded.

    Attributes:
        contestant: its description in the report.
        description: keywords for its backend. Peers also receive the actual `device` of the bundle.
        settings: the settings that it tries.
        python: another interpreter; None for this one.
        environment: variables that are added to the environment of its process.
        prepare: a module to run before loading, with its arguments.
    """

    contestant: Contestant
    description: dict[str, Any]
    settings: Settings = field(default_factory=lambda: ANY)
    python: str | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    prepare: tuple[str, ...] = ()


def bundle_plan(bundle: Path, manifest: Manifest, place: Place, name: str) -> ContestantPlan:
    """Return the plan of a bundle with the Python runtime."""
    precision = manifest.precision.weights
    size = manifest.files[WEIGHTS].bytes
    verified = manifest.verification is not None and manifest.verification.passed
    build_seconds = [BuildRecord.load(directory).build_seconds for directory in directories(user_engines(manifest))]
    contestant = Contestant(
        name,
        "bundle",
        precision,
        place.device,
        place.threads,
        bundle=BundleFacts(bundle.resolve().name, manifest.sha256, precision, size, verified),
        engine_build_seconds=sum(build_seconds) if build_seconds else None,
    )
    return ContestantPlan(contestant, {"bundle": str(bundle), **asdict(place)}, _bundle_settings(place))


def _bundle_settings(place: Place) -> Settings:
    """Return the settings of a bundle: default threads, one thread, and for a text also one worker per core.

    As for peers, one thread may be faster if other programs use the cores.
    """
    if place.threads or cores() == 1:
        return ANY
    each = [{"threads": DEFAULT}, {"threads": "1"}]
    return {"fixed": each, "text": [*each, {"threads": DEFAULT, "workers": DEFAULT}]}


def cpp_plan(bundle: Path, manifest: Manifest, place: Place, tool: Path) -> ContestantPlan:
    """Return the plan of a bundle with txport-bench.

    Raises:
        InputError: the program does not exist.
    """
    program = shutil.which(str(tool))
    if program is None:
        raise InputError(f"{tool} is not a program: build txport-bench with make cpp, and give its path with --cpp")
    contestant = Contestant(CPP_NAME, "cpp", manifest.precision.weights, place.device, place.threads)
    description = {"tool": program, "bundle": str(bundle), **asdict(place)}
    return ContestantPlan(contestant, description, _bundle_settings(place))


def peer_plans(
    names: Sequence[Kind],
    checkpoint: Path,
    place: Place,
    eos: int,
    scratch: Path,
    compute_types: Sequence[str],
    pythons: Mapping[str, str],
) -> list[ContestantPlan]:
    """Return the plans of the named peers with the weights of one checkpoint; `scratch` receives converted models."""
    plans = []
    for name in names:
        python = pythons.get(name)
        if name == "ctranslate2":
            model = str(scratch / "ctranslate2")
            plans += [_ctranslate2(checkpoint, model, place, eos, each, python) for each in compute_types]
        else:
            plans.append(_torch_peer(name, checkpoint, place, python))
    return plans


def _torch_peer(kind: Kind, checkpoint: Path, place: Place, python: str | None) -> ContestantPlan:
    description: dict[str, Any] = {"checkpoint": str(checkpoint.resolve())}
    if kind in ("pytorch", "compile"):
        description["compiled"] = kind == "compile"
    if kind == "optimum":
        description["threads"] = int(place.width)
        fixed: list[dict[str, str]] = [{}]
    else:
        # If cores are few or shared, one thread is often faster than two that wait for each other.
        fixed = [{"threads": threads} for threads in dict.fromkeys((place.width, "1"))]
    rows: Sequence[str] = TEXT_ROWS
    if kind == "compile":  # torch.compile compiles again for other batch sizes
        rows = TEXT_ROWS[:1]
    settings: Settings = {"fixed": fixed, "text": [{**each, "rows": count} for each in fixed for count in rows]}
    return ContestantPlan(
        Contestant(_TITLES[kind], kind, "float32", place.device, place.threads), description, settings, python
    )


def _ctranslate2(
    checkpoint: Path, model: str, place: Place, eos: int, compute_type: str, python: str | None
) -> ContestantPlan:
    # The threads of CTranslate2 wait for each other at barriers, which are slow if cores are few or shared. One thread
    # may be the fastest, or one translator per core, each with a part of the batch.
    together = [{"intra": each, "inter": "1"} for each in dict.fromkeys(("1", place.width))]
    fixed = list(together)
    if place.width != "1":
        fixed.append({"intra": "1", "inter": place.width})
    text = [{**each, "rows": "32"} for each in fixed]
    text.append({**together[-1], "rows": "1024", "batch_type": "tokens"})
    return ContestantPlan(
        Contestant(f"CTranslate2 {compute_type}", "ctranslate2", compute_type, place.device, place.threads),
        {"model": model, "compute_type": compute_type, "eos": eos},
        {"fixed": fixed, "text": text},
        python,
        {"OMP_WAIT_POLICY": "ACTIVE"},  # busy waiting was fastest, and the other processes are suspended
        ("txport.benchmarks.contestants.ctranslate2_weights", str(checkpoint.resolve()), model),
    )
