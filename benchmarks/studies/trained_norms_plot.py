"""The plot of the study of norms in training: losses over steps, and bars of what came out."""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from txport.benchmarks.report.plots import COLOURS, style

Runs = Sequence[Mapping[str, Any]]


def draw(report: Mapping[str, Any]) -> Figure:
    """Of what `trained_norms.json` holds: a colour for each norm; dashed and pale is with scheduled sampling."""
    contestants = report["contestants"]
    norms = list(dict.fromkeys(each["norm"] for each in contestants))
    figure = Figure(figsize=(10, 4.8), layout="constrained")
    axes = figure.subplot_mosaic([["losses", "exact"], ["losses", "bleu"], ["losses", "time"]], width_ratios=(1.4, 1))
    labels = [each["norm"] + (", sampling" if _sampled(each) else "") for each in contestants]
    colours = [COLOURS[norms.index(each["norm"])] for each in contestants]
    for each, label, colour in zip(contestants, labels, colours, strict=True):
        _curve(axes["losses"], each, label, colour)
    axes["losses"].set(xlabel="steps", ylabel="validation loss, nats a token", yscale="log")
    axes["losses"].set_xlim(left=0)
    for formatter in (axes["losses"].yaxis.set_major_formatter, axes["losses"].yaxis.set_minor_formatter):
        formatter("{x:g}")
    axes["losses"].legend(fontsize=8, frameon=False)
    style(axes["losses"])
    pale = [0.45 if _sampled(each) else 1.0 for each in contestants]
    bars = {
        "exact": ("exact match, %", [[100 * run["test"]["exact"] for run in each["runs"]] for each in contestants]),
        "bleu": ("BLEU", [[run["test"]["bleu"] for run in each["runs"]] for each in contestants]),
        "time": (f"time of a step over {labels[0]}'s", [[each["step_ratio"]["p50"]] for each in contestants]),
    }
    for name, (title, values) in bars.items():
        _bars(axes[name], title, labels, values, list(zip(colours, pale, strict=True)))
    return figure


def _sampled(contestant: Mapping[str, Any]) -> bool:
    return bool(contestant["scheduled_sampling"] != "none")


def _curve(axes: Axes, contestant: Mapping[str, Any], label: str, colour: str) -> None:
    """The mean of all seeds, shaded from the least to the greatest."""
    losses = [run["losses"] for run in contestant["runs"]]
    steps = [int(step) for step in losses[0]]
    values = [list(column) for column in zip(*(each.values() for each in losses), strict=True)]
    line = "o--" if _sampled(contestant) else "o-"
    axes.plot(steps, [statistics.fmean(each) for each in values], line, markersize=3, label=label, color=colour)
    if len(losses) > 1:
        axes.fill_between(steps, [min(x) for x in values], [max(x) for x in values], color=colour, alpha=0.15)


def _bars(
    axes: Axes, title: str, labels: Sequence[str], values: Sequence[Sequence[float]], colours: Sequence[Any]
) -> None:
    """Means, with the least and the greatest of all seeds."""
    means = [statistics.fmean(each) for each in values]
    spread = [[mean - min(each) for mean, each in zip(means, values, strict=True)],
              [max(each) - mean for mean, each in zip(means, values, strict=True)]]  # fmt: skip
    bars = axes.barh(labels, means, 0.75, color=colours, xerr=spread, error_kw={"lw": 0.8})
    axes.bar_label(bars, [f" {mean:.3g}" for mean in means], fontsize=7)
    axes.set_title(title, fontsize=9, loc="left")
    axes.tick_params(labelsize=8)
    axes.invert_yaxis()
    axes.margins(x=0.12)
    axes.set_xlim(left=0)
    style(axes)
    axes.grid(False, axis="y")
