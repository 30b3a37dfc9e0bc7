"""Split sentences that are too long for the model into several segments.

They are split after punctuation that ends a clause, if there is some in the second half of the text that fits.
Otherwise they are split at white space, or else between tokens. C++ has the same rules (`cpp/src/documents/cuts.cpp`).
"""

from collections.abc import Callable, Iterator

from txport.runtime.documents.layout import Segment, segment_of

# Ends of a clause that need white space after them, and ends that do not.
_WEAK = ",;:)–—"
_STRONG = "，、；：،"


def split_long_sentence(
    text: str, segment: Segment, fitting_length: Callable[[str], int], maximum: int
) -> Iterator[Segment]:
    """Split a segment into parts that fit the model.

    Args:
        text: the document.
        segment: of it.
        fitting_length: how many characters at the beginning of a text the model takes: perhaps all of them.
        maximum: characters that are looked at for a part, which has no more.

    Yields:
        the parts in order, marked as cut, with only white space between them.
    """
    start = segment.start
    while start < segment.end:
        part = segment_of(text, start, _without_space(text, min(segment.end, start + maximum)), cut=True)
        while (count := max(1, fitting_length(part.text))) < len(part.text):
            part = _beginning(text, part, _cut_position(part.text, count))
        yield part
        start = part.end
        while start < segment.end and text[start].isspace():
            start += 1


def _beginning(text: str, segment: Segment, cut: int) -> Segment:
    """Return the segment before a place in its text."""
    end = segment.start + cut + sum(len(layout) - 1 for position, layout in segment.breaks if position < cut)
    return segment_of(text, segment.start, _without_space(text, end), cut=True)


def _without_space(text: str, end: int) -> int:
    while text[end - 1].isspace():
        end -= 1
    return end


def _cut_position(text: str, maximum: int) -> int:
    """Return the position of a cut, from 1 to this number of characters."""
    for position in range(maximum, maximum // 2, -1):
        before = text[position - 1]
        if before in _STRONG or (before in _WEAK and text[position].isspace()):
            return position
    return next((position for position in range(maximum, 0, -1) if text[position].isspace()), maximum)
