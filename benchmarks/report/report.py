"""bench.json: written atomically after each measurement, read strictly."""

import json
from pathlib import Path
from typing import Any

from txport.benchmarks.report.schema import FORMAT, FORMAT_VERSION, Contestant, Measurement, Report, Workload
from txport.runtime.bundle.strict_json import decode, encode, parse
from txport.runtime.errors import BundleError, InputError
from txport.runtime.files import write_atomically


def write_report(path: Path, report: Report) -> None:
    """Write `report` as JSON; readers see the old file or the new one.

    Raises:
        InputError: it cannot be written.
    """
    write_atomically(path, (json.dumps(encode(report), indent=1, ensure_ascii=False) + "\n").encode())


def read_report(path: Path) -> Report:
    """Read what `write_report` wrote.

    Raises:
        InputError: it cannot be read, or is not of this format and version, or something in it is missing or unknown.
    """
    return report_from(read_json(path), path)


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object of a file, whatever its format.

    Raises:
        InputError: it cannot be read or is no such object.
    """
    try:
        return parse(path.read_bytes(), str(path))
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror}): give a JSON file that tx-bench wrote") from error
    except BundleError as error:
        raise InputError(str(error)) from None


def report_from(value: dict[str, Any], path: Path) -> Report:
    """Decode a parsed bench.json; `path` is its name in messages.

    Raises:
        InputError: as `read_report`.
    """
    if value.get("format") != FORMAT:
        raise InputError(
            f"{path} has the format {str(value.get('format'))[:40]!r}, not {FORMAT!r}: give a JSON file of tx-bench"
        )
    version = value.get("format_version")
    if version != FORMAT_VERSION:
        raise InputError(
            f"{path} has format_version {version!r}, but this txport reads {FORMAT_VERSION}: measure again with it, "
            "or use the txport that wrote the file"
        )
    try:
        report = decode(Report, value, str(path))
    except BundleError as error:
        raise InputError(str(error)) from None
    _check_names(report, path)
    return report


def _check_names(report: Report, path: Path) -> None:
    contestants = {contestant.name for contestant in report.contestants}
    workloads = {workload.name for workload in report.workloads}
    for each in report.measurements:
        if each.contestant not in contestants or each.workload not in workloads:
            raise InputError(f"{path} measures {each.contestant!r} on {each.workload!r}, which it does not describe")


def of(report: Report, measurement: Measurement) -> tuple[Contestant, Workload]:
    """The contestant and the workload of a measurement."""
    contestant = next(each for each in report.contestants if each.name == measurement.contestant)
    return contestant, next(each for each in report.workloads if each.name == measurement.workload)
