"""The protocol of engines: encode, then step a fixed set of rows whose buffers the engine owns.

Search (`txport.runtime.search`) is written once over these protocols and does not depend on a library.
Engines do not depend on the search.
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

# The shortest caches that a batch begins with, in tokens: enough for most sentences.
FIRST_TARGET = 32

# A source: ids, or float32 `[n, feature_size]` vectors of a model that reads vectors.
Source = Sequence[int] | Float32
# Those of a batch, padded: int64 `[batch, source]` ids, or float32 `[batch, source, feature_size]` vectors.
Sources = Int64 | Float32

# The result of `Engine.encode`, whose form is private to the engine.
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
        token_ids: int64 `[steps, rows]`, the tokens of each step; pad for rows that had finished.
        finished: bool `[rows]`, after the last of these steps.
    """

    token_ids: Int64
    finished: Bool


class Top(NamedTuple):
    """The best tokens of each row after a step; undefined for rows that had finished.

    Attributes:
        token_ids: int64 `[rows, k]`, by descending logit, equal ones by ascending id.
        logits: float32 `[rows, k]`.
        normaliser: float64 `[rows]`, the logarithm of the sum of the exponentials of all logits of a row: a logit less
            this is the natural logarithm of the token's probability.
    """

    token_ids: Int64
    logits: Float32
    normaliser: Float64


def check_vectors(sources: Sources, size: int) -> None:
    """Raise `InputError` unless these are vectors `[batch, source, size]`."""
    if sources.ndim != 3 or sources.shape[2] != size:
        raise InputError(f"vectors must be [batch, source, {size}], not {list(sources.shape)}")


class DecoderState(Protocol):
    """The buffers of one running batch: ids, positions, flags, caches and cross-attention keys and values.

    Rows are independent: each has its own position, so a finished row can be refilled while the others continue. A row
    that was never placed is finished and makes pad.

    States whose library computes no scores inherit from this: `log_probabilities` and `top` are then made of `logits`.
    """

    rows: int
    source: int  # width of the cross-attention buffers, in tokens
    target: int  # length of the self-attention caches, in tokens

    def place(
        self, rows: Sequence[int], memory: Memory, memory_rows: Sequence[int], target_limits: Sequence[int]
    ) -> None:
        """Start new sentences: row `rows[i]` gets encoder output `memory_rows[i]`, bos at position 0, not finished.

        A state that takes all rows of `memory` may keep its buffers as its own, and overwrite them later.
        """

    def step(self, count: int = 1) -> None:
        """Advance every unfinished row by up to `count` tokens; may return before the device is done.

        Where `Engine.poll` is more than 1, a group of steps may begin before the one before it was read: the device
        works on it while the host polls the other.
        """

    def read(self) -> StepOutput:
        """Wait for the first group of steps that was not read yet and return what it made."""

    def override(self, rows: Sequence[int], token_ids: Sequence[int], finished: Sequence[bool]) -> None:
        """Replace the last token that was made for these rows (forced prefix, suppressed eos) and their flag.

        Taking back a `finished` also advances the row's position by one, which the step had not done; finishing a row
        takes that step back, so that no finished row stands behind the end of its cache.
        """

    def logits(self, rows: Sequence[int] | None = None) -> Float32:
        """float32 `[len(rows), target_vocabulary]` of these rows, or of all.

        By the last step of this state, not of one that it was moved from. Only for a state that was allocated with
        `logits=True`, or of an engine that `recomputes_logits`.
        """

    def log_probabilities(self, rows: Sequence[int], token_ids: Sequence[int]) -> Float64:
        """float64 `[len(rows)]`: the natural logarithm of the probability of one token in each of these rows.

        By its logits.
        """
        return log_probabilities(self.logits(rows), token_ids)

    def top(self, k: int) -> Top:
        """Return the `k` best tokens of each row by the last step; only for a state that was allocated with as many."""
        return top_of(self.logits(), k)

    def reorder(self, rows: Sequence[int]) -> None:
        """Rearrange the rows in place: row i continues what row `rows[i]` was.

        A row may be named more than once; its copies are independent from then on. All steps must have been read;
        `logits` and `top` are undefined until the next one.

        Args:
            rows: as many as there are.
        """

    def resized(self, rows: Sequence[int], target: int) -> "DecoderState":
        """Return a new state of `len(rows)` rows in this order: row i continues what row `rows[i]` of this state was.

        A row may be named more than once; its copies are independent from then on. All steps must have been read. This
        state is invalid afterwards.

        Args:
            rows: any number, from 1 to `Limits.batch`; a row that is not named is dropped.
            target: the length of the new caches, at least the tokens that each of these rows has made, and more than
                those for a row that is not finished.
        """


