"""Corpus as ids, tokenised once and stored in flat arrays: in memory, or on disk for a corpus in shards."""

from array import array
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils.data import Dataset
from txport.runtime.bundle.schema import SpecialTokens
from txport.runtime.errors import InputError
from txport.runtime.features import Vectors
from txport.runtime.text.tokenizer import Tokenizer
from txport.training.corpora import Pair
from txport.training.guidance.guided_attention import Guide
from txport.training.spoken.recordings import Recording
from txport.training.tokenizers import OURS, PAD

Ids = npt.NDArray[np.int32]
Lengths = npt.NDArray[np.int64]


class TrainingBatch(NamedTuple):
    """Padded pairs.

    Attributes:
        source_ids: int64 `[b, s]`, each row ends with eos, then padding; or float32 vectors `[b, s, f]`.
        source_lengths: int64 `[b]`, including eos.
        target_ids: int64 `[b, t + 1]`: bos, forced prefix (often empty), pieces, eos, then padding. The decoder's input
            is all columns except the last, its labels are all columns except the first.
        guide: float32 `[b, t, s]`, targets of guided attention; None without it.
    """

    source_ids: Tensor
    source_lengths: Tensor
    target_ids: Tensor
    guide: Tensor | None = None


@dataclass(frozen=True)
class Ragged:
    """Rows of different lengths in one array of ids or vectors: row i is `flat[starts[i] : starts[i + 1]]`."""

    flat: Ids | Vectors
    starts: Lengths

    @classmethod
    def of(cls, rows: Iterable[Sequence[int]]) -> "Ragged":
        growing = Growing()
        for row in rows:
            growing.add(row)
        return growing.ragged()

    @classmethod
    def of_vectors(cls, rows: Sequence[Vectors]) -> "Ragged":
        starts = np.cumsum([0, *map(len, rows)], dtype=np.int64)
        return cls(np.concatenate(list(rows)), starts)

    @property
    def lengths(self) -> Lengths:
        """Lengths of the rows, int64 `[rows]`."""
        return np.diff(self.starts)

    def row(self, number: int) -> npt.NDArray[Any]:
        return self.flat[self.starts[number] : self.starts[number + 1]]

    def padded(self, rows: Sequence[int], pad: int = PAD) -> Tensor:
        """Return int64 `[rows, longest]`, padded with `pad`, or vectors, float32 `[rows, longest, size]`, with 0."""
        parts = [self.row(row) for row in rows]
        longest = max(map(len, parts))
        result: npt.NDArray[Any]
        if self.flat.ndim == 2:
            result = np.zeros((len(parts), longest, self.flat.shape[1]), np.float32)
        else:
            result = np.full((len(parts), longest), pad, np.int64)
        for number, part in enumerate(parts):
            result[number, : len(part)] = part
        return torch.from_numpy(result)


class Growing:
    """Builder of `Ragged`, row by row.

    Args:
        folder: directory of a temporary file for the ids, which is removed with the process; None for memory.
    """

    _MAX_IDS = 1 << 18  # maximum number of ids in memory if there is a file

    def __init__(self, folder: Path | None = None) -> None:
        self._file: IO[bytes] | None = None if folder is None else TemporaryFile(dir=folder)
        self._ids = array("i")
        self._starts = array("q", [0])
        self._count = 0

    def add(self, row: Sequence[int]) -> None:
        """Add a row."""
        self._ids.extend(row)
        self._count += len(row)
        self._starts.append(self._count)
        if self._file is not None and len(self._ids) >= self._MAX_IDS:
            self._write(self._file)

    def ragged(self) -> Ragged:
        """Return all rows. Rows in a file are mapped: the system keeps pages in memory while there is room."""
        starts = np.frombuffer(self._starts, np.int64)
        if self._file is None or not self._count:
            return Ragged(np.frombuffer(self._ids, np.int32) if self._ids else np.zeros(0, np.int32), starts)
        self._write(self._file)
        self._file.flush()
        return Ragged(np.memmap(self._file, np.int32, "r"), starts)

    def _write(self, file: IO[bytes]) -> None:
        file.write(self._ids.tobytes())
        self._ids = array("i")


class Examples(Dataset[TrainingBatch]):
    """Tokenised pairs. Indexing by a list of rows returns a `TrainingBatch`.

    Args:
        sources, targets: ids of each pair.
        pad: id of padding.
        guide, points: guided attention, and its stored numbers for each pair; None without it.
    """

    def __init__(
        self,
        sources: Ragged,
        targets: Ragged,
        pad: int = PAD,
        guide: Guide | None = None,
        points: Ragged | None = None,
    ) -> None:
        self.sources = sources
        self.targets = targets
        self._pad = pad
        self._guide, self.points = guide, points or Ragged.of(())

    @classmethod
    def of(
        cls,
        pairs: Collection[Pair],
        tokenizer: Tokenizer,
        max_length: int,
        tokens: SpecialTokens = OURS,
        guide: Guide | None = None,
        folder: Path | None = None,
    ) -> "Examples":
        """Tokenise pairs. Pairs with more than `max_length` tokens (including eos) on one side are left out.

        Args:
            pairs: may be larger than memory.
            tokenizer, max_length, tokens, guide: for converting pairs to ids.
            folder: see `Growing`.

        Raises:
            InputError: no pair is left.
        """
        sources, targets, points = (Growing(folder) for _ in range(3))
        recordings: list[Vectors] = []
        count = 0
        for source, target in pairs:
            if isinstance(source, Recording):
                text_affixes = tokenizer.affixes()
                ids: list[int] = []
                source_ids: Sequence[int] | Vectors = source.vectors
            else:
                ids, text_affixes = tokenizer.encode_source(source)
                source_ids = text_affixes.wrap(ids)
            target_ids = [*text_affixes.target_prefix, *tokenizer.encode_prefix(target)]
            if len(source_ids) <= max_length and len(target_ids) < max_length:
                count += 1
                if isinstance(source, Recording):
                    recordings.append(source.vectors)
                else:
                    sources.add(list(source_ids))
                targets.add([tokens.bos, *target_ids, tokens.eos])
                if guide is not None:
                    first = len(text_affixes.source_prefix)
                    texts = range(first, first + len(ids)), range(len(text_affixes.target_prefix), len(target_ids))
                    points.add(guide.points((source, target), *texts))
        recorded = Ragged.of_vectors(recordings) if recordings else None
        if not count:
            raise InputError(f"no pair has at most {max_length} tokens on each side: raise training.max_length")
        return cls(recorded or sources.ragged(), targets.ragged(), tokens.pad, guide, points.ragged())

    def __len__(self) -> int:
        return len(self.sources.starts) - 1

    def __getitem__(self, rows: Sequence[int]) -> TrainingBatch:
        lengths = torch.from_numpy(self.sources.lengths[np.asarray(rows)])
        sources = self.sources.padded(rows, self._pad)
        targets = self.targets.padded(rows, self._pad)
        return TrainingBatch(sources, lengths, targets, self._guides(rows, targets.shape[1] - 1, sources.shape[1]))

    def _guides(self, rows: Sequence[int], steps: int, columns: int) -> Tensor | None:
        if self._guide is None:
            return None
        matrices = np.zeros((len(rows), steps, columns), np.float32)
        for matrix, row in zip(matrices, rows, strict=True):
            self._guide.fill(matrix, self.points.row(row))
        return torch.from_numpy(matrices)

    @property
    def lengths(self) -> Lengths:
        """Length of the longer side, int64 `[pairs]`. The last token of a target, not an input, is not counted."""
        return np.maximum(self.sources.lengths, self.targets.lengths - 1)
