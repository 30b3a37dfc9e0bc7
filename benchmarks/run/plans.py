"""Who is measured: the bundle, other bundles, txport-bench, and the peers, each with what it needs to be loaded."""

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from txport.benchmarks.contestants.backend import DEFAULT
from txport.benchmarks.report.schema import BundleFacts, Contestant
from txport.runtime.bundle.manifest import WEIGHTS, Manifest
from txport.runtime.engines.build_record import NAME as RECORD
from txport.runtime.engines.build_record import BuildRecord
from txport.runtime.errors import InputError
from txport.runtime.workers import cores

Kind = Literal["bundle", "cpp", "pytorch", "compile", "huggingface", "ctranslate2", "optimum"]
Settings = Mapping[str, Sequence[Mapping[str, str]]]
PEERS = ("pytorch", "compile", "huggingface", "ctranslate2", "optimum")
TEXT_ROWS = ("64", "16")  # batch sizes that peers try on a text
ANY: Settings = {"fixed": ({},), "text": ({},)}


@dataclass(frozen=True)
class Place:
    """Where contestants run."""

    device: str
    lowering: str | None
    threads: int


@dataclass(frozen=True)
class Plan:
    """One contestant before it is loaded.

    Attributes:
        contestant: what the report will say of it.
        description: keywords for its backend; peers also get the `device` on which the bundle really runs.
        settings: what it tries.
        python: another interpreter; None for this one.
        environment: what it needs in its environment.
        prepare: a module to run before, with its arguments.
    """

    contestant: Contestant
    description: dict[str, Any]
    settings: Settings = field(default_factory=lambda: ANY)
    python: str | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    prepare: tuple[str, ...] = ()


def bundle_plan(bundle: Path, manifest: Manifest, place: Place, name: str) -> Plan:
    """A bundle by the Python runtime."""
    facts = BundleFacts(
        bundle.resolve().name,
        manifest.sha256,
        precision(manifest),
        manifest.files[WEIGHTS].bytes,
        manifest.verification is not None and manifest.verification.passed,
    )
    contestant = _contestant(name, "bundle", precision(manifest), place, facts, build_seconds(bundle))
    description = {
        "bundle": str(bundle),
        "device": place.device,
        "lowering": place.lowering,
        "threads": place.threads,
    }
    return Plan(contestant, description, _bundle_settings(place))


def _bundle_settings(place: Place) -> Settings:
    """As for peers: the default, one thread, faster where cores are shared, and for a text a worker for each core."""
    if place.threads or cores() == 1:
        return ANY
    each = [{"threads": DEFAULT}, {"threads": "1"}]
    return {"fixed": each, "text": [*each, {"threads": DEFAULT, "workers": DEFAULT}]}


def cpp_plan(bundle: Path, manifest: Manifest, place: Place, tool: Path) -> Plan:
    """The same bundle by txport-bench.

    Raises:
        InputError: there is no such program.
    """
    found = shutil.which(str(tool))
    if found is None:
        raise InputError(f"{tool} is not a program: build txport-bench with make cpp, and give its path with --cpp")
    contestant = _contestant("txport, C++", "cpp", precision(manifest), place)
    description = {
        "tool": found,
        "bundle": str(bundle),
        "device": place.device,
        "lowering": place.lowering,
        "threads": place.threads,
    }
    return Plan(contestant, description, _bundle_settings(place))


def precision(manifest: Manifest) -> str:
    """What a bundle's weights are computed in."""
    return manifest.precision.weights


def build_seconds(bundle: Path) -> float | None:
    """Of all engines that tx-build made for a bundle, None if there is none."""
    found = [BuildRecord.load(file.parent).build_seconds for file in sorted(bundle.glob(f"engines/*/{RECORD}"))]
    return sum(found) if found else None


def peer_plans(
    names: Sequence[str],
    checkpoint: Path,
    place: Place,
    eos: int,
    scratch: Path,
    compute_types: Sequence[str],
    pythons: Mapping[str, str],
) -> list[Plan]:
    """The peers by name, all from one checkpoint; `scratch` is for converted models."""
    plans: list[Plan] = []
    for name in names:
        if name == "ctranslate2":
            converted = str(scratch / "ctranslate2")
            plans += [_ctranslate2(checkpoint, converted, place, eos, each, pythons) for each in compute_types]
        else:
            plans.append(_torch_peer(name, checkpoint, place, pythons))
    return plans


def _torch_peer(name: str, checkpoint: Path, place: Place, pythons: Mapping[str, str]) -> Plan:
    titles: dict[str, tuple[str, Kind]] = {
        "pytorch": ("PyTorch eager", "pytorch"),
        "compile": ("PyTorch compiled", "compile"),
        "huggingface": ("Hugging Face", "huggingface"),
        "optimum": ("optimum-onnx", "optimum"),
    }
    title, kind = titles[name]
    description: dict[str, Any] = {"checkpoint": str(checkpoint.resolve())}
    if kind in ("pytorch", "compile"):
        description["compiled"] = kind == "compile"
    if kind == "optimum":
        description["threads"] = place.threads or cores()
        fixed: list[dict[str, str]] = [{}]
    else:
        # Where cores are few or shared, one thread is often faster than two that wait for each other.
        width = str(place.threads or cores())
        fixed = [{"threads": threads} for threads in dict.fromkeys((width, "1"))]
    # What is compiled is compiled again for other sizes.
    rows = TEXT_ROWS[:1] if kind == "compile" else TEXT_ROWS
    settings: Settings = {"fixed": fixed, "text": [{**each, "rows": count} for each in fixed for count in rows]}
    return Plan(_contestant(title, kind, "float32", place), description, settings, pythons.get(name))


def _ctranslate2(
    checkpoint: Path, converted: str, place: Place, eos: int, compute_type: str, pythons: Mapping[str, str]
) -> Plan:
    width = str(place.threads or cores())
    # Its threads meet at barriers, which are slow where cores are few or shared: one thread may be the fastest, or as
    # many translators as cores, which help a text only.
    fixed = [{"intra": each, "inter": "1"} for each in dict.fromkeys(("1", width))]
    text = [{**each, "rows": "32"} for each in fixed]
    if width != "1":
        text.append({"intra": "1", "inter": width, "rows": "32"})
    text.append({**fixed[-1], "rows": "1024", "batch_type": "tokens"})
    contestant = _contestant(f"CTranslate2 {compute_type}", "ctranslate2", compute_type, place)
    description = {"model": converted, "compute_type": compute_type, "eos": eos}
    return Plan(
        contestant,
        description,
        {"fixed": fixed, "text": text},
        pythons.get("ctranslate2"),
        {"OMP_WAIT_POLICY": "ACTIVE"},  # waiting without sleeping measured fastest; others are stopped meanwhile
        ("txport.benchmarks.contestants.ctranslate2_weights", str(checkpoint.resolve()), converted),
    )


def _contestant(
    name: str,
    kind: Kind,
    precision: str,
    place: Place,
    facts: BundleFacts | None = None,
    build: float | None = None,
) -> Contestant:
    return Contestant(name, kind, precision, place.device, place.threads, "", facts, None, None, build, None)
