"""The plots of a report, each as PNG and SVG."""

from collections.abc import Callable, Sequence
from pathlib import Path

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator
from txport.benchmarks.report.schema import Measurement, Report, Workload
from txport.runtime.files import new_file

FORMATS = ("png", "svg")
# The palette of Okabe and Ito (2008), which everybody can tell apart; the bundle is the first one.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#8A8A00")

Row = tuple[Measurement, Workload]


def write_plots(report: Report, directory: Path) -> list[Path]:
    """Write those that the report has figures for; the files that were written."""
    rows = _rows(report)
    drawings: dict[str, Callable[[], Figure | None]] = {
        "latency": lambda: _over_batch(report, rows, "ms for a call", lambda x: x.call_ms.p50, lambda x: x.call_ms.p90),
        "throughput": lambda: _over_batch(report, rows, "tokens a second", lambda x: x.tokens_per_second, None),
        "length": lambda: _over_target(report, rows),
        "peers": lambda: _bars(report),
        "roofline": lambda: _roofline(report, rows),
    }
    written = []
    for name, draw in drawings.items():
        figure = draw()
        if figure is not None:
            written += save(figure, directory, name)
    return written


def save(figure: Figure, directory: Path, name: str) -> list[Path]:
    """Write one figure in each format, whole or not at all."""
    paths = []
    # Text as text: smaller files, and words that can be searched. The salt makes the same plot the same bytes.
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "txport"}):
        for kind in FORMATS:
            path = directory / f"{name}.{kind}"
            with new_file(path) as file:
                metadata = {"Date": None} if kind == "svg" else {}
                figure.savefig(file, format=kind, dpi=150, metadata=metadata)
            paths.append(path)
    return paths


def new_figure(width: float = 7.0, height: float = 4.4) -> tuple[Figure, Axes]:
    """A figure with one pair of axes, in the style of all of them."""
    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.subplots()
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(True, which="major", color="#dddddd", linewidth=0.8)
    axes.set_axisbelow(True)
    return figure, axes


def _rows(report: Report) -> list[Row]:
    workloads = {each.name: each for each in report.workloads}
    return [(each, workloads[each.workload]) for each in report.measurements]


def _names(report: Report) -> dict[str, str]:
    """A colour for each contestant."""
    return {each.name: COLOURS[index % len(COLOURS)] for index, each in enumerate(report.contestants)}


def _most_common(values: Sequence[tuple[float, int]]) -> tuple[float, int] | None:
    return max(sorted(set(values)), key=values.count) if values else None


def _over_batch(
    report: Report,
    rows: Sequence[Row],
    label: str,
    value: Callable[[Measurement], float],
    tail: Callable[[Measurement], float] | None,
) -> Figure | None:
    fixed = [row for row in rows if row[1].kind == "fixed"]
    sizes = _most_common([(workload.source, workload.target) for _, workload in fixed])
    here = [row for row in fixed if (row[1].source, row[1].target) == sizes]
    if sizes is None or len({workload.batch for _, workload in here}) < 2:
        return None
    figure, axes = new_figure()
    for name, colour in _names(report).items():
        points = sorted(
            ((workload.sentences, each) for each, workload in here if each.contestant == name), key=lambda p: p[0]
        )
        if points:
            x = [batch for batch, _ in points]
            axes.plot(x, [value(each) for _, each in points], marker="o", markersize=4, color=colour, label=name)
            if tail is not None:
                axes.fill_between(
                    x, [value(each) for _, each in points], [tail(each) for _, each in points], color=colour, alpha=0.15
                )
    _powers(axes, sorted({workload.sentences for _, workload in here}))
    axes.set_yscale("log")
    axes.set_xlabel("batch: sentences that run together")
    axes.set_ylabel(label)
    shade = ", shaded up to p90" if tail is not None else ""
    axes.set_title(f"{sizes[0]:.0f} source tokens, {sizes[1]} new tokens{shade}", fontsize=10, loc="left")
    axes.legend(fontsize=8, frameon=False)
    return figure


def _over_target(report: Report, rows: Sequence[Row]) -> Figure | None:
    fixed = [row for row in rows if row[1].kind == "fixed" and row[1].batch == 1]
    if len({workload.target for _, workload in fixed}) < 2:
        return None
    figure, axes = new_figure()
    for name, colour in _names(report).items():
        points = sorted(
            ((workload.target, each.ms_per_token.p50) for each, workload in fixed if each.contestant == name)
        )
        if len(points) > 1:
            axes.plot(*zip(*points, strict=True), marker="o", markersize=4, color=colour, label=name)
    _powers(axes, sorted({workload.target for _, workload in fixed}))
    axes.set_ylim(bottom=0)
    axes.set_xlabel("new tokens of a sentence")
    axes.set_ylabel("ms a token, encoder included")
    axes.set_title("batch 1", fontsize=10, loc="left")
    axes.legend(fontsize=8, frameon=False)
    return figure