@runtime_checkable
class RestrictingState(Protocol):
    """A state whose rows may choose among words of their own, as those of an engine that `restricts`."""

    def restrict(self, rows: Sequence[int], words: Sequence[Int64]) -> None:
        """Let these rows, which were just placed, choose among `words[i]` only: int64, ascending ids.

        All results of the state are over these words: others have the logit -inf and probability 0. Copies of a
        row have its words, until the row is placed again. What a row makes depends on no other row's words.
        """


def of_rows(logits: npt.NDArray[Any], rows: Sequence[int] | None) -> Float32:
    """float32 `[len(rows), vocabulary]` of these rows of `[all rows, vocabulary]`, or of all of them."""
    return (logits if rows is None else logits[list(rows)]).astype(np.float32, copy=False)


def log_sum_exp(logits: Float32 | Float64) -> tuple[float, float]:
    """The largest of `[vocabulary]` logits, and the logarithm of the sum of the exponentials of all less this."""
    largest = float(logits.max())
    return largest, float(np.log(np.exp(logits.astype(np.float64) - largest).sum()))


def best_ids(logits: Float32 | Float64, k: int) -> Int64:
    """int64 `[k]`, or fewer if there are: the best of `[vocabulary]` logits, equal ones by ascending id."""
    k = min(k, len(logits))
    # Candidates are all that equal the last one, since the library's choice among equals is open.
    candidates = np.flatnonzero(logits >= np.partition(logits, -k)[-k])
    return candidates[np.argsort(-logits[candidates], kind="stable")[:k]]


def log_probabilities(logits: Float32, token_ids: Sequence[int]) -> Float64:
    """float64 `[rows]`, of one token for each row of float32 `[rows, vocabulary]`: for engines that compute none."""

    def of_row(row: Float32, token: int) -> float:  # row by row, whose float64 values stay in the processor's cache
        largest, log_sum = log_sum_exp(row)
        return float(row[token]) - largest - log_sum

    return np.array([of_row(row, token) for row, token in zip(logits, token_ids, strict=True)], np.float64)


def top_of(logits: Float32, k: int) -> Top:
    """Return the `k` best of float32 `[rows, vocabulary]`: for engines whose library finds none."""
    token_ids = np.stack([best_ids(row, k) for row in logits])
    normaliser = np.array([sum(log_sum_exp(row)) for row in logits], np.float64)
    return Top(token_ids, np.take_along_axis(logits, token_ids, axis=1), normaliser)


class Engine(Protocol):
    """A bundle (or a model) loaded by one library on one device."""

    name: str
    limits: Limits
    tokens: SpecialTokens
    vocabulary: int  # logits of a row
    ragged: bool  # whether short sources beside long ones cost nothing: no padding is computed
    recomputes_logits: bool  # whether logits can be read of a state that stored none, at their price when they are
    restricts: bool  # whether its states are of `RestrictingState`
    poll: int  # maximum number of steps that the device may be ahead of the host; 1 if reading is free

    def encode(self, input_ids: Sources, source_lengths: Int64) -> Memory:
        """Run the encoder on int64 `[batch, source]` ids, padded with pad, of int64 `[batch]` lengths.

        A model that reads vectors takes float32 `[batch, source, feature_size]` instead; padding is not read.
        """

    def first_target(self, source: int) -> int:
        """Return the length of the first caches of a batch of sources of up to `source` tokens.

        They are doubled when a row has filled them. `FIRST_TARGET` where the time of a step grows with their length.
        """

    def allocate(
        self, rows: int, source: int, target: int, *, logits: bool = False, top: int = 0, beams: int = 1
    ) -> DecoderState:
        """Buffers for `rows` sentences of up to `source` tokens that make up to `target` tokens, all rows finished.

        Args:
            rows, source, target: sizes.
            logits: whether `logits` will be read in most steps.
            top: maximum number of tokens that `top` will give; at most the vocabulary.
            beams: this number of adjacent rows belongs to one sentence: they are placed by the first of them, make
                tokens together, are reordered among themselves and moved as a whole. An engine may make use of that.
        """
