"""Sentence pairs in JSONL or Parquet files of tx-translate-corpus or tx-distill, read again in each epoch.

No text stays in memory, so a corpus may be larger than the memory.
"""

import itertools
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

from txport.runtime.corpus.sources import read_pairs
from txport.runtime.errors import InputError

Pair = tuple[str, str]


class Shards(Collection[Pair]):
    """Sentence pairs of files, in order. Rows with an invalid or empty side are skipped.

    Args:
        files: paths and URLs.
        columns: names of source and target.
        first: maximum number of pairs; None for all.

    Raises:
        InputError: a file cannot be read, or lacks a column.
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
        """Return the pairs without these sources, of which there are `count` pairs."""
        remaining = self._copy()
        remaining._held_out = self._held_out | sources
        remaining._count = self._count - count
        return remaining

    def with_targets(self, change: Callable[[str], str]) -> "Shards":
        """Return the pairs with a function that changes each target when it is read."""
        replaced = self._copy()
        replaced._change_target = change
        return replaced

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
    """Return the text without line breaks, so that it stays one line in files; "" for a value that is not text."""
    if type(value) is str:
        return " ".join(value.split())
    return ""


def check_some(pairs: Collection[Pair], what: str) -> None:
    """Refuse shards without a pair."""
    if not pairs:
        raise InputError(f"{what} hold no pair of sentences: at least one row with text on both sides is needed")
