"""Which sentences a verification takes, in which order and how many, so that it ends when it should."""

import time
from collections.abc import Iterator, Sequence

# Sentences between two looks at the clock: as many as keep the rows of the runtime's loop full for a while.
PORTION = 256
# What `budget` gives where a user says nothing.
MINUTES = 5.0
SENTENCES = 1000
# Sentences that are also run alone: they take as long as a few hundred in batches.
SINGLES = 10


def budget(sentences: int | None, minutes: float | None) -> tuple[int, float | None]:
    """The most sentences and the most minutes (None: any number) of what a user asked for.

    A number of sentences without minutes is honoured whatever it takes; otherwise `MINUTES` hold, and `SENTENCES`.
    """
    if minutes is None and sentences is None:
        minutes = MINUTES
    return sentences or SENTENCES, minutes


def spread(lengths: Sequence[int]) -> list[int]:
    """All indices, in an order of which every beginning has short and long sentences as the whole has.

    By length, ranks are taken in the order of their reversed bits (van der Corput 1935): the middle, the quarters, the
    eighths.
    """
    by_length = sorted(range(len(lengths)), key=lambda index: lengths[index])
    bits = max(1, (len(lengths) - 1).bit_length())
    ranks = (int(f"{number:0{bits}b}"[::-1], 2) for number in range(1 << bits))
    return [by_length[rank] for rank in ranks if rank < len(by_length)]


class Portions:
    """Parts of some sentences, as many as fit into a time, by the speed of the part before.

    Args:
        order: the sentences; what does not fit is left out at the end.
        minutes: from now; None for any time.
    """

    def __init__(self, order: Sequence[int], minutes: float | None) -> None:
        self._order, self._taken = order, 0
        self._until = None if minutes is None else time.monotonic() + 60 * minutes

    def first(self, count: int) -> list[int]:
        """The first part, which is taken whatever the time."""
        self._taken = min(count, len(self._order))
        return list(self._order[: self._taken])

    def rest(self, seconds: float) -> Iterator[tuple[list[int], int]]:
        """Further parts, each with the number of sentences that will be taken in the end as far as is known.

        Args:
            seconds: that the first part took. Later ones are timed between two `next`.
        """
        each = seconds / max(1, self._taken)
        while room := self._room(each):
            part = list(self._order[self._taken : self._taken + min(room, PORTION)])
            self._taken += len(part)
            started = time.monotonic()
            yield part, self._taken + room - len(part)
            each = (time.monotonic() - started) / len(part)

    def _room(self, each: float) -> int:
        """How many more sentences fit if each takes so many seconds."""
        left = len(self._order) - self._taken
        if self._until is None:
            return left
        return max(0, min(left, int((self._until - time.monotonic()) / max(each, 1e-9))))
