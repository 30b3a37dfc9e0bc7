"""A corpus as ids: tokenised once and stored in flat arrays, so that memory grows with the tokens only."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils.data import Dataset
from txport.runtime.bundle.schema import SpecialTokens
from txport.runtime.errors import InputError
from txport.runtime.text.tokenizer import Tokenizer
from txport.training.corpora import Pair
from txport.training.guidance.guided_attention import Guide
from txport.training.tokenizers import OURS, PAD

Ids = npt.NDArray[np.int32]
Lengths = npt.NDArray[np.int64]


class TrainingBatch(NamedTuple):
    """Padded pairs.

    Attributes:
        source_ids: int64 `[b, s]`, each row ends with eos, then padding.
        source_lengths: int64 `[b]`, eos included.
        target_ids: int64 `[b, t + 1]`, bos, what answers in the language begin with (often nothing), pieces, eos, then
            padding: the decoder reads all columns but the last and is to predict all but the first.
        guide: float32 `[b, t, s]`, what guided attention is compared with; None without it.
    """

    source_ids: Tensor
    source_lengths: Tensor
    target_ids: Tensor
    guide: Tensor | None = None


@dataclass(frozen=True)
class Ragged:
    """Rows of different lengths in one array: row i is `flat[starts[i] : starts[i + 1]]`."""

    flat: Ids
    starts: Lengths

    @classmethod
    def of(cls, rows: Iterable[Sequence[int]]) -> "Ragged":
        kept = [np.asarray(row, np.int32) for row in rows]
        starts = np.zeros(len(kept) + 1, np.int64)
        np.cumsum([len(row) for row in kept], out=starts[1:])
        return cls(np.concatenate(kept) if kept else np.zeros(0, np.int32), starts)

    @property
    def lengths(self) -> Lengths:
        """int64 `[rows]`."""
        return np.diff(self.starts)

    def row(self, number: int) -> Ids:
        return self.flat[self.starts[number] : self.starts[number + 1]]

    def padded(self, rows: Sequence[int], pad: int = PAD) -> Tensor:
        """int64 `[rows, longest]`, padded with `pad`."""
        parts = [self.row(row) for row in rows]
        result = np.full((len(parts), max(map(len, parts))), pad, np.int64)
        for number, part in enumerate(parts):
            result[number, : len(part)] = part
        return torch.from_numpy(result)


class Examples(Dataset[TrainingBatch]):
    """Tokenised pairs; indexed by a list of rows, which gives their `TrainingBatch`.

    Args:
        sources, targets: ids of each pair.
        pad: the id of padding.
        guide, points: of guided attention, and what it keeps of each pair; None without it.
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
        pairs: Sequence[Pair],
        tokenizer: Tokenizer,
        max_length: int,
        tokens: SpecialTokens = OURS,
        guide: Guide | None = None,
    ) -> "Examples":
        """Tokenise pairs, leaving out those with a side of more than `max_length` tokens (eos included).

        Raises:
            InputError: no pair is left.
        """
        sources = []
        targets = []
        points = []
        for source, target in pairs:
            ids, around = tokenizer.encode_source(source)
            source_ids, target_ids = around.wrap(ids), [*around.target_prefix, *tokenizer.encode_prefix(target)]
            if len(source_ids) <= max_length and len(target_ids) < max_length:
                sources.append(source_ids)
                targets.append([tokens.bos, *target_ids, tokens.eos])
                if guide is not None:
                    first = len(around.source_prefix)
                    texts = range(first, first + len(ids)), range(len(around.target_prefix), len(target_ids))
                    points.append(guide.points((source, target), *texts))
        if not sources:
            raise InputError(f"no pair has at most {max_length} tokens on each side: raise training.max_length")
        return cls(Ragged.of(sources), Ragged.of(targets), tokens.pad, guide, Ragged.of(points))

    def __len__(self) -> int:
        return len(self.sources.starts) - 1

    def __getitem__(self, rows: Sequence[int]) -> TrainingBatch:
        lengths = torch.from_numpy(self.sources.lengths[np.asarray(rows)])
        sources, targets = self.sources.padded(rows, self._pad), self.targets.padded(rows, self._pad)
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
        """int64 `[pairs]`: tokens on the longer side, as the model sees them (the target without its last)."""
        return np.maximum(self.sources.lengths, self.targets.lengths - 1)
