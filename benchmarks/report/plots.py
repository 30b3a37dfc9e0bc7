"""The plots of a report, each as PNG and SVG."""

from collections.abc import Callable, Sequence
from pathlib import Path

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator
from txport.benchmarks.report.schema import BenchReport, Machine, Measurement, Workload
from txport.runtime.files import new_file

FORMATS = ("png", "svg")
# The palette of Okabe and Ito (2008), which is safe for colour-blind readers, and three more colours.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#8A8A00", "#882255", "#999999")

Value = Callable[[Measurement], float]


def write_plots(report: BenchReport, directory: Path) -> list[Path]:
    """Write all plots for which the report has figures; return the files."""
    figures = {
        "latency": _over_batch(report, "ms for a call", lambda x: x.call_ms.p50, lambda x: x.call_ms.p90),
        "throughput": _over_batch(report, "tokens a second", lambda x: x.tokens_per_second, None),
        "length": _over_target(report),
        "peers": _bars(report),
        "roofline": _roofline(report),
    }
    return [path for name, figure in figures.items() if figure is not None for path in save(figure, directory, name)]


def save(figure: Figure, directory: Path, name: str) -> list[Path]:
    """Write one figure in each format, atomically."""
    paths = []
    # Text is written as text, not as shapes: the files are smaller and can be searched. With a fixed salt, the same
    # plot has the same bytes.
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "txport"}):
        for kind in FORMATS:
            path = directory / f"{name}.{kind}"
            with new_file(path) as file:
                if kind == "svg":
                    metadata = {"Date": None}
                else:
                    metadata = {}
                figure.savefig(file, format=kind, dpi=150, metadata=metadata)
            paths.append(path)
    return paths


