"""Pairs in shards: JSONL or Parquet files of tx-translate-corpus or tx-distill, read again in each epoch.

No text stays in memory, so that a corpus may be larger than it.
"""

import itertools
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

from txport.runtime.corpus.sources import read_pairs
from txport.runtime.errors import InputError

Pair = tuple[str, str]


class Shards(Collection[Pair]):
    """Pairs of some files, in order. Rows with an invalid or empty side are skipped.

    Args:
        files: paths and URLs.
        columns: names of source and target.
        first: the most pairs to take; None for all.

    Raises:
        InputError: a file cannot be read, or has not these columns.
    """

    def __init__(self, files: Sequence[str], columns: tuple[str, str], first: int | None = None) -> None:
        self._files = files
        self._columns = columns
        self._first = first
        self._held_out: frozenset[str] = frozenset()
        self._change_target: Callable[[str], str] | None = None
        self._count = sum(1 for _ in self)

    def __len__(self) -> int:
        return self._count

    def __contains__(self, pair: object) -> bool:
        return any(pair == each for each in self)

    def __iter__(self) -> Iterator[Pair]:
        for source, target in itertools.islice(self._all(), self._first):
            if source not in self._held_out:
                yield source, target if self._change_target is None else self._change_target(target)

    def without(self, sources: frozenset[str], count: int) -> "Shards":
        """Return the pairs with other sources; `count` are left out."""
        others = self._copy()
        others._held_out = self._held_out | sources
        others._count = self._count - count
        return others

    def with_targets(self, change: Callable[[str], str]) -> "Shards":
        """Return the pairs with targets that are changed when they are read."""
        changed = self._copy()
        changed._change_target = change
        return changed

    def _copy(self) -> "Shards":
        copy = Shards.__new__(Shards)
        copy.__dict__.update(self.__dict__)
        return copy

    def _all(self) -> Iterator[Pair]:
        for file in self._files:
            for window in read_pairs(file, *self._columns):
                for source, target in window:
                    pair = _line(source), _line(target)
                    if pair[0] and pair[1]:
                        yield pair


def _line(value: Any) -> str:
    """A text without line breaks, which would be two lines in the files that are made of it; "" for what is none."""
    if type(value) is str:
        return " ".join(value.split())
    return ""


def check_some(pairs: Collection[Pair], what: str) -> None:
    """Refuse shards without a pair."""
    if not pairs:
        raise InputError(f"{what} hold no pair of sentences: at least one row with text on both sides is needed")
