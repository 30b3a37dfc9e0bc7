"""Long runs of characters that are unknown to a SentencePiece model, which needs quadratic time for them.

It makes one unknown piece of such a run, however long, so the middle of the run changes nothing.
"""

import re
from collections.abc import Callable

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

    def place(at: int, first: int) -> int:
        return at + sum(size for position, size in gaps if position < at + first)

    return [(place(begin, 1), place(end, 0)) for begin, end in spans]
