"""The tables and the plot of tx-bench scale."""

from math import log2
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter, NullLocator
from rich.console import Console
from txport.benchmarks.report.plots import COLOURS, save, style
from txport.benchmarks.report.tables import markdown_table
from txport.benchmarks.scale.schema import Axis, ScaleReport
from txport.exporter.tables import print_table


def _fit_text(axis: Axis) -> str:
    """For example "exponent 1.02 ± 0.03"."""
    if axis.fit is None:
        return "too few points for an exponent"
    return f"exponent {axis.fit.exponent:.2f} ± {axis.fit.error:.2f}"


def _table(axis: Axis) -> tuple[list[str], list[list[str]]]:
    rows = []
    for point in axis.points:
        peak = "-" if point.peak_resident_bytes is None else f"{point.peak_resident_bytes / 1e6:.0f}"
        spread, each = f"{point.low:.4g}..{point.high:.4g}", f"{point.figure / point.value:.3g}"
        rows.append([f"{point.value:,}", f"{point.figure:,.4g}", spread, each, peak])
    return [axis.name, axis.unit, "p10..p90", "for each", "peak MB"], rows


def print_scale(report: ScaleReport, console: Console) -> None:
    """One table for each axis."""
    for axis in report.axes:
        console.print(f"\n[bold]{axis.name}[/]: {axis.fixed}; {_fit_text(axis)}", highlight=False, soft_wrap=True)
        print_table(*_table(axis), console)


def scale_markdown(report: ScaleReport) -> str:
    """The same as Markdown."""
    machine = report.machine
    lines = [
        "# tx-bench scale",
        "",
        f"{report.created}, txport {report.made_by.version}: `tx-bench scale {' '.join(report.command)}`",
        "",
        f"{machine.processor}, {machine.cores} cores; load average before the run {machine.load_average:.2f}.",
        "Exponents are by least squares of logarithms, with their standard errors.",
    ]
    for axis in report.axes:
        lines += ["", f"## {axis.name}: {_fit_text(axis)}", "", f"{axis.fixed}.", "", *markdown_table(*_table(axis))]
    return "\n".join([*lines, ""])


def plot_scale(report: ScaleReport, directory: Path) -> list[Path]:
    """All axes in one figure, with the fitted lines; returns the files that were written, none without an axis."""
    if not report.axes:
        return []
    columns = min(3, len(report.axes))
    rows = -(-len(report.axes) // columns)
    figure = Figure(figsize=(3.6 * columns, 3.2 * rows), layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False).flatten()
    for panel in panels[len(report.axes) :]:
        panel.set_visible(False)
    for panel, axis in zip(panels, report.axes, strict=False):
        _draw(panel, axis)
    return save(figure, directory, "scale")


def _draw(panel: Axes, axis: Axis) -> None:
    x, y = [point.value for point in axis.points], [point.figure for point in axis.points]
    errors = [[p.figure - p.low for p in axis.points], [p.high - p.figure for p in axis.points]]
    panel.errorbar(x, y, yerr=errors, fmt="o", markersize=4, color=COLOURS[0], elinewidth=0.8)
    if axis.fit is not None:
        log_x, log_y = (sum(map(log2, values)) / len(values) for values in (x, y))
        line = [2.0 ** (log_y + axis.fit.exponent * (log2(value) - log_x)) for value in x]
        panel.plot(x, line, color=COLOURS[1], linewidth=1)
    panel.set_xscale("log", base=2 if axis.name != "sentences" else 10)
    panel.set_yscale("log")
    panel.set_ylim(min(y) / 2, max(y) * 2)
    panel.set_xticks(x, [f"{value // 1000}k" if value >= 1000 else str(value) for value in x])
    panel.yaxis.set_major_formatter("{x:g}")
    panel.yaxis.set_minor_formatter(NullFormatter())
    panel.xaxis.set_minor_locator(NullLocator())
    panel.set_xlabel(axis.name, fontsize=9)
    panel.set_ylabel(axis.unit, fontsize=9)
    panel.set_title(_fit_text(axis), fontsize=9, loc="left")
    panel.tick_params(labelsize=8)
    style(panel)
