"""Long runs of characters that are unknown to a SentencePiece model, which needs quadratic time for them.

It makes one unknown piece of such a run, however long, so the middle of the run changes nothing. Where the normalised
text of a run is needed, it is computed in blocks.
"""

import re
from bisect import bisect_left
from collections.abc import Callable, Iterator
from itertools import accumulate

from txport.runtime.text.alignment import Span

# Characters without white space that are looked through, and of the pieces in which that is done.
MIN_RUN = 2_048
CHUNK = 512
OVERLAP = 64
_RUN = re.compile(rf"\S{{{MIN_RUN},}}")
# Where something was left out of a text, in the text that is left, and how many characters.
Gap = tuple[int, int]


def shortened(text: str, is_unknown: Callable[[str], bool]) -> tuple[str, list[Gap]]:
    """Leave out the middle of long runs of unknown characters.

    Args:
        text: one line.
        is_unknown: whether the model makes nothing but one unknown piece of some characters.

    Returns:
        the shortened text, which has the same ids, and the removed text.
    """
    if len(text) < MIN_RUN:
        return text, []
    left = list[str]()
    gaps = list[Gap]()
    done = 0
    size = 0
    for start, end in (cut for run in _RUN.finditer(text) for cut in _cuts(text, run.start(), run.end(), is_unknown)):
        left.append(text[done:start])
        size += start - done
        gaps.append((size, end - start))
        done = end
    return "".join([*left, text[done:]]), gaps


def _cuts(text: str, first: int, last: int, is_unknown: Callable[[str], bool]) -> list[Span]:
    """Parts of a run to leave out: pieces overlap, since neighbours may be normalised together."""
    cuts: list[Span] = []
    begin: int | None = None  # of the unknown piece before which the rest is left
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


def located(spans: list[Span], gaps: list[Gap]) -> list[Span]:
    """Spans of the text that `shortened` left as those of the whole text."""
    if not gaps:
        return spans

    places, sizes = [place for place, _ in gaps], [0, *accumulate(size for _, size in gaps)]
    return [
        (begin + sizes[bisect_left(places, begin + 1)], end + sizes[bisect_left(places, end)]) for begin, end in spans
    ]


def blocks(text: str, normalise: Callable[[str], str]) -> Iterator[Span]:
    """Cut long runs where the normalised text of both sides together is that of each.

    Args:
        text: one line.
        normalise: the normalised text of a short text.
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
