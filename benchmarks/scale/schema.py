"""scale.json, field by field: how cost grows with one size while the others stay."""

from dataclasses import dataclass

from txport.benchmarks.report.schema import ReportHeader

SCALE_FORMAT = "tx-bench-scale"
SCALE_FORMAT_VERSION = 1


@dataclass(frozen=True)
class Point:
    """One size.

    Attributes:
        value: of the axis.
        figure: milliseconds a call, or sentences a second; see `Axis.unit`.
        low, high: p10 and p90 of the calls; the same as `figure` of a single one.
        peak_resident_bytes: of the process.
    """

    value: int
    figure: float
    low: float
    high: float
    peak_resident_bytes: int | None


@dataclass(frozen=True)
class Fit:
    """figure ~ value ** exponent, by least squares of logarithms; `error` is the standard error of the exponent."""

    exponent: float
    error: float


@dataclass(frozen=True)
class Axis:
    """One size that grows.

    Attributes:
        name: "target", "source", "batch", "layers", "vocabulary" or "sentences".
        unit: of the figures.
        fixed: the other sizes, in words.
        points: in the order of their values.
        fit: null for fewer than three points.
    """

    name: str
    unit: str
    fixed: str
    points: tuple[Point, ...]
    fit: Fit | None


@dataclass(frozen=True)
class ScaleReport(ReportHeader):
    """The whole file; it contains only axes that were finished."""

    axes: tuple[Axis, ...] = ()
