"""Rectangles, lines and text on a plane, and conversion to SVG and HTML; `png` converts to PNG.

Units are pixels at 96 per inch; y grows downwards. SVG and HTML need no library and no network.
"""

import html
import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, field

MARGIN = 12.0
FONT = "DejaVu Sans, Verdana, sans-serif"
INK = "#222222"
LINE = "#bbbbbb"

Point = tuple[float, float]
# Characters that XML 1.0, section 2.2, forbids in a document, also as character references.
_FORBIDDEN = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


@dataclass(frozen=True)
class Rectangle:
    """A filled rectangle. A browser shows `title` under the mouse."""

    x: float
    y: float
    width: float
    height: float
    colour: str
    opacity: float = 1.0
    title: str = ""


@dataclass(frozen=True)
class Line:
    """A line through two or more points."""

    points: Sequence[Point]
    colour: str
    width: float = 1.0
    opacity: float = 1.0
    title: str = ""


@dataclass(frozen=True)
class Text:
    """One line of text. `anchor` is the part of its baseline at the point (x, y); `turned` text runs upwards."""

    x: float
    y: float
    text: str
    size: float = 9.0
    anchor: str = "start"  # or middle, or end
    turned: bool = False
    bold: bool = False
    colour: str = INK


@dataclass
class Canvas:
    """A drawing. Lines cover rectangles, and text covers both.

    Attributes:
        width, height: size of the contents and a margin.
    """

    rectangles: list[Rectangle] = field(default_factory=list)
    lines: list[Line] = field(default_factory=list)
    texts: list[Text] = field(default_factory=list)
    width: float = MARGIN
    height: float = MARGIN

    def add(self, mark: Rectangle | Line | Text) -> None:
        """Add a mark, and enlarge the canvas to contain it."""
        if isinstance(mark, Rectangle):
            self.rectangles.append(mark)
            right = mark.x + mark.width
            bottom = mark.y + mark.height
        elif isinstance(mark, Line):
            self.lines.append(mark)
            right, bottom = (max(values) for values in zip(*mark.points, strict=True))
        else:
            self.texts.append(mark)
            length = text_width(mark.text, mark.size) * {"start": 1.0, "middle": 0.5, "end": 0.0}[mark.anchor]
            right, bottom = (mark.x, mark.y) if mark.turned else (mark.x + length, mark.y + 0.3 * mark.size)
        self.width, self.height = max(self.width, right + MARGIN), max(self.height, bottom + MARGIN)

    def svg(self, label: str) -> str:
        """Return the whole picture as SVG; `label` is its description in words."""
        size = f'width="{_number(self.width)}" height="{_number(self.height)}"'
        box = f'viewBox="0 0 {_number(self.width)} {_number(self.height)}"'
        head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} {box} role="img" aria-label="{_escape(label)}"'
        # The group sets a common colour once, which makes the file smaller.
        if self.rectangles:
            colour = self.rectangles[0].colour
        else:
            colour = INK
        rectangles = "\n".join(_rectangle(each, colour) for each in self.rectangles)
        body = [
            f'{head} font-family="{FONT}">',
            '<rect width="100%" height="100%" fill="#ffffff"/>',
            f'<g fill="{colour}">\n{rectangles}\n</g>',
            *map(_line, self.lines),
            *map(_text, self.texts),
            "</svg>",
        ]
        return "\n".join(body) + "\n"

    def page(self, label: str) -> str:
        """Return a complete HTML page with only the picture."""
        style = "body{margin:1em}rect:hover,polyline:hover{stroke:#d55e00;stroke-opacity:1}"
        head = f'<meta charset="utf-8"><title>{_escape(label)}</title><style>{style}</style>'
        return f'<!doctype html>\n<html lang="en"><head>{head}</head>\n<body>\n{self.svg(label)}</body></html>\n'


def text_width(text: str, size: float) -> float:
    """Return the approximate width of a text. No font is available to measure it."""
    wide_count = sum(unicodedata.east_asian_width(character) in "WF" for character in text)
    return size * (0.62 * (len(text) - wide_count) + wide_count)


def _rectangle(each: Rectangle, colour: str) -> str:
    place = f'x="{_number(each.x)}" y="{_number(each.y)}" width="{_number(each.width)}" height="{_number(each.height)}"'
    if each.colour == colour:
        fill = ""
    else:
        fill = f' fill="{each.colour}"'
    if each.opacity == 1:
        opacity = ""
    else:
        opacity = f' fill-opacity="{_number(each.opacity)}"'
    return _element("rect", place + fill + opacity, each.title)


def _line(each: Line) -> str:
    points = " ".join(f"{_number(x)},{_number(y)}" for x, y in each.points)
    stroke = f'stroke="{each.colour}" stroke-width="{_number(each.width)}" fill="none"'
    if each.opacity == 1:
        opacity = ""
    else:
        opacity = f' stroke-opacity="{_number(each.opacity)}"'
    return _element("polyline", f'points="{points}" {stroke}{opacity}', each.title)


def _text(each: Text) -> str:
    if each.turned:
        turned = f' transform="rotate(-90 {_number(each.x)} {_number(each.y)})"'
    else:
        turned = ""
    look = f'font-size="{_number(each.size)}" text-anchor="{each.anchor}" fill="{each.colour}"'
    if each.bold:
        bold = ' font-weight="bold"'
    else:
        bold = ""
    place = f'x="{_number(each.x)}" y="{_number(each.y)}"'
    return f"<text {place} {look}{bold}{turned}>{_escape(each.text)}</text>"


def _element(name: str, attributes: str, title: str) -> str:
    if title:
        content = f"><title>{_escape(title)}</title></{name}>"
    else:
        content = "/>"
    return f"<{name} {attributes}{content}"


def _escape(text: str) -> str:
    return html.escape(_FORBIDDEN.sub("\ufffd", text))


def _number(value: float) -> str:
    """Return a number with at most four decimals, without trailing zeros."""
    return f"{value:.4f}".rstrip("0").rstrip(".")
