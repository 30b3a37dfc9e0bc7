"""Parts of a sentence that is longer than a model takes, as pieces of their own.

It is cut after punctuation that ends a clause, if there is some in the second half of what fits; else at white space;
else between tokens. One specification in Python and in C++ (`cpp/src/documents/cuts.cpp`).
"""

from collections.abc import Callable, Iterator

from txport.runtime.documents.layout import Piece, piece_of

# Ends of a clause before white space, and those that need none.
_WEAK = ",;:)–—"
_STRONG = "，、；：،"


def cut(text: str, piece: Piece, fitting: Callable[[str], int]) -> Iterator[Piece]:
    """Cut a piece into parts that fit.

    Args:
        text: the document.
        piece: of it.
        fitting: how many characters at the beginning of a text the model takes: perhaps all of them.

    Yields:
        the parts in order, all of them marked as cut; what is between them is white space.
    """
    start = piece.start
    while (rest := piece_of(text, start, piece.end, cut=True)).text:
        part = rest
        while (most := max(1, fitting(part.text))) < len(part.text):
            part = _beginning(text, part, _place(part.text, most))
        yield part
        start = part.end
        while start < piece.end and text[start].isspace():
            start += 1


def _beginning(text: str, piece: Piece, place: int) -> Piece:
    """The piece before a place in its text."""
    end = piece.start + place + sum(len(layout) - 1 for at, layout in piece.breaks if at < place)
    while text[end - 1].isspace():
        end -= 1
    return piece_of(text, piece.start, end, cut=True)


def _place(text: str, most: int) -> int:
    """The place of a cut: at most after so many characters, and after one at least."""
    for place in range(most, most // 2, -1):
        before = text[place - 1]
        if before in _STRONG or (before in _WEAK and text[place].isspace()):
            return place
    return next((place for place in range(most, 0, -1) if text[place].isspace()), most)