def style(axes: Axes) -> None:
    """Set the style of the axes: no box, and a light grid behind the data."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(True, which="major", color="#dddddd", linewidth=0.8)
    axes.set_axisbelow(True)


def _new_figure(title: str, x: str, y: str, width: float = 7.0, height: float = 4.4) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.subplots()
    style(axes)
    axes.set_title(title, fontsize=10, loc="left")
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    return figure, axes


def _colours(report: BenchReport) -> dict[str, str]:
    """Return a colour for each contestant, by name."""
    return {each.name: COLOURS[index % len(COLOURS)] for index, each in enumerate(report.contestants)}


def _rows(report: BenchReport) -> list[tuple[Measurement, Workload]]:
    workloads = {each.name: each for each in report.workloads}
    return [(each, workloads[each.workload]) for each in report.measurements]


def _over_batch(report: BenchReport, label: str, value: Value, tail: Value | None) -> Figure | None:
    """Return a plot over the batch size, at the lengths with the most workloads."""
    fixed = [row for row in _rows(report) if row[1].kind == "fixed"]
    lengths = sorted((workload.source, workload.target) for _, workload in fixed)
    source, target = max(lengths, key=lengths.count, default=(0, 0))
    rows = [(work.sentences, each) for each, work in fixed if (work.source, work.target) == (source, target)]
    title = f"{source:.0f} source tokens, {target} new tokens{', shaded up to p90' if tail else ''}"
    return _curves(report, rows, title, "batch: sentences that run together", label, value, tail)


def _over_target(report: BenchReport) -> Figure | None:
    rows = [(work.target, each) for each, work in _rows(report) if work.kind == "fixed" and work.batch == 1]
    labels = ("batch 1", "new tokens of a sentence", "ms a token, encoder included")
    return _curves(report, rows, *labels, lambda x: x.ms_per_token.p50, None)


def _curves(
    report: BenchReport,
    rows: Sequence[tuple[int, Measurement]],
    title: str,
    x_label: str,
    y_label: str,
    value: Value,
    tail: Value | None,
) -> Figure | None:
    """Return a plot with a curve for each contestant; the first element of each row is the horizontal position."""
    ticks = sorted({x for x, _ in rows})
    if len(ticks) < 2:
        return None
    figure, axes = _new_figure(title, x_label, y_label)
    for name, colour in _colours(report).items():
        points = sorted(((x, each) for x, each in rows if each.contestant == name), key=lambda point: point[0])
        x = [x for x, _ in points]
        y = [value(each) for _, each in points]
        if points:
            axes.plot(x, y, marker="o", markersize=4, color=colour, label=name)
        if points and tail is not None:
            axes.fill_between(x, y, [tail(each) for _, each in points], color=colour, alpha=0.15)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(ticks, [str(tick) for tick in ticks])
    axes.minorticks_off()
    axes.legend(fontsize=8, frameon=False)
    return figure


def _bars(report: BenchReport) -> Figure | None:
    """Return a plot of time ratios to the bundle, for all shared workloads."""
    workloads = [x.name for x in report.workloads if sum(m.workload == x.name for m in report.measurements) > 1]
    compared = {each.contestant for each in report.measurements if each.ratio is not None}
    colours = {name: colour for name, colour in _colours(report).items() if name in compared}
    if not workloads:
        return None
    x = f"time over that of {report.contestants[0].name}, median of rounds, p10 to p90"
    figure, axes = _new_figure("", x, "", 8.0, 1.2 + 0.22 * len(colours) * len(workloads))
    height = 0.85 / len(colours)
    by_bar = {(each.workload, each.contestant): each for each in report.measurements}
    labelled: set[str] = set()
    for line, workload in enumerate(workloads):
        for place, (name, colour) in enumerate(colours.items()):
            if (workload, name) in by_bar:
                y = line + (place + 0.5) * height - 0.425
                _bar(axes, by_bar[workload, name], y, height * 0.9, colour, None if name in labelled else name)
                labelled.add(name)
    axes.axvline(1, color="#444444", linewidth=0.8)
    axes.set_yticks(range(len(workloads)), [name.replace(": ", ":\n") for name in workloads], fontsize=8)
    axes.invert_yaxis()
    axes.grid(False, axis="y")
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_minor_locator(NullLocator())
    axes.margins(x=0.15)
    figure.legend(fontsize=8, frameon=False, ncols=3, loc="outside upper left")
    return figure


def _bar(axes: Axes, each: Measurement, y: float, height: float, colour: str, label: str | None) -> None:
    """Draw a bar that starts at 1: to the right if slower than the bundle, to the left if faster."""
    middle = high = 1.0
    spread = None
    if each.ratio:
        middle, high = each.ratio.p50, each.ratio.p90
        spread = [[middle - each.ratio.p10], [high - middle]]
    axes.barh(y, middle - 1, height, 1, color=colour, label=label, xerr=spread, error_kw={"lw": 0.8})
    differs = each.agreement is not None and each.agreement.identical < each.agreement.sentences
    note = f"  {middle:.2f}"
    if differs:
        note += " (other ids)"
    axes.text(max(1, high), y, note, va="center", fontsize=7)


def _roofline(report: BenchReport) -> Figure | None:
    """Return a plot of operations per second over operations per byte (Williams et al., 2009), with measured limits."""
    machine = report.machine
    points = [(each.contestant, each.roofline, each.call_ms.p50) for each in report.measurements if each.roofline]
    if not points or not machine.bandwidth or not machine.peaks:
        return None
    small = machine.bandwidth[0].bytes >> 20
    large = machine.bandwidth[-1].bytes >> 20
    title = f"measured roofs: reading arrays of {small} MB (dotted) and {large} MB (solid)"
    figure, axes = _new_figure(title, "operations for each byte that must be read", "10⁹ operations a second")
    intensities = [line.operations / line.bytes for _, line, _ in points]
    _roofs(axes, machine, {each.precision for each in report.contestants}, min(intensities) / 2, max(intensities) * 2)
    for name, colour in _colours(report).items():
        points_of_system = [
            (line.operations / line.bytes, line.operations / ms / 1e6) for each, line, ms in points if each == name
        ]
        if points_of_system:
            axes.scatter(
                [x for x, _ in points_of_system],
                [y for _, y in points_of_system],
                s=18,
                color=colour,
                label=name,
                zorder=3,
            )
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.legend(fontsize=8, frameon=False)
    return figure


def _roofs(axes: Axes, machine: Machine, precisions: set[str], low: float, high: float) -> None:
    grid = [low * (high / low) ** (i / 100) for i in range(101)]
    for kind in sorted(precisions):
        peak = max((x.operations_per_second for x in machine.peaks if x.type == kind), default=None)
        if peak is None:
            continue
        for bandwidth, line in ((machine.bandwidth[0], ":"), (machine.bandwidth[-1], "-")):
            roof = [min(peak, x * bandwidth.bytes_per_second) / 1e9 for x in grid]
            axes.plot(grid, roof, line, color="#888888", linewidth=1)
        axes.text(high, peak / 1e9, f"peak {kind} ", fontsize=7, ha="right", va="bottom", color="#555555")
