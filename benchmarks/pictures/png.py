"""Conversion of a canvas to PNG by matplotlib."""

import io
import logging
import warnings

import matplotlib
from matplotlib.collections import LineCollection, PolyCollection
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure
from txport.benchmarks.pictures.canvas import Canvas

DPI = 192  # two pixels for each unit of the canvas
MAX_PIXELS = 8000  # maximum pixels of a side; larger pictures get a lower resolution, since a picture is held in memory
_INCH = 96
_log = logging.getLogger("txport")


def png(canvas: Canvas) -> bytes:
    """Return the bytes of the file. Characters that are not in matplotlib's font become boxes, with a warning."""
    figure = Figure(figsize=(canvas.width / _INCH, canvas.height / _INCH))
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_xlim(0, canvas.width)
    axes.set_ylim(canvas.height, 0)
    axes.axis("off")
    corners = [
        [(x.x, x.y), (x.x + x.width, x.y), (x.x + x.width, x.y + x.height), (x.x, x.y + x.height)]
        for x in canvas.rectangles
    ]
    colours = [to_rgba(each.colour, each.opacity) for each in canvas.rectangles]
    axes.add_collection(PolyCollection(corners, facecolors=colours, linewidths=0, zorder=1), autolim=False)
    strokes = [to_rgba(each.colour, each.opacity) for each in canvas.lines]
    widths = [each.width * 72 / _INCH for each in canvas.lines]
    paths = [list(each.points) for each in canvas.lines]
    axes.add_collection(LineCollection(paths, colors=strokes, linewidths=widths, zorder=2), autolim=False)
    for each in canvas.texts:
        axes.text(
            *(each.x, each.y, each.text),
            fontsize=each.size * 72 / _INCH,
            fontweight="bold" if each.bold else "normal",
            color=each.colour,
            ha={"start": "left", "middle": "center", "end": "right"}[each.anchor],
            va="baseline",
            rotation=90 if each.turned else 0,
            rotation_mode="anchor",
            parse_math=False,
            zorder=3,
        )
    file = io.BytesIO()
    dpi = min(DPI, MAX_PIXELS * _INCH / max(canvas.width, canvas.height))
    with warnings.catch_warnings(record=True) as caught, matplotlib.rc_context({"font.family": "DejaVu Sans"}):
        warnings.simplefilter("always")
        figure.savefig(file, format="png", dpi=dpi, facecolor="white")
    if any("missing from" in str(each.message) for each in caught):
        _log.warning("some characters are not in the font of PNG pictures: write SVG or HTML")
    return file.getvalue()
