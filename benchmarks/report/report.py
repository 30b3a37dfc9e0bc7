"""bench.json: written atomically after each measurement, read strictly."""

import json
from pathlib import Path
from typing import Any

from txport.benchmarks.report.schema import BENCH_FORMAT, BENCH_FORMAT_VERSION, BenchReport
from txport.runtime.bundle.strict_json import decode, encode, parse
from txport.runtime.errors import InputError
from txport.runtime.files import write_atomically


def check_output(path: Path) -> None:
    """Refuse to write a report into a directory that holds other files, but no earlier report of this name.

    Raises:
        InputError: it is such a directory.
    """
    directory = path.parent
    if directory.exists() and any(directory.iterdir()) and not path.exists():
        raise InputError(f"{directory} holds other files and no {path.name}: choose another directory with --output")


def as_json(report: Any) -> str:
    """A report (any dataclass) as indented JSON."""
    return json.dumps(encode(report), indent=1, ensure_ascii=False)


def write_report(path: Path, report: Any) -> None:
    """Write a report as JSON; readers see the old file or the new one.

    Raises:
        InputError: it cannot be written.
    """
    write_atomically(path, (as_json(report) + "\n").encode())


def read_report(path: Path) -> BenchReport:
    """Read a bench.json.

    Raises:
        InputError: it cannot be read, is of another format or version, or a field in it is missing or unknown.
    """
    return report_from(read_json(path), path)


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in a file, whatever its format.

    Raises:
        InputError: it cannot be read or is not a JSON object.
    """
    try:
        return parse(path.read_bytes(), str(path), InputError)
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror}): give a JSON file that tx-bench wrote") from error


def report_from(value: dict[str, Any], path: Path) -> BenchReport:
    """Decode a parsed bench.json; `path` is its name in messages.

    Raises:
        InputError: as `read_report`.
    """
    if value.get("format") != BENCH_FORMAT:
        form = str(value.get("format"))[:40]
        raise InputError(f"{path} has the format {form!r}, not {BENCH_FORMAT!r}: give a JSON file of tx-bench")
    version = value.get("format_version")
    if version != BENCH_FORMAT_VERSION:
        raise InputError(
            f"{path} has format_version {version!r}, but this txport reads {BENCH_FORMAT_VERSION}: "
            "measure again with it, or use the txport that wrote the file"
        )
    report = decode(BenchReport, value, str(path), InputError)
    contestants = {contestant.name for contestant in report.contestants}
    workloads = {workload.name for workload in report.workloads}
    for each in report.measurements:
        if each.contestant not in contestants or each.workload not in workloads:
            raise InputError(f"{path} measures {each.contestant!r} on {each.workload!r}, which it does not describe")
    return report
