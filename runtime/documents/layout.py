r"""A document as segments to translate, and the layout between them, which is kept character for character.

A segment is a sentence, or what stands for one: a cell between tabs, a heading, an item of a list. Layout is white
space, line breaks, what marks a line (bullets, numbers, "#", ">"), and all that has no letter or number in it, such as
a rule of dashes. A line break ends a segment unless its paragraph was wrapped, which some line in lower case must show.
Breaks inside a segment come back in its translation, at the white space that is nearest in proportion. `join` puts the
segments' own texts together to the document again, character by character.

One specification in Python and in C++ (`cpp/src/documents/layout.cpp`).
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise

from txport.runtime.documents.sentences import CLOSING, sentences
from txport.runtime.text.alignment import Span

# Line breaks of `str.splitlines`, without the separators of ASCII.
_BREAK = re.compile("\r\n|[\n\v\f\r\x85\u2028\u2029]")
_SPACE = "[^\\S\n\v\f\r\x85\u2028\u2029]"
_BULLETS = "•‣▪●○◦⁃"
_MARK = re.compile(
    rf"\ufeff?{_SPACE}*(?:>{_SPACE}*)*(?:[{_BULLETS}]{_SPACE}*)?"
    rf"(?:(?:\#{{1,6}}|[-*+·–—]|[0-9]{{1,3}}[.)]|[A-Za-z]\)|\([0-9]{{1,3}}\)|\([A-Za-z]\)){_SPACE}+)?"
    rf"(?:\[[ xX]\]{_SPACE}+)?"
)
# What parts the cells of a line: white space with a tab in it, or wide, or before a bullet.
_COLUMN = re.compile(rf"{_SPACE}*\t{_SPACE}*|{_SPACE}{{4,}}|{_SPACE}+(?=[{_BULLETS}])")
# Widths of a paragraph, in characters, that somebody may have wrapped it to, and of a word that may not have fit.
_WIDTHS = range(40, 121)
_LONGEST_WORD = 20
# Ends of a sentence after which another one needs a space, where these scripts have one.
_SPACED_ENDS = ".!?…,;:"
_FIRST_UNSPACED = "\u2e80"  # of Chinese, Japanese and what follows them


@dataclass(frozen=True)
class Segment:
    """A segment of a document to translate.

    Attributes:
        start, end: its characters in the document, without white space around them.
        text: the same, with one space in place of each line break and the white space around it.
        breaks: where in `text` these spaces are, and what they stand for.
        cut: whether it is a part of a sentence that is longer than the model takes.
    """

    start: int
    end: int
    text: str
    breaks: tuple[tuple[int, str], ...] = ()
    cut: bool = False


@dataclass(frozen=True)
class _Line:
    """A line: its first character, the one after the last but white space, whether it has no mark, and its cells."""

    start: int
    end: int
    plain: bool
    cells: tuple[Span, ...]


def split(text: str, language: str | None = None) -> list[Segment]:
    """The segments of a document, in order.

    Args:
        text: any text.
        language: of the text, as a bundle names it; None for an unknown one.
    """
    segments = []
    for start, end in _blocks(text):
        for first, last in sentences(text, start, end, language):
            if any(map(str.isalnum, text[first:last])):
                segments.append(segment_of(text, first, last))
    return segments


def segment_of(text: str, start: int, end: int, cut: bool = False) -> Segment:
    """The segment of these characters of a document."""
    words = []
    breaks = []
    at = start
    length = 0
    for found in _BREAK.finditer(text, start, end):
        first, last = found.span()
        if first < at:  # in the white space of the last one
            continue
        while text[first - 1].isspace():
            first -= 1
        while text[last].isspace():
            last += 1
        words.append(text[at:first])
        length += first - at
        breaks.append((length, text[first:last]))
        length, at = length + 1, last
    return Segment(start, end, " ".join([*words, text[at:end]]), tuple(breaks), cut)


def join(text: str, segments: Sequence[Segment], translations: Iterable[str]) -> tuple[str, list[Span]]:
    """The document with a translation in place of each segment, and the characters of each translation in it."""
    made = []
    spans = []
    length = 0
    before: tuple[Segment, str] | None = None
    for segment, translation in zip(segments, translations, strict=True):
        layout, written = layout_before(text, segment, translation, before), with_breaks(segment, translation)
        made += [layout, written]
        length += len(layout)
        spans.append((length, length + len(written)))
        length += len(written)
        before = segment, translation
    return "".join([*made, text[before[0].end if before else 0 :]]), spans


def layout_before(text: str, segment: Segment, translation: str, before: tuple[Segment, str] | None) -> str:
    """Text between a translation and the one before it.

    Args:
        text: the document.
        segment: of it.
        translation: of the segment, or the beginning of it.
        before: the segment before, and its translation; None for none.
    """
    if before is None:
        return text[: segment.start]
    layout = text[before[0].end : segment.start]
    spaced = _spaced(before[1], translation) and not _spaced(before[0].text, segment.text)
    return layout or " " * spaced  # a script without spaces needs none


def without_mark(text: str) -> str:
    """A line without what marks it, such as a bullet."""
    return text[_end_of_mark(text, 0, len(text)) :]


def _blocks(text: str) -> list[Span]:
    """The cells of all lines, without the marks of lines; those of wrapped lines are one."""
    lines = [_line(text, *span) for span in _line_spans(text)]
    blocks: list[Span] = []
    for paragraph in _paragraphs(lines):
        wrapped = _wrapped(text, paragraph)
        for line, goes_on in zip(paragraph, wrapped, strict=True):
            first, *more = line.cells
            blocks += [(blocks.pop()[0], first[1]) if goes_on else first, *more]
    return blocks


def _line_spans(text: str) -> Iterator[Span]:
    """Each line, without white space at its end."""
    start = 0
    for end, following in [*(found.span() for found in _BREAK.finditer(text)), (len(text), 0)]:
        while end > start and text[end - 1].isspace():
            end -= 1
        yield start, end
        start = following


def _line(text: str, start: int, end: int) -> _Line:
    begin = _end_of_mark(text, start, end)
    cells, at = [], begin
    for column in _COLUMN.finditer(text, begin, end):
        if column.start() >= at:  # and not inside the mark of a cell
            cells.append((at, column.start()))
            at = _end_of_mark(text, column.end(), end)
    return _Line(start, end, not text[start:begin].strip(), (*cells, (at, end)))


def _end_of_mark(text: str, start: int, end: int) -> int:
    mark = _MARK.match(text, start, end)
    return start if mark is None else mark.end()


def _paragraphs(lines: Sequence[_Line]) -> Iterator[list[_Line]]:
    """Lines in a row that are not blank."""
    for blank, group in groupby(lines, lambda line: line.start == line.end):
        if not blank:
            yield list(group)


def _wrapped(text: str, paragraph: Sequence[_Line]) -> list[bool]:
    """Whether each line of a paragraph goes on with the one before: in none unless some line shows that it does."""
    width = max(line.end - line.start for line in paragraph)
    goes_on, shown = [False], False
    for before, line in pairwise(paragraph):
        begin, end = line.cells[0]
        plain = line.plain and len(line.cells) == len(before.cells) == 1 and width in _WIDTHS
        word = next((at for at in range(begin, end) if text[at].isspace()), end) - begin
        full = word <= _LONGEST_WORD and before.end - before.start + 1 + word > width
        lower = text[begin:end][:1].islower()
        goes_on.append(plain and (full or lower))
        shown |= plain and full and lower
    return goes_on if shown else [False] * len(paragraph)


def with_breaks(segment: Segment, translation: str) -> str:
    """The translation with the line breaks of the segment in it; after it where it has no white space for them."""
    made, at = "", 0
    for place, layout in segment.breaks:
        near = (place * len(translation) + len(segment.text) // 2) // len(segment.text)
        spaces = (each for each in range(at, len(translation)) if translation[each].isspace())
        space = min(spaces, key=lambda each: abs(each - near), default=len(translation))
        made += translation[at:space] + layout
        at = min(space + 1, len(translation))
    return made + translation[at:]


def _spaced(before: str, after: str) -> bool:
    """Whether there must be white space between two texts."""
    last = before.rstrip(CLOSING)[-1:]
    if last and last in _SPACED_ENDS:
        return True
    return all(each.isalnum() and each < _FIRST_UNSPACED for each in (before[-1:], after[:1]))
