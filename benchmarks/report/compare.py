"""Comparison of two files of figures: ratios, their ranges, and whether a difference is larger than the noise.

Even without a cause, two runs at different times differ at least as much as the medians of the rounds within one run. A
difference is within noise if the ranges of both runs (p10 to p90 of the medians of rounds) overlap.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from txport.benchmarks.contestants.cpp import CPP_FORMAT, CPP_FORMAT_VERSION, CPP_NAME
from txport.benchmarks.report.report import read_figures_file, report_from
from txport.benchmarks.report.schema import BENCH_FORMAT, BENCH_FORMAT_VERSION, BenchReport, fixed_name
from txport.benchmarks.report.statistics import percentile
from txport.runtime.errors import CheckFailed, InputError


@dataclass(frozen=True)
class Spread:
    """Milliseconds per token of a contestant on a workload: the median, and p10 and p90 of the medians of rounds."""

    low: float
    middle: float
    high: float


@dataclass(frozen=True)
class FileFigures:
    """The figures of a file by (contestant, workload), and a description of its machine."""

    machine: str
    ranges: Mapping[tuple[str, str], Spread]


@dataclass(frozen=True)
class Comparison:
    """The ratio of the second file's time to the first one's. `low` and `high` compare opposite ends of the ranges."""

    contestant: str
    workload: str
    first: Spread
    second: Spread

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
        """Result for the second file: "within noise", "slower" or "faster"."""
        if self.low <= 1 <= self.high:
            return "within noise"
        if self.ratio > 1:
            return "slower"
        return "faster"

    def to_json(self) -> dict[str, Any]:
        """Return the fields of `tx-bench compare --json`."""
        names = ("contestant", "workload", "ratio", "low", "high", "verdict")
        times = {"first_ms_per_token": self.first.middle, "second_ms_per_token": self.second.middle}
        return {name: getattr(self, name) for name in names} | times


def read_figures(path: Path) -> FileFigures:
    """Return the figures in a bench.json, or in the JSON of txport-bench.

    Raises:
        InputError: the file has another format or version, or is damaged.
    """
    value = read_figures_file(path, {BENCH_FORMAT: BENCH_FORMAT_VERSION, CPP_FORMAT: CPP_FORMAT_VERSION})
    if value["format"] == CPP_FORMAT:
        return _of_cpp(value, path)
    return _of_report(report_from(value, path))


def _of_report(report: BenchReport) -> FileFigures:
    ranges = {}
    for each in report.measurements:
        # Converts milliseconds per call to milliseconds per token.
        scale = each.ms_per_token.p50 / each.call_ms.p50
        low, high = (percentile(each.rounds_ms, share) * scale for share in (0.1, 0.9))
        ranges[each.contestant, each.workload] = Spread(low, each.ms_per_token.p50, high)
    return FileFigures(f"{report.machine.processor}, {report.machine.cores} cores", ranges)


def _of_cpp(value: dict[str, Any], path: Path) -> FileFigures:
    """Return the figures of txport-bench. Without rounds, the range is the median plus or minus (p90 - median)."""
    try:
        sizes = value["workload"]
        times = value["figures"]["ms_per_token"]
        middle = float(times["p50"])
        high = float(times["p90"])
        name = fixed_name(int(sizes["batch"]), int(sizes["source"]), int(sizes["target"]))
        machine = f"{value['machine']['processor']}, {int(value['machine']['cores'])} cores"
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"{path} is not what txport-bench writes ({error!r}): measure again") from None
    return FileFigures(machine, {(CPP_NAME, name): Spread(max(0.0, 2 * middle - high), middle, high)})


def compare(first: FileFigures, second: FileFigures) -> list[Comparison]:
    """Compare all figures that both files contain.

    If each file has a single contestant, these two are compared also with different names.

    Raises:
        InputError: the files have no contestant and workload in common.
    """
    names = [{contestant for contestant, _ in figures.ranges} for figures in (first, second)]
    alone = names[0] != names[1] and all(len(each) == 1 for each in names)
    comparisons = []
    for (contestant, workload), times in first.ranges.items():
        if alone:
            other = next(iter(names[1]))
        else:
            other = contestant
        if (other, workload) in second.ranges:
            if alone:
                title = f"{contestant} -> {other}"
            else:
                title = contestant
            comparisons.append(Comparison(title, workload, times, second.ranges[other, workload]))
    if not comparisons:
        raise InputError("the two files have no contestant and workload in common: measure the same workloads in both")
    return comparisons


def check_against(report: BenchReport, most: float) -> None:
    """Compare the first bundle with the others by ratios within one run, for continuous integration.

    Raises:
        CheckFailed: on a workload, its time was more than `most` times that of another bundle (median of the rounds).
    """
    bundles = {each.name for each in report.contestants if each.kind == "bundle"}
    slower = [
        f"{1 / each.ratio.p50:.3f} times {each.contestant} on {each.workload}"
        for each in report.measurements
        if each.contestant in bundles and each.ratio is not None and each.ratio.p50 * most < 1
    ]
    if slower:
        raise CheckFailed(f"the bundle takes {'; '.join(slower)}: more than {most:g} times was not allowed")
