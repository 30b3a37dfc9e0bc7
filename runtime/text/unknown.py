"""Shortening of long runs of unknown characters, for which SentencePiece needs quadratic time.

SentencePiece converts such a run to one unknown piece, so the middle of the run does not change the result. If the
normalised text of a run is needed, it is computed in blocks.
"""

import re
from bisect import bisect_left
from collections.abc import Callable, Iterator
from itertools import accumulate

from txport.runtime.text.alignment import Span

# Minimum number of characters without white space that are examined, and size of the pieces that are examined at once.
MIN_RUN = 2_048
CHUNK = 512
OVERLAP = 64
_RUN = re.compile(rf"\S{{{MIN_RUN},}}")
# A removed part of a text: its position in the shortened text, and the number of removed characters.
Gap = tuple[int, int]


def shorten_runs(text: str, is_unknown: Callable[[str], bool]) -> tuple[str, list[Gap]]:
    """Remove the middle of long runs of unknown characters.

    Args:
        text: one line.
        is_unknown: returns whether the model converts a text to a single unknown piece.

    Returns:
        the shortened text, which has the same ids, and the gaps.
    """
    if len(text) < MIN_RUN:
        return text, []
    parts = list[str]()
    gaps = list[Gap]()
    done = 0
    size = 0
    for start, end in (cut for run in _RUN.finditer(text) for cut in _cuts(text, run.start(), run.end(), is_unknown)):
        parts.append(text[done:start])
        size += start - done
        gaps.append((size, end - start))
        done = end
    return "".join([*parts, text[done:]]), gaps


def _cuts(text: str, first: int, last: int, is_unknown: Callable[[str], bool]) -> list[Span]:
    """Return the parts of a run to remove. Examined pieces overlap, since neighbours may be normalised together."""
    cuts: list[Span] = []
    begin: int | None = None  # start of the first of the adjacent unknown pieces
    for start in range(first, last - OVERLAP, CHUNK - OVERLAP):
        if not is_unknown(text[start : min(start + CHUNK, last)]):
            begin = None
        elif begin is None:
            begin = start
        elif start > begin + CHUNK:
            if cuts and cuts[-1][0] == begin + CHUNK:
                cuts.pop()
            cuts.append((begin + CHUNK, start))
    return cuts


def restore_spans(spans: list[Span], gaps: list[Gap]) -> list[Span]:
    """Convert spans of a shortened text to spans of the whole text."""
    if not gaps:
        return spans

    positions, sizes = [position for position, _ in gaps], [0, *accumulate(size for _, size in gaps)]
    return [
        (begin + sizes[bisect_left(positions, begin + 1)], end + sizes[bisect_left(positions, end)])
        for begin, end in spans
    ]


def blocks(text: str, normalise: Callable[[str], str]) -> Iterator[Span]:
    """Split long runs at positions where both sides can be normalised separately with the same result.

    Args:
        text: one line.
        normalise: returns the normalised text of a short text.
    """
    start = 0
    for run in _RUN.finditer(text) if len(text) >= MIN_RUN else ():
        end = run.start() + CHUNK
        while end + OVERLAP <= run.end():
            left, right = text[end - OVERLAP : end], text[end : end + OVERLAP]
            if normalise(left + right) == normalise(left) + normalise(right):
                yield start, end
                start, end = end, end + CHUNK
            else:
                end += 1
    yield start, len(text)
