"""Two files of figures side by side: ratios, their spread, and whether that tells anything.

Runs at different times see different machines: what a round's median varies by within a run is the least that two runs
differ by without a reason. A difference is within noise if the ranges of both runs (p10 to p90 of the rounds) overlap.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from txport.benchmarks.contestants.cpp import FORMAT as CPP_FORMAT
from txport.benchmarks.contestants.cpp import FORMAT_VERSION as CPP_VERSION
from txport.benchmarks.report.report import read_json, report_from
from txport.benchmarks.report.schema import FORMAT, Report
from txport.benchmarks.report.statistics import percentile
from txport.benchmarks.run.workloads import fixed_name
from txport.runtime.errors import InputError

CPP_NAME = "txport, C++"


@dataclass(frozen=True)
class Figure:
    """Milliseconds a token of one contestant on one workload: the median, and the range of the rounds' medians."""

    low: float
    middle: float
    high: float


@dataclass(frozen=True)
class Figures:
    """All of a file, by (contestant, workload), and what it says of its machine."""

    machine: str
    found: Mapping[tuple[str, str], Figure]


@dataclass(frozen=True)
class Difference:
    """The second file's time over the first one's. `low` and `high` are the ratios of opposite ends of the ranges."""

    contestant: str
    workload: str
    first: Figure
    second: Figure

    @property
    def ratio(self) -> float:
        return self.second.middle / self.first.middle

    @property
    def low(self) -> float:
        return self.second.low / self.first.high

    @property
    def high(self) -> float:
        return self.second.high / self.first.low

    @property
    def verdict(self) -> str:
        """ "within noise", "slower" or "faster", of the second one."""
        if self.low <= 1 <= self.high:
            return "within noise"
        return "slower" if self.ratio > 1 else "faster"


def read_figures(path: Path) -> Figures:
    """Figures of a bench.json, or of the JSON of txport-bench.

    Raises:
        InputError: the file is neither, of another version, or damaged.
    """
    value = read_json(path)
    if value.get("format") == CPP_FORMAT:
        return _cpp(value, path)
    if value.get("format") != FORMAT:
        raise InputError(
            f"{path} has the format {str(value.get('format'))[:40]!r}, neither {FORMAT!r} nor {CPP_FORMAT!r}: "
            "give a JSON file that tx-bench or txport-bench wrote"
        )
    return _ours(report_from(value, path))


def _ours(report: Report) -> Figures:
    found = {}
    for each in report.measurements:
        # From milliseconds a call to milliseconds a token.
        scale = each.ms_per_token.p50 / each.call_ms.p50
        low, high = (percentile(each.rounds_ms, share) * scale for share in (0.1, 0.9))
        found[each.contestant, each.workload] = Figure(low, each.ms_per_token.p50, high)
    return Figures(f"{report.machine.processor}, {report.machine.cores} cores", found)


def _cpp(value: dict[str, Any], path: Path) -> Figures:
    """txport-bench has no rounds: as far as its p90 is above the median, the range is taken to reach below it."""
    if value.get("format_version") != CPP_VERSION:
        raise InputError(
            f"{path} has format_version {value.get('format_version')!r}, but this txport reads {CPP_VERSION} of "
            f"{CPP_FORMAT}: measure again with the txport-bench of this version"
        )
    try:
        sizes, per = value["workload"], value["figures"]["ms_per_token"]
        middle, high = float(per["p50"]), float(per["p90"])
        name = fixed_name(int(sizes["batch"]), int(sizes["source"]), int(sizes["target"]))
        machine = f"{value['machine']['processor']}, {int(value['machine']['cores'])} cores"
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"{path} is not what txport-bench writes ({error!r}): measure again") from None
    return Figures(machine, {(CPP_NAME, name): Figure(max(0.0, 2 * middle - high), middle, high)})


def differences(first: Figures, second: Figures) -> list[Difference]:
    """Of what both have. If each has one contestant only, these are compared whatever their names are.

    Raises:
        InputError: they have nothing in common.
    """
    names = [{contestant for contestant, _ in figures.found} for figures in (first, second)]
    alone = names[0] != names[1] and all(len(each) == 1 for each in names)
    found = []
    for (contestant, workload), figure in first.found.items():
        other = next(iter(names[1])) if alone else contestant
        if (other, workload) in second.found:
            title = f"{contestant} -> {other}" if alone else contestant
            found.append(Difference(title, workload, figure, second.found[other, workload]))
    if not found:
        raise InputError("the two files have no contestant and workload in common: measure the same workloads in both")
    return found
