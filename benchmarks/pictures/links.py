"""Links from one word to the tokens that it attends to. A darker link has a larger weight."""

from collections.abc import Sequence

from txport.benchmarks.pictures.canvas import INK, LINE, MARGIN, Canvas, Line, Text, text_width
from txport.benchmarks.pictures.heatmaps import COLOUR, MIN_WEIGHT, heading, panel_title, weight_title
from txport.benchmarks.pictures.maps import TITLES, Map

SIZE = 11.0
ROW = 17.0
LINK = 90.0
GAP = 36.0
FAINT = "#999999"


def draw_links(maps: Sequence[Map], layers: Sequence[int], heads: Sequence[int], word: str) -> Canvas:
    """Draw a panel for each layer and head; arguments as for `draw_heatmaps`, and a word that every map contains."""
    canvas = Canvas()
    for each in maps:
        _grid(canvas, each, layers or range(each.weights.shape[0]), heads or range(each.weights.shape[1]), word)
    return canvas


def _grid(canvas: Canvas, each: Map, layers: Sequence[int], heads: Sequence[int], word: str) -> None:
    queries = each.find(word)
    top = heading(canvas, TITLES[each.kind])
    left, right = (max(text_width(label, SIZE) for label in labels) for labels in (each.queries, each.keys))
    width = left + LINK + right + GAP
    height = ROW * max(len(each.queries), len(each.keys)) + GAP
    for row, layer in enumerate(layers):
        for column, head in enumerate(heads):
            x = MARGIN + left + column * width
            y = top + row * height + SIZE
            canvas.add(Text(x + LINK / 2, y, panel_title(layer, head), SIZE, "middle"))
            canvas.add(Line([(x - left, y + 5), (x + LINK + right, y + 5)], LINE))
            _panel(canvas, each, layer, head, queries, x, y + 8)


def _panel(canvas: Canvas, each: Map, layer: int, head: int, queries: Sequence[int], x: float, y: float) -> None:
    for index, label in enumerate(each.queries):
        is_selected = index in queries
        canvas.add(
            Text(
                x - 4,
                y + (index + 0.8) * ROW,
                label,
                SIZE,
                "end",
                bold=is_selected,
                colour=INK if is_selected else FAINT,
            )
        )
    for index, label in enumerate(each.keys):
        canvas.add(Text(x + LINK + 4, y + (index + 0.8) * ROW, label, SIZE))
        for query in queries:
            weight = float(each.weights[layer, head, query, index])
            if weight >= MIN_WEIGHT:
                ends = [(x, y + (query + 0.5) * ROW), (x + LINK, y + (index + 0.5) * ROW)]
                title = weight_title(each.queries[query], label, weight)
                canvas.add(Line(ends, COLOUR, 3.0, min(weight, 1.0), title))
