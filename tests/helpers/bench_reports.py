"""Small reports of tx-bench, written by hand."""

from txport.benchmarks.report.schema import (
    BENCH_FORMAT,
    BENCH_FORMAT_VERSION,
    BenchReport,
    Contestant,
    Machine,
    Measurement,
    Percentiles,
    Workload,
)
from txport.runtime.bundle.schema import MadeBy

MACHINE = Machine("a processor", 2, 1, "Linux", "3.11", {"numpy": "2"}, None, None, 0.0)
CONTESTANT = Contestant("txport", "bundle", "float32", "cpu", 0, "ort", load_ms=1.0)


def measurement(rounds: list[float], workload: str = "1 x 8 -> 4") -> Measurement:
    """Return a measurement of calls of four steps; `rounds` are the medians of its rounds."""
    middle = sorted(rounds)[(len(rounds) - 1) // 2]
    return Measurement(
        contestant="txport",
        workload=workload,
        settings={},
        calls=9,
        warm_up_calls=3,
        tokens=4,
        steps=4,
        call_ms=Percentiles(middle, max(rounds), None),
        encoder_ms=None,
        first_token_ms=None,
        ms_per_token=Percentiles(middle / 4, max(rounds) / 4, None),
        tokens_per_second=1.0,
        sentences_per_second=1.0,
        peak_resident_bytes=1,
        gpu_memory_bytes=None,
        roofline=None,
        agreement=None,
        ratio=None,
        rounds_ms=tuple(rounds),
    )


def report(*measurements: Measurement) -> BenchReport:
    """Return a report of one contestant and two workloads."""
    return BenchReport(
        format=BENCH_FORMAT,
        format_version=BENCH_FORMAT_VERSION,
        made_by=MadeBy("txport", "0"),
        created="2026-01-01T00:00:00+00:00",
        command=("b",),
        complete=True,
        notes=("note",),
        machine=MACHINE,
        reference="txport",
        contestants=(CONTESTANT,),
        workloads=(Workload("1 x 8 -> 4", "fixed", 1, 8.0, 4, 1), Workload("8 x 8 -> 4", "fixed", 8, 8.0, 4, 8)),
        measurements=measurements,
    )
