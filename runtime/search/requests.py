"""Requests and results of a search."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from txport.runtime.bundle.schema import Limits
from txport.runtime.errors import InputError


@dataclass(frozen=True)
class Request:
    """One sentence to translate.

    Attributes:
        source_ids: the encoder's input, eos included; 1 to `Limits.source` ids.
        max_length: the most tokens to make, eos included; at most `Limits.target`, which is also the meaning of None.
        min_length: tokens that must be made before eos may be.
        prefix: target ids that the answer must begin with.
        scores: whether to compute `Result.scores`.
    """

    source_ids: Sequence[int]
    max_length: int | None = None
    min_length: int = 0
    prefix: Sequence[int] = ()
    scores: bool = False

    def check(self, limits: Limits) -> None:
        """Raise `InputError` if the source is empty or longer than the engine takes, or a length is not positive."""
        count = len(self.source_ids)
        if not 1 <= count <= limits.source:
            raise InputError(f"a source of {count} tokens does not fit: give 1 to {limits.source} tokens, eos included")
        if self.max_length is not None and self.max_length < 1:
            raise InputError(f"a maximum length of {self.max_length} makes nothing: give 1 or more")

    def limit(self, limits: Limits) -> int:
        """The most tokens that this engine makes for it, eos included."""
        return limits.target if self.max_length is None else min(self.max_length, limits.target)


@dataclass(frozen=True)
class Result:
    """The answer to a request.

    Attributes:
        index: which request, in the order of submission, counted from 0.
        ids: target ids, prefix included, without bos; ends with eos unless the maximum length came first.
        scores: the natural logarithm of each id's probability, or None.
    """

    index: int
    ids: list[int]
    scores: list[float] | None


@dataclass(frozen=True)
class Token:
    """One step of a stream: the id that was made, its log-probability or None, and whether it is the last."""

    id: int
    score: float | None
    last: bool


@dataclass
class Slot:
    """A request that a row is working on.

    Attributes:
        index: which request.
        request: the request.
        limit: the most tokens of its answer.
        ids: the tokens of its answer so far.
        scores: the score of each, if the request asks for them.
        done: whether the answer has ended.
    """

    index: int
    request: Request
    limit: int
    ids: list[int] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)
    done: bool = False

    def __post_init__(self) -> None:
        self.constraints = max(len(self.request.prefix), self.request.min_length)  # tokens that may have constraints

    def extend(self, token_ids: Sequence[int], eos: int) -> None:
        """Append tokens as far as the end of the answer."""
        for token in token_ids:
            self.ids.append(token)
            if token == eos or len(self.ids) >= self.limit:
                self.done = True
                return

    def result(self) -> Result:
        """The answer so far."""
        return Result(self.index, self.ids, self.scores if self.request.scores else None)
