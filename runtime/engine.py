"""The protocol of engines: encode sentences, then step a fixed set of rows whose buffers the engine owns.

Search (`txport.runtime.search`) is written once over these protocols and does not depend on a library.
Engines do not depend on the search, except an engine with its own beam search (`engines/native_beams.py`).
Buffers may be anywhere: an engine on a GPU keeps them there, and only `read` lets the host wait for it.

Every method may raise `EngineError` (the library or the device failed) and `ResourceError` (memory is exhausted).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
from txport.runtime.bundle.schema import Limits, SpecialTokens
from txport.runtime.errors import InputError

Int64 = npt.NDArray[np.int64]
Bool = npt.NDArray[np.bool_]
Float32 = npt.NDArray[np.float32]
Float64 = npt.NDArray[np.float64]

# Smallest initial length of a batch's caches, in tokens: enough for most sentences.
FIRST_TARGET = 32

# A source: ids, or float32 `[n, feature_size]` vectors for a model that reads vectors.
Source = Sequence[int] | Float32
# Sources of a batch, padded: int64 `[batch, source]` ids, or float32 `[batch, source, feature_size]` vectors.
Sources = Int64 | Float32

# The result of `Engine.encode`, whose type is private to the engine.
Memory = Any


def padded(rows: Sequence[Source], pad: int) -> tuple[Sources, Int64]:
    """Return sources as one array, padded with `pad` or with zeros, and their lengths, int64 `[batch]`."""
    lengths = np.array([len(row) for row in rows], np.int64)
    sources: Sources
    if isinstance(first := rows[0], np.ndarray) and first.ndim == 2:
        sources = np.zeros((len(rows), int(lengths.max()), first.shape[1]), np.float32)
    else:
        sources = np.full((len(rows), int(lengths.max())), pad, np.int64)
    for number, row in enumerate(rows):
        sources[number, : len(row)] = row
    return sources, lengths


@dataclass(frozen=True)
class StepOutput:
    """Output of a group of steps, as the host reads it.

    Attributes:
        token_ids: int64 `[steps, rows]`, the tokens of each step; pad for rows that were finished before.
        finished: bool `[rows]`, whether each row is finished after the last of these steps.
    """

    token_ids: Int64
    finished: Bool


class Top(NamedTuple):
    """The best tokens of each row after a step; undefined for finished rows.

    Attributes:
        token_ids: int64 `[rows, k]`, sorted by descending logit; equal logits by ascending id.
        logits: float32 `[rows, k]`.
        normaliser: float64 `[rows]`, log-sum-exp of all logits of a row: a logit minus this is the natural logarithm of
            the token's probability.
    """

    token_ids: Int64
    logits: Float32
    normaliser: Float64


def check_vector_shape(sources: Sources, size: int) -> None:
    """Raise `InputError` unless these are vectors `[batch, source, size]`."""
    if sources.ndim != 3 or sources.shape[2] != size:
        raise InputError(f"vectors must be [batch, source, {size}], not {list(sources.shape)}")


class DecoderState(Protocol):
    """The buffers of one running batch: ids, positions, flags, caches and cross-attention keys and values.

    Rows are independent: each has its own position, so a finished row can be refilled while the others continue. A row
    in which no sentence was placed is finished and generates pad.

    A state whose library computes no scores inherits `log_probabilities` and `top`, which compute them from `logits`.
    """

    rows: int
    source: int  # width of the cross-attention buffers, in tokens
    target: int  # length of the self-attention caches, in tokens

    def place(
        self, rows: Sequence[int], memory: Memory, memory_rows: Sequence[int], target_limits: Sequence[int]
    ) -> None:
        """Start new sentences: row `rows[i]` gets encoder output `memory_rows[i]`, bos at position 0, not finished.

        A state that takes all rows of `memory` may take over its buffers, and overwrite them later.
        """

    def step(self, count: int = 1) -> None:
        """Advance every unfinished row by up to `count` tokens; may return before the device has finished.

        If `Engine.poll` is above 1, a group of steps may start before the previous group was read: the device computes
        it while the host waits for the previous one.
        """

    def read(self) -> StepOutput:
        """Wait for the first unread group of steps, and return its output."""

    def override(self, rows: Sequence[int], token_ids: Sequence[int], finished: Sequence[bool]) -> None:
        """Replace the last token of these rows (for a forced prefix or a suppressed eos) and their `finished` flag.

        Clearing the flag also advances the position of the row by one, which the step did not do. Setting it takes the
        last step back, so that the position of a finished row is never beyond the end of its cache.
        """

    def logits(self, rows: Sequence[int] | None = None) -> Float32:
        """Return the logits of these rows, or of all: float32 `[len(rows), target_vocabulary]`.

        They are those of the last step of this state, not of a state that it was resized from. The state must have been
        allocated with `logits=True`, or its engine must have `recomputes_logits`.
        """

    def log_probabilities(self, rows: Sequence[int], token_ids: Sequence[int]) -> Float64:
        """Return the natural logarithm of the probability of one token in each of these rows: float64 `[len(rows)]`."""
        return log_probabilities(self.logits(rows), token_ids)

    def top(self, k: int) -> Top:
        """Return the `k` best tokens of each row after the last step; `k` is at most the allocated `top`."""
        return top_of(self.logits(), k)

    def reorder(self, rows: Sequence[int]) -> None:
        """Rearrange the rows in place: row i becomes what row `rows[i]` was.

        `rows` may contain a row more than once; the copies are then independent. All steps must have been read;
        `logits` and `top` are undefined until the next step.

        Args:
            rows: one entry for each row of the state.
        """

    def resized(self, rows: Sequence[int], target: int) -> "DecoderState":
        """Return a new state of `len(rows)` rows: row i becomes what row `rows[i]` of this state was.

        `rows` may contain a row more than once; the copies are then independent. All steps must have been read. This
        state is invalid afterwards.

        Args:
            rows: 1 to `Limits.batch` entries; a row that is not among them is dropped.
            target: the length of the new caches: at least the number of tokens of each row, and more for a row that is
                not finished.
        """


@runtime_checkable
class RestrictingState(Protocol):
    """A state whose rows can be restricted to some tokens, as the states of an engine with `restricts`."""

    def restrict(self, rows: Sequence[int], words: Sequence[Int64]) -> None:
        """Restrict these newly placed rows to the tokens `words[i]`: int64, ascending ids.

        In all results of the state, other tokens have the logit -inf and probability 0. Copies of a row keep its
        restriction until the row is placed again. A row does not depend on the restrictions of other rows.
        """


def of_rows(logits: npt.NDArray[Any], rows: Sequence[int] | None) -> Float32:
    """Return the logits of some rows of `[all rows, vocabulary]`, or of all: float32 `[len(rows), vocabulary]`."""
    return (logits if rows is None else logits[list(rows)]).astype(np.float32, copy=False)


def log_sum_exp(logits: Float32 | Float64) -> tuple[float, float]:
    """Return the maximum of `[vocabulary]` logits, and log-sum-exp of the logits minus this maximum."""
    largest = float(logits.max())
    return largest, float(np.log(np.exp(logits.astype(np.float64) - largest).sum()))


def best_ids(logits: Float32 | Float64, k: int) -> Int64:
    """Return int64 `[k]` ids of the best of `[vocabulary]` logits, or all if fewer; equal ones by ascending id."""
    k = min(k, len(logits))
    # Candidates are all logits that equal the k-th, since NumPy may choose any of them.
    candidates = np.flatnonzero(logits >= np.partition(logits, -k)[-k])
    return candidates[np.argsort(-logits[candidates], kind="stable")[:k]]


def log_probabilities(logits: Float32, token_ids: Sequence[int]) -> Float64:
    """Return the log-probability of one token of each row: float32 logits `[rows, vocabulary]` -> float64 `[rows]`."""

    def of_row(row: Float32, token: int) -> float:  # row by row, so that float64 values stay in the cache
        largest, log_sum = log_sum_exp(row)
        return float(row[token]) - largest - log_sum

    return np.array([of_row(row, token) for row, token in zip(logits, token_ids, strict=True)], np.float64)


def top_of(logits: Float32, k: int) -> Top:
    """Return the `k` best tokens of each row of float32 `[rows, vocabulary]` logits."""
    token_ids = np.stack([best_ids(row, k) for row in logits])
    normaliser = np.array([sum(log_sum_exp(row)) for row in logits], np.float64)
    return Top(token_ids, np.take_along_axis(logits, token_ids, axis=1), normaliser)


class Engine(Protocol):
    """A bundle (or a model) loaded by one library on one device."""

    name: str
    limits: Limits
    tokens: SpecialTokens
    vocabulary: int  # number of logits of a row
    ragged: bool  # whether sources of different lengths run without padding
    recomputes_logits: bool  # whether logits of a state without stored logits can be read: they are computed again
    restricts: bool  # whether its states are `RestrictingState`s
    poll: int  # recommended maximum number of steps that have started and are not read; 1 if reading costs nothing

    def encode(self, input_ids: Sources, source_lengths: Int64) -> Memory:
        """Run the encoder on ids int64 `[batch, source]`, padded with pad, with lengths int64 `[batch]`.

        A model that reads vectors takes float32 `[batch, source, feature_size]` instead; padding is not read.
        """

    def first_target(self, source: int) -> int:
        """Return the initial cache length of a batch whose sources have up to `source` tokens.

        Caches are doubled when a row has filled them. Engines whose steps take longer with long caches return
        `FIRST_TARGET`.
        """

    def allocate(
        self, rows: int, source: int, target: int, *, logits: bool = False, top: int = 0, beams: int = 1
    ) -> DecoderState:
        """Allocate a state whose rows are all finished.

        Args:
            rows: number of rows.
            source: maximum source length.
            target: initial cache length.
            logits: whether `logits` will be read in most steps.
            top: maximum `k` of `top`; at most the vocabulary.
            beams: number of adjacent rows of each sentence. A sentence is placed in the first of them. They advance
                together, are reordered among themselves and are moved together. An engine may rely on this.
        """
