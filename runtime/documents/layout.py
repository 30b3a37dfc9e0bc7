r"""Documents as segments to translate and the layout between them, which stays unchanged character by character.

A segment is a sentence, a cell between tabs, a heading or a list item. Layout is white space, line breaks, marks of
lines (bullets, numbers, "#", ">"), and everything without letters or numbers, such as a line of dashes. A line break
ends a segment unless its paragraph was wrapped, which shows if a line begins in lower case. Breaks inside a segment
return in its translation, at the nearest white space in proportion. `join` of the segments' own texts returns the
document.

C++ has the same rules (`cpp/src/documents/layout.cpp`).
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from txport.runtime.documents.sentences import CLOSING, sentences
from txport.runtime.text.alignment import Span

# Line breaks of `str.splitlines`, without the ASCII separators. This pattern and `_COLUMN` begin with a set of
# characters, to which `re` skips; with "+" or "|" it would try each position.
_BREAK = re.compile("[\n\v\f\r\x85\u2028\u2029](?:(?<=\r)\n)?")
_SPACE = "[ \t\x1c-\x1f\xa0\u1680\u2000-\u200a\u202f\u205f\u3000]"  # all other white space
_BULLETS = "•‣▪●○◦⁃"
_MARK = re.compile(
    rf"\ufeff?{_SPACE}*(?:>{_SPACE}*)*(?:[{_BULLETS}]{_SPACE}*)?"
    rf"(?:(?:\#{{1,6}}|[-*+·–—]|[0-9]{{1,3}}[.)]|[A-Za-z]\)|\([0-9]{{1,3}}\)|\([A-Za-z]\)){_SPACE}+)?"
    rf"(?:\[[ xX]\]{_SPACE}+)?"
)
# Separators of cells: white space that contains a tab, or is wide, or precedes a bullet. `(?=[\s...])` quickly skips
# most single spaces.
_COLUMN = re.compile(rf"{_SPACE}(?:(?<=\t)|(?=[\s{_BULLETS}])(?={_SPACE}*[\t{_BULLETS}]|{_SPACE}{{3}})){_SPACE}*")
_WORD = re.compile(r"[^\W_]")
# Span of a line without trailing white space, and spans of its cells without marks.
_Line = tuple[Span, list[Span]]
# Usual widths of wrapped paragraphs in characters, and the width of a word that did not fit.
_WIDTHS = range(40, 121)
_LONGEST_WORD = 20
# Ends of a sentence after which the next one needs a space, in scripts with spaces.
_SPACED_ENDS = ".!?…,;:"
_FIRST_UNSPACED = "\u2e80"  # of Chinese, Japanese and the scripts after them


class Segment(NamedTuple):
    """Segment of a document to translate.

    Attributes:
        start, end: its characters in the document, without white space around them.
        text: the same, with one space instead of each line break and the white space around it.
        breaks: positions of these spaces in `text`, and the replaced characters.
        cut: whether it is a part of a sentence that is longer than the model takes.
    """

    start: int
    end: int
    text: str
    breaks: tuple[tuple[int, str], ...] = ()
    cut: bool = False


def split(text: str, language: str | None = None) -> list[Segment]:
    """Return the segments of a document, in order.

    Args:
        text: any text.
        language: of the text, as a bundle names it; None if unknown.
    """
    segments = []
    for start, end in _blocks(text):
        for first, last in sentences(text, start, end, language):
            if text[first].isalnum() or _WORD.search(text, first, last):
                segments.append(segment_of(text, first, last))
    return segments


def segment_of(text: str, start: int, end: int, cut: bool = False) -> Segment:
    """Return the segment of these characters of a document."""
    if len((span_text := text[start:end]).splitlines()) < 2:  # the usual case; `splitlines` finds every break
        return Segment(start, end, span_text, (), cut)
    words = []
    breaks = []
    position = start
    length = 0
    for match in _BREAK.finditer(text, start, end):
        first, last = match.span()
        if first < position:  # in the white space of the last one
            continue
        while text[first - 1].isspace():
            first -= 1
        while text[last].isspace():
            last += 1
        words.append(text[position:first])
        length += first - position
        breaks.append((length, text[first:last]))
        length = length + 1
        position = last
    return Segment(start, end, " ".join([*words, text[position:end]]), tuple(breaks), cut)


def join(text: str, segments: Sequence[Segment], translations: Iterable[str]) -> tuple[str, list[Span]]:
    """Return the document with translated segments, and the character span of each translation."""
    parts = []
    spans = []
    length = 0
    before: tuple[Segment, str] | None = None
    for segment, translation in zip(segments, translations, strict=True):
        layout = layout_before(text, segment, translation, before)
        translated = with_breaks(segment, translation)
        parts += [layout, translated]
        length += len(layout)
        spans.append((length, length + len(translated)))
        length += len(translated)
        before = segment, translation
    return "".join([*parts, text[before[0].end if before else 0 :]]), spans


def layout_before(text: str, segment: Segment, translation: str, before: tuple[Segment, str] | None) -> str:
    """Return the text between a translation and the one before it.

    Args:
        text: the document.
        segment: of it.
        translation: of the segment, or the beginning of it.
        before: the segment before, and its translation; None for none.
    """
    if before is None:
        return text[: segment.start]
    layout = text[before[0].end : segment.start]
    lacks_space = not layout and _spaced(before[1], translation) and not _spaced(before[0].text, segment.text)
    return " " if lacks_space else layout  # a script without spaces needs none


def without_mark(text: str) -> str:
    """Return a line without its mark, such as a bullet."""
    return text[_end_of_mark(text, 0, len(text)) :]


def _blocks(text: str) -> list[Span]:
    """Return the cells of all lines, without marks; wrapped lines form one cell."""
    blocks: list[Span] = []
    for paragraph in _paragraphs(text):
        for (_, cells), goes_on in zip(paragraph, _wrapped(text, paragraph), strict=True):
            if goes_on:  # it is one cell, like the line before
                blocks[-1] = blocks[-1][0], cells[0][1]
            else:
                blocks += cells
    return blocks


def _paragraphs(text: str) -> Iterator[list[_Line]]:
    """Yield groups of consecutive lines that are not blank."""
    columns = [column.span() for column in _COLUMN.finditer(text)][::-1]
    lines: list[_Line] = []
    for line in _line_spans(text):
        if line[0] < line[1]:
            lines.append((line, _cells(text, *line, columns)))
        elif lines:
            yield lines
            lines = []
    yield lines


def _line_spans(text: str) -> Iterator[Span]:
    """Yield the span of each line, without trailing white space."""
    start = 0
    breaks = [match.span() for match in _BREAK.finditer(text)]
    for end, following in [*breaks, (len(text), 0)]:
        while end > start and text[end - 1].isspace():
            end -= 1
        yield start, end
        start = following


def _cells(text: str, start: int, end: int, columns: list[Span]) -> list[Span]:
    """Return the cells of a line, without marks.

    Args:
        start, end: of the line.
        columns: separators of the text in reverse order; those of this line are removed.
    """
    cells = []
    position = _end_of_mark(text, start, end)
    while columns and columns[-1][0] < end:
        first, last = columns.pop()
        if first >= position:  # in this line, and not inside a mark
            cells.append((position, first))
            position = _end_of_mark(text, last, end)
    return [*cells, (position, end)]


def _end_of_mark(text: str, start: int, end: int) -> int:
    if (
        text[start : start + 1].isalpha() and text[start + 1 : start + 2] != ")"
    ):  # the usual case: no mark begins with this character
        return start
    mark = _MARK.match(text, start, end)
    if mark is None:
        return start
    return mark.end()


def _wrapped(text: str, paragraph: Sequence[_Line]) -> list[bool]:
    """Return whether at least one line shows that a paragraph was wrapped."""
    starts = [cells[0][0] for _, cells in paragraph[1:]]
    if not any(text[cell_start : cell_start + 1].islower() for cell_start in starts):
        return [False] * len(paragraph)
    width = max(end - start for (start, end), _ in paragraph)
    goes_on = [False]
    is_wrapped = False
    for (before, cells_before), (line, cells) in pairwise(paragraph):
        cell_start, end = cells[0]
        plain = not text[line[0] : cell_start].strip() and len(cells) == len(cells_before) == 1 and width in _WIDTHS
        word = next((position for position in range(cell_start, end) if text[position].isspace()), end) - cell_start
        full = word <= _LONGEST_WORD and before[1] - before[0] + 1 + word > width
        lower = text[cell_start : cell_start + 1].islower()
        goes_on.append(plain and (full or lower))
        is_wrapped |= plain and full and lower
    if is_wrapped:
        return goes_on
    return [False] * len(paragraph)


def with_breaks(segment: Segment, translation: str) -> str:
    """Return the translation with the line breaks of the segment."""
    result = ""
    position = 0
    for place, layout in segment.breaks:
        estimate = (place * len(translation) + len(segment.text) // 2) // len(segment.text)
        spaces = (each for each in range(position, len(translation)) if translation[each].isspace())
        space = min(spaces, key=lambda each: abs(each - estimate), default=len(translation))
        result += translation[position:space] + layout
        position = min(space + 1, len(translation))
    return result + translation[position:]


def _spaced(before: str, after: str) -> bool:
    """Return whether there must be white space between two texts."""
    last = before.rstrip(CLOSING)[-1:]
    if last and last in _SPACED_ENDS:
        return True
    return all(each.isalnum() and each < _FIRST_UNSPACED for each in (before[-1:], after[:1]))
