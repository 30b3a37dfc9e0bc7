"""bench.json: what is written is read, anything else is refused with a sentence; comparing, also with txport-bench."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from bench_reports import measurement, report
from txport.benchmarks.report.compare import compare, read_figures
from txport.benchmarks.report.report import read_report, write_report
from txport.benchmarks.report.schema import BENCH_FORMAT_VERSION
from txport.runtime.errors import InputError


def test_what_is_written_is_read(tmp_path: Path) -> None:
    given = report(measurement([1.0, 2.0]), measurement([3.0], "8 x 8 -> 4"))
    write_report(tmp_path / "bench.json", given)
    assert read_report(tmp_path / "bench.json") == given


CHANGES: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "another format": (lambda x: x.update(format="pytest-benchmark"), "has the format 'pytest-benchmark'"),
    "no format": (lambda x: x.pop("format"), "has the format 'None'"),
    "newer": (
        lambda x: x.update(format_version=BENCH_FORMAT_VERSION + 1),
        f"format_version {BENCH_FORMAT_VERSION + 1}",
    ),
    "version as text": (lambda x: x.update(format_version="1"), "format_version '1'"),
    "missing field": (lambda x: x["machine"].pop("cores"), "lacks the field 'cores'"),
    "unknown field": (lambda x: x.update(extra=1), "unknown field 'extra'"),
    "text for a number": (lambda x: x["measurements"][0].update(calls="many"), "must be an integer"),
    "unknown kind": (lambda x: x["workloads"][0].update(kind="video"), "'video'"),
    "unknown contestant": (lambda x: x["measurements"][0].update(contestant="who"), "'who'"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_another_schema_is_refused(tmp_path: Path, name: str) -> None:
    change, words = CHANGES[name]
    file = tmp_path / "bench.json"
    write_report(file, report(measurement([1.0])))
    value = json.loads(file.read_text())
    change(value)
    file.write_text(json.dumps(value))
    with pytest.raises(InputError) as refusal:
        read_report(file)
    assert words in str(refusal.value) and str(file) in str(refusal.value)
    with pytest.raises(InputError):
        read_figures(file)


@pytest.mark.parametrize("data", [b"", b"[]", b"{", b"\xff", b'{"format": NaN}'])
def test_what_is_no_json_object_is_refused(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "bench.json").write_bytes(data)
    with pytest.raises(InputError, match="bench.json"):
        read_report(tmp_path / "bench.json")


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        read_report(tmp_path / "bench.json")


@pytest.mark.parametrize(
    ("second", "verdict", "low", "high"),
    [
        ([4.0, 4.4, 4.8], "within noise", 4.0 / 4.8, 4.8 / 4.0),
        ([4.7, 6.0, 6.6], "within noise", 4.7 / 4.8, 6.6 / 4.0),
        ([6.0, 6.6, 7.2], "slower", 6.0 / 4.8, 7.2 / 4.0),
        ([2.0, 2.2, 2.4], "faster", 2.0 / 4.8, 2.4 / 4.0),
    ],
)
def test_a_difference_counts_if_the_ranges_do_not_overlap(
    tmp_path: Path, second: list[float], verdict: str, low: float, high: float
) -> None:
    for name, rounds in (("a.json", [4.0, 4.4, 4.8]), ("b.json", second)):
        write_report(tmp_path / name, report(measurement(rounds)))
    (found,) = compare(read_figures(tmp_path / "a.json"), read_figures(tmp_path / "b.json"))
    assert found.verdict == verdict
    assert (found.low, found.high) == (pytest.approx(low), pytest.approx(high))
    assert found.ratio == pytest.approx(second[1] / 4.4)


# What txport-bench printed, shortened to what is read.
CPP = {
    "format": "txport-bench",
    "format_version": 1,
    "made_by": {"name": "txport-bench", "version": "0.1.0"},
    "machine": {"processor": "a processor", "cores": 2},
    "workload": {"batch": 1, "source": 8, "target": 4},
    "figures": {"calls": 200, "ms_per_token": {"p50": 0.5, "p90": 0.6, "p99": 0.9}},
}


def test_figures_of_the_c_plus_plus_runtime_are_compared(tmp_path: Path) -> None:
    (tmp_path / "cpp.json").write_text(json.dumps(CPP))
    write_report(tmp_path / "bench.json", report(measurement([4.0, 4.4, 4.8])))
    (found,) = compare(read_figures(tmp_path / "bench.json"), read_figures(tmp_path / "cpp.json"))
    assert found.contestant == "txport -> txport, C++"
    assert found.ratio == pytest.approx(0.5 / 1.1)
    assert found.verdict == "faster"


@pytest.mark.parametrize(("field", "value"), [("format_version", 2), ("workload", None), ("figures", {})])
def test_other_json_of_the_c_plus_plus_runtime_is_refused(tmp_path: Path, field: str, value: object) -> None:
    (tmp_path / "cpp.json").write_text(json.dumps({**CPP, field: value}))
    with pytest.raises(InputError, match="cpp.json"):
        read_figures(tmp_path / "cpp.json")


def test_files_with_nothing_in_common_are_refused(tmp_path: Path) -> None:
    write_report(tmp_path / "a.json", report(measurement([1.0])))
    write_report(tmp_path / "b.json", report(measurement([1.0], "8 x 8 -> 4")))
    with pytest.raises(InputError, match="nothing|no contestant and workload in common"):
        compare(read_figures(tmp_path / "a.json"), read_figures(tmp_path / "b.json"))


def test_figures_of_few_calls_are_said(tmp_path: Path) -> None:
    from txport.benchmarks.report.tables import facts, markdown

    assert "FEW CALLS" not in dict(facts(report(measurement([1.0]))))
    few = report(measurement([1.0]), dataclasses.replace(measurement([3.0], "8 x 8 -> 4"), calls=1))
    assert dict(facts(few))["FEW CALLS"].startswith("1 row with fewer than 5 calls (minimum 1): ")
    assert "**FEW CALLS**" in markdown(few)
