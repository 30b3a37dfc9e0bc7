"""Attention as heat maps: a grid of layers by heads, as in the figures of textbooks."""

from collections.abc import Sequence

from txport.benchmarks.pictures.canvas import LINE, MARGIN, Canvas, Line, Rectangle, Text, text_width
from txport.benchmarks.pictures.maps import TITLES, Map

COLOUR = "#08306b"
SMALL = 12.0  # side of a cell in a picture of several maps
LARGE = 24.0  # side of a cell in a single map of few tokens
MAX_LABELLED = 40
GAP = 16.0
LABEL = 9.0
# Minimum weight that is drawn. Smaller ones would be printed as 0, and 0 is white.
MIN_WEIGHT = 0.00005


def draw_heatmaps(maps: Sequence[Map], layers: Sequence[int], heads: Sequence[int]) -> Canvas:
    """Draw one grid for each map, from top to bottom.

    Args:
        maps: the maps to draw.
        layers, heads: the layers and heads to draw, counted from 0; empty for all.
    """
    canvas = Canvas()
    _legend(canvas)
    for each in maps:
        _grid(canvas, each, layers or range(each.weights.shape[0]), heads or range(each.weights.shape[1]))
    return canvas


def heading(canvas: Canvas, text: str) -> float:
    """Write a heading below the present contents; return the next vertical position."""
    canvas.add(Text(MARGIN, canvas.height + 14, text, 13, bold=True))
    return canvas.height - 4


def panel_title(layer: int, head: int) -> str:
    """Return the title of a panel. Layers and heads are counted from 1, as in textbooks."""
    return f"layer {layer + 1}, head {head + 1}"


def weight_title(query: str, key: str, weight: float) -> str:
    """Return the text that appears under the mouse."""
    return f"{query} → {key}: {weight:.4f}"


def _legend(canvas: Canvas) -> None:
    x = MARGIN + 14
    y = MARGIN
    steps = 20
    side = 6.0
    for step in range(steps):
        canvas.add(Rectangle(x + step * side, y, side, 10, COLOUR, (step + 0.5) / steps))
    canvas.add(_frame(x, y, steps * side, 10))
    canvas.add(Text(x - 4, y + 9, "0", LABEL, "end"))
    canvas.add(Text(x + steps * side + 4, y + 9, "1", LABEL))
    canvas.add(Text(x + steps * side + 24, y + 9, "rows: queries, columns: keys; white where masked", LABEL))


def _grid(canvas: Canvas, each: Map, layers: Sequence[int], heads: Sequence[int]) -> None:
    single = len(layers) * len(heads) == 1 and max(len(each.queries), len(each.keys)) <= MAX_LABELLED
    if single:
        side = LARGE
    else:
        side = SMALL
    top = heading(canvas, TITLES[each.kind])
    left = MARGIN + _longest(each.queries) + 6
    width = max(side * len(each.keys), text_width(panel_title(9, 9), LABEL)) + GAP
    height = side * len(each.queries) + GAP + LABEL
    for row, layer in enumerate(layers):
        y = top + row * height + LABEL + 4
        for column, head in enumerate(heads):
            x = left + column * width
            canvas.add(Text(x, y - 4, panel_title(layer, head), LABEL))
            _panel(canvas, each, layer, head, x, y, side)
        for index, label in enumerate(each.queries):
            canvas.add(Text(left - 4, y + (index + 0.5) * side + 0.35 * LABEL, label, LABEL, "end"))
    bottom = top + len(layers) * height - GAP + 4 + 6
    for column in range(len(heads)):
        for index, label in enumerate(each.keys):
            x = left + column * width + (index + 0.5) * side + 0.35 * LABEL
            canvas.add(Text(x, bottom, label, LABEL, "end", turned=True))
    canvas.height = max(canvas.height, bottom + _longest(each.keys) + MARGIN)


def _panel(canvas: Canvas, each: Map, layer: int, head: int, x: float, y: float, side: float) -> None:
    for i, query in enumerate(each.queries):
        for j, key in enumerate(each.keys):
            weight = float(each.weights[layer, head, i, j])
            if weight >= MIN_WEIGHT:
                title = weight_title(query, key, weight)
                canvas.add(Rectangle(x + j * side, y + i * side, side, side, COLOUR, min(weight, 1.0), title))
    canvas.add(_frame(x, y, side * len(each.keys), side * len(each.queries)))


def _frame(x: float, y: float, width: float, height: float) -> Line:
    return Line([(x, y), (x + width, y), (x + width, y + height), (x, y + height), (x, y)], LINE)


def _longest(labels: Sequence[str]) -> float:
    return max(text_width(label, LABEL) for label in labels)
