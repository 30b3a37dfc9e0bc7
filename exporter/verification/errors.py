"""Errors of arrays and of logits, accumulated batch by batch."""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from txport.exporter.reference import MIN_COMPARED_LOGIT, Logits

# An id whose logit is so far below the best has no probability in float32. What bans it is large, and its rounding too.
IMPOSSIBLE = -math.log(np.finfo(np.float32).smallest_subnormal)


class Errors:
    """The largest and the mean absolute difference of all arrays that were added, and whether all were finite."""

    def __init__(self) -> None:
        self.largest = 0.0
        self.finite = True
        self._total = 0.0
        self._count = 0

    def add(self, ours: Logits, expected: Logits) -> None:
        """Compare two arrays of one shape; where `expected` is below `MIN_COMPARED_LOGIT` any finite number will do."""
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
    """Sizes of the errors of logits. What is added to all logits of a position changes no choice, and is no error.

    Attributes:
        rms: root mean square over all positions and ids.
        position: that of the ids of one position, the largest.
        token: that of one id over all positions, the largest.
        lead: error of the difference between the two ids that PyTorch likes best at a position, the largest.
    """

    rms: float
    position: float
    token: float
    lead: float


class LogitErrors(Errors):
    """Errors of logits, position by position."""

    def __init__(self) -> None:
        super().__init__()
        self._positions = 0
        self._position = self._lead = 0.0
        self._tokens: npt.NDArray[np.float64] | None = None  # sums of squares, [v]

    def add(self, ours: Logits, expected: Logits) -> None:
        """Compare the logits `[n, v]` of n positions."""
        super().add(ours, expected)
        if not self.finite or not len(ours):
            return
        counted = expected > expected.max(axis=-1, keepdims=True) - IMPOSSIBLE
        errors = np.where(counted, ours - expected, 0.0).astype(np.float64)
        ids = np.maximum(counted.sum(axis=-1, keepdims=True), 1)
        errors -= np.where(counted, errors.sum(axis=-1, keepdims=True) / ids, 0.0)
        squares = np.square(errors)
        self._position = max(self._position, float((squares.sum(axis=-1) / ids[:, 0]).max()))
        self._tokens = squares.sum(axis=0) + (0.0 if self._tokens is None else self._tokens)
        self._positions += len(ours)
        if expected.shape[-1] > 1:
            best = np.argpartition(expected, -2, axis=-1)[:, -2:]
            pairs = np.take_along_axis(errors, best, axis=-1)
            self._lead = max(self._lead, float(np.abs(pairs[:, 1] - pairs[:, 0]).max()))

    @property
    def sizes(self) -> ErrorSizes:
        """Sizes of all errors that were added, and finite."""
        tokens = np.zeros(1) if self._tokens is None else self._tokens / max(1, self._positions)
        rms, token = math.sqrt(float(tokens.mean())), math.sqrt(float(tokens.max()))
        return ErrorSizes(rms, math.sqrt(self._position), token, self._lead)
