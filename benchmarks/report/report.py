"""Reading and writing of bench.json. It is written atomically after each measurement and checked when it is read."""

import datetime
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from txport.benchmarks.report.schema import BENCH_FORMAT, BENCH_FORMAT_VERSION, BenchReport, Machine
from txport.runtime.bundle.schema import MadeBy
from txport.runtime.bundle.strict_json import decode, encode, read
from txport.runtime.errors import InputError
from txport.runtime.files import write_atomically
from txport.runtime.version import VERSION


def check_output(path: Path) -> None:
    """Refuse to write a report into a directory that contains other files but no earlier report.

    Raises:
        InputError: the directory contains other files.
    """
    directory = path.parent
    if directory.exists() and any(directory.iterdir()) and not path.exists():
        raise InputError(f"{directory} holds other files and no {path.name}: choose another directory with --output")


def header(form: str, version: int, command: Sequence[str], machine: Machine) -> dict[str, Any]:
    """Return the first fields of a report, with `complete` false."""
    created = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
    facts = {"made_by": MadeBy("txport", VERSION), "created": created, "command": tuple(command), "machine": machine}
    return {"format": form, "format_version": version, "complete": False, **facts}


def as_json(report: Any) -> str:
    """Return a report (any dataclass) as indented JSON."""
    return json.dumps(encode(report), indent=1, ensure_ascii=False)


def write_report(path: Path, report: Any) -> None:
    """Write a report as JSON, atomically.

    Raises:
        InputError: the file cannot be written.
    """
    write_atomically(path, (as_json(report) + "\n").encode())


def read_report(path: Path) -> BenchReport:
    """Read a bench.json.

    Raises:
        InputError: the file cannot be read, has another format or version, or has a missing or unknown field.
    """
    return report_from(read_figures_file(path, {BENCH_FORMAT: BENCH_FORMAT_VERSION}), path)


def read_figures_file(path: Path, versions: Mapping[str, int]) -> dict[str, Any]:
    """Return the JSON object of a file. `versions` maps the allowed formats to their versions.

    Raises:
        InputError: the file cannot be read, or has another format or version.
    """
    value = read(path, "give a JSON file that tx-bench wrote", InputError)
    form = str(value.get("format"))
    version = value.get("format_version")
    if form not in versions:
        supported = " or ".join(versions)
        raise InputError(f"{path} has the format {form[:40]!r}, not {supported}: give a JSON file of such a program")
    if version != versions[form]:
        raise InputError(
            f"{path} has format_version {version!r}, but this txport reads {versions[form]} of {form}: "
            "measure again with it, or use the txport that wrote the file"
        )
    return value


def report_from(value: dict[str, Any], path: Path) -> BenchReport:
    """Decode a parsed bench.json; `path` is its name in messages.

    Raises:
        InputError: as for `read_report`.
    """
    report = decode(BenchReport, value, str(path), InputError)
    contestants = {contestant.name for contestant in report.contestants}
    workloads = {workload.name for workload in report.workloads}
    for each in report.measurements:
        if each.contestant not in contestants or each.workload not in workloads:
            raise InputError(f"{path} measures {each.contestant!r} on {each.workload!r}, which it does not describe")
    return report
