"""Plots as somebody sees them: nothing of a legend is cut off, and no two contestants look alike."""

from dataclasses import replace
from pathlib import Path

import pytest
from bench_reports import CONTESTANT, measurement, report
from matplotlib.figure import Figure
from txport.benchmarks.report import plots
from txport.benchmarks.report.schema import Ratio

# As many as the README's run has.
NAMES = ["txport", "txport, ONNX Runtime", "txport: bundle-int8", "txport: bundle-int8, ONNX Runtime", "PyTorch eager"]
NAMES += ["PyTorch compiled", "Hugging Face", "CTranslate2 float32", "CTranslate2 int8"]


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, Figure]:
    """Each figure of a report, instead of its files."""
    figures: dict[str, Figure] = {}

    def keep(figure: Figure, directory: Path, name: str) -> list[Path]:
        figures[name] = figure
        return []

    monkeypatch.setattr(plots, "save", keep)
    made = [
        replace(
            measurement([1.0 + place], workload),
            contestant=name,
            ratio=Ratio(0.5, 1.0, 2.0, 3) if place else None,
        )
        for workload in ("1 x 8 -> 4", "8 x 8 -> 4")
        for place, name in enumerate(NAMES)
    ]
    whole = replace(report(*made), contestants=tuple(replace(CONTESTANT, name=name) for name in NAMES))
    plots.write_plots(whole, tmp_path)
    return figures


def test_legends_are_whole(drawn: dict[str, Figure]) -> None:
    assert {"latency", "peers"} <= set(drawn)
    for figure in drawn.values():
        figure.draw_without_rendering()
        for legend in [*figure.legends, *(axes.get_legend() for axes in figure.axes)]:
            if legend is not None:
                box, page = legend.get_window_extent(), figure.bbox
                assert page.x0 <= box.x0 and box.x1 <= page.x1 and page.y0 <= box.y0 and box.y1 <= page.y1


def test_each_contestant_has_a_colour_of_its_own(drawn: dict[str, Figure]) -> None:
    colours = [line.get_color() for line in drawn["latency"].axes[0].get_lines()]
    assert len(set(colours)) == len(NAMES) == len(colours)