def _bars(report: Report) -> Figure | None:
    """Time over the bundle's on every workload that others did too."""
    workloads = [x.name for x in report.workloads if sum(m.workload == x.name for m in report.measurements) > 1]
    names = {
        name: colour
        for name, colour in _names(report).items()
        if any(m.contestant == name and m.ratio is not None for m in report.measurements)
    }
    if not workloads:
        return None
    figure, axes = new_figure(8.0, 1.2 + 0.22 * len(names) * len(workloads))
    height = 0.85 / len(names)
    labelled: set[str] = set()
    for line, workload in enumerate(workloads):
        for place, (name, colour) in enumerate(names.items()):
            found = [m for m in report.measurements if m.workload == workload and m.contestant == name]
            if not found:
                continue
            value, spread = _relative(found[0])
            y = line + (place + 0.5) * height - 0.425
            label = None if name in labelled else name
            labelled.add(name)
            # From 1 on: to the right is slower than the bundle, to the left is faster.
            axes.barh(y, value - 1, height * 0.9, 1, color=colour, label=label, xerr=spread, error_kw={"lw": 0.8})
            wrong = found[0].agreement is not None and found[0].agreement.identical < found[0].agreement.sentences
            note = f"  {value:.2f}{' (other ids)' if wrong else ''}"
            axes.text(max(1, value + (spread[1][0] if spread else 0)), y, note, va="center", fontsize=7)
    axes.axvline(1, color="#444444", linewidth=0.8)
    axes.set_yticks(range(len(workloads)), [x.replace(": ", ":\n") for x in workloads], fontsize=8)
    axes.invert_yaxis()
    axes.grid(False, axis="y")
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_minor_locator(NullLocator())
    axes.margins(x=0.15)
    axes.set_xlabel(f"time over that of {report.contestants[0].name}, median of rounds, p10 to p90")
    axes.legend(fontsize=8, frameon=False, ncols=4, loc="lower left", bbox_to_anchor=(0, 1))
    return figure


def _relative(each: Measurement) -> tuple[float, list[list[float]] | None]:
    if each.ratio is None:
        return 1.0, None
    low, middle, high = each.ratio.p10, each.ratio.p50, each.ratio.p90
    return middle, [[middle - low], [high - middle]]


def _roofline(report: Report, rows: Sequence[Row]) -> Figure | None:
    """Operations a second over operations a byte (Williams et al., 2009), with this machine's measured roof."""
    machine = report.machine
    drawn = [(each, workload) for each, workload in rows if each.roofline is not None]
    if not drawn or not machine.bandwidth or not machine.peaks:
        return None
    figure, axes = new_figure()
    points = [x.roofline.operations / x.roofline.bytes for x, _ in drawn if x.roofline is not None]
    span = [min(points) / 2, max(points) * 2]
    grid = [span[0] * (span[1] / span[0]) ** (i / 100) for i in range(101)]
    kinds = {each.precision for each in report.contestants}
    for kind in sorted(kinds):
        peak = max((x.operations_per_second for x in machine.peaks if x.type == kind), default=None)
        if peak is None:
            continue
        for which, style in ((machine.bandwidth[0], ":"), (machine.bandwidth[-1], "-")):
            roof = [min(peak, x * which.bytes_per_second) / 1e9 for x in grid]
            axes.plot(grid, roof, style, color="#888888", linewidth=1)
        axes.text(span[1], peak / 1e9, f"peak {kind} ", fontsize=7, ha="right", va="bottom", color="#555555")
    for name, colour in _names(report).items():
        here = [(each, each.roofline) for each, _ in drawn if each.contestant == name]
        if here:
            x = [line.operations / line.bytes for _, line in here if line is not None]
            y = [line.operations / each.call_ms.p50 / 1e6 for each, line in here if line is not None]
            axes.scatter(x, y, s=18, color=colour, label=name, zorder=3)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("operations for each byte that must be read")
    axes.set_ylabel("10⁹ operations a second")
    sizes = f"{machine.bandwidth[0].bytes >> 20} MB (dotted) and {machine.bandwidth[-1].bytes >> 20} MB (solid)"
    axes.set_title(f"measured roofs: reading arrays of {sizes}", fontsize=10, loc="left")
    axes.legend(fontsize=8, frameon=False)
    return figure


def _powers(axes: Axes, values: Sequence[int]) -> None:
    """A logarithmic axis with a tick at each value."""
    axes.set_xscale("log", base=2)
    axes.set_xticks(values, [str(value) for value in values])
    axes.minorticks_off()
