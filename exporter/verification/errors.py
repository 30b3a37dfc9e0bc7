"""Errors of arrays and logits, accumulated over batches."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from txport.exporter.reference import MIN_COMPARED_LOGIT, Logits

# An id with a logit this far below the best has probability 0 in float32. Logits of banned ids are large negative
# numbers, whose rounding errors are large as well.
IMPOSSIBLE = -math.log(np.finfo(np.float32).smallest_subnormal)


class Errors:
    """Maximum and mean absolute difference of all added arrays, and whether all values were finite."""

    def __init__(self) -> None:
        self.largest = 0.0
        self.finite = True
        self._total = 0.0
        self._count = 0

    def add(self, ours: Logits, expected: Logits) -> Any:
        """Compare arrays of equal shape. If `expected` is below `MIN_COMPARED_LOGIT`, any finite number is correct."""
        difference = np.abs(ours - expected)
        total = float(difference.sum(dtype=np.float64))
        if not math.isfinite(total):
            self.finite = False
            return
        if float(expected.min(initial=0.0)) <= MIN_COMPARED_LOGIT:
            difference = difference[expected > MIN_COMPARED_LOGIT]
            total = float(difference.sum(dtype=np.float64))
        self.largest = max(self.largest, float(difference.max(initial=0.0)))
        self._total += total
        self._count += difference.size

    @property
    def mean(self) -> float:
        return self._total / max(1, self._count)


@dataclass(frozen=True)
class ErrorSizes:
    """Sizes of errors of logits.

    An error that all logits of a position have in common does not change the chosen token, so it is subtracted.

    Attributes:
        rms: root mean square over all positions and ids.
        token: root mean square over all positions for one id; maximum over ids.
        lead: error of the difference between PyTorch's two best ids at a position; maximum over positions.
    """

    rms: float
    token: float
    lead: float


class LogitErrors(Errors):
    """Errors of logits, by position."""

    def __init__(self) -> None:
        super().__init__()
        self._positions = 0
        self._lead = 0.0
        self._tokens: npt.NDArray[np.float64] | None = None  # sums of squares, [v]

    def add(self, ours: Logits, expected: Logits) -> npt.NDArray[np.float64]:
        """Compare logits `[n, v]` of n positions, and return the size of each position's error, `[n]`."""
        super().add(ours, expected)
        if not self.finite or not len(ours):
            return np.zeros(len(ours))
        errors, ids = centred_errors(ours, expected)
        squares = np.square(errors)
        sizes: npt.NDArray[np.float64] = np.sqrt(squares.sum(axis=-1) / ids)
        self._tokens = squares.sum(axis=0) + (0.0 if self._tokens is None else self._tokens)
        self._positions += len(ours)
        if expected.shape[-1] > 1:
            best = np.argpartition(expected, -2, axis=-1)[:, -2:]
            pairs = np.take_along_axis(errors, best, axis=-1)
            self._lead = max(self._lead, float(np.abs(pairs[:, 1] - pairs[:, 0]).max()))
        return sizes

    @property
    def sizes(self) -> ErrorSizes:
        """Sizes of all added errors that are finite."""
        if self._tokens is None:
            tokens = np.zeros(1)
        else:
            tokens = self._tokens / max(1, self._positions)
        rms = math.sqrt(float(tokens.mean()))
        token = math.sqrt(float(tokens.max()))
        return ErrorSizes(rms, token, self._lead)


def centred_errors(ours: Logits, expected: Logits) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
    """Return errors `[n, v]` of logits less their mean at each position, and the number `[n]` of ids in this mean.

    Impossible ids (`IMPOSSIBLE`) are not counted. Their errors are 0.
    """
    is_counted = expected > expected.max(axis=-1, keepdims=True) - IMPOSSIBLE
    errors = np.where(is_counted, ours - expected, 0.0).astype(np.float64)
    ids = np.maximum(is_counted.sum(axis=-1), 1)
    errors -= np.where(is_counted, errors.sum(axis=-1, keepdims=True) / ids[:, None], 0.0)
    return errors, ids
