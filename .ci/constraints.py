"""Writes constraints.txt: every package that txport[dev] has brought into this environment, as `pip freeze` says it.

    make constraints        # after a green run

A version that another Python from 3.10 to 3.13 cannot have gets a marker; that Python is then free to choose. Packages
that only another Python or another system needs are free there, too.
"""

import importlib.metadata
import sys
from pathlib import Path

import tomllib
from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
PYTHONS = ("3.10", "3.11", "3.12", "3.13")
HEAD = """\
# The environment of a green run, written by `make constraints` (.ci/constraints.py).
# pyproject.toml has lower bounds only. A comment beside a line says why its version is looked at before it is changed.
"""
COMMENTS = {
    "mypy": "its verdicts change with its versions",
    "ruff": "its verdicts change with its versions",
    "onnxruntime": "ids, in the last bits of their scores",
    "sentencepiece": "0.2.2 gives other ids",
    "tensorrt-rtx-cu13-bindings": "together with the libraries",
    "tensorrt-rtx-cu13-libs": "what tests know of a build",
    "torch": "the reference of every number",
}
# Versions of these are not made for every system.
SYSTEMS = {"cuda-bindings", "tensorrt-rtx-cu13-bindings", "tensorrt-rtx-cu13-libs"}


def needs_of(extras: set[str], python: str) -> list[Requirement]:
    """Requirements that extras of txport name themselves, on that Python."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    listed = [
        *project.get("dependencies", []),
        *(line for extra in extras for line in project["optional-dependencies"][extra]),
    ]
    found = []
    for need in map(Requirement, listed):
        if need.marker is None or need.marker.evaluate(environment(python)):
            found += needs_of(need.extras, python) if need.name == "txport" else [need]
    return found


def environment(python: str, extra: str = "") -> dict[str, str]:
    """Values of markers, as on that Python."""
    return {**default_environment(), "python_version": python, "python_full_version": f"{python}.0", "extra": extra}


def closure(python: str) -> list[Requirement]:
    """All that txport[dev] needs, as far as it is installed here, as every package asks for it."""
    asked = []
    seen = set[tuple[str, frozenset[str]]]()
    waiting = needs_of({"dev"}, python)
    while waiting:
        need = waiting.pop()
        key = canonicalize_name(need.name), frozenset(need.extras)
        asked.append(need)
        if key in seen or not installed(key[0]):
            continue
        seen.add(key)
        for line in importlib.metadata.requires(key[0]) or []:
            inner = Requirement(line)
            if inner.marker is None or any(inner.marker.evaluate(environment(python, x)) for x in ("", *need.extras)):
                waiting.append(inner)
    return asked


def installed(name: str) -> str:
    """The public part of its version; empty if it is not here."""
    try:
        return importlib.metadata.version(name).partition("+")[0]
    except importlib.metadata.PackageNotFoundError:
        return ""


def fits(name: str, version: str, python: str, asked: list[Requirement]) -> bool:
    """Whether that Python can have this version, and all who ask for the package there agree."""
    range_ = importlib.metadata.metadata(name).get("Requires-Python") or ""
    needs = [need.specifier for need in asked if canonicalize_name(need.name) == name]
    whole = Requirement(f"python{range_}").specifier
    return whole.contains(f"{python}.99") and all(each.contains(version) for each in needs)


def main() -> None:
    here = f"{sys.version_info.major}.{sys.version_info.minor}"
    every = {python: closure(python) for python in PYTHONS}
    names = sorted({canonicalize_name(need.name) for need in every[here]})
    lines = []
    for name in names:
        if not (version := installed(name)):
            continue
        pythons = [python for python in PYTHONS if fits(name, version, python, every[python])]
        markers = []
        if pythons[0] != PYTHONS[0]:
            markers.append(f"python_version >= '{pythons[0]}'")
        if pythons[-1] != PYTHONS[-1]:
            markers.append(f"python_version <= '{pythons[-1]}'")
        if name in SYSTEMS:
            markers.append("sys_platform == 'linux'")
        line = f"{name}=={version}" + (f"; {' and '.join(markers)}" if markers else "")
        lines.append(f"{line}  # {COMMENTS[name]}" if name in COMMENTS else line)
    (ROOT / "constraints.txt").write_text(HEAD + "\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
