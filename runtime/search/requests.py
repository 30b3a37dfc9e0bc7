"""Requests and results of a search."""

from collections.abc import Container, Sequence
from dataclasses import dataclass, field

from txport.runtime.bundle.schema import Limits
from txport.runtime.engine import Int64, Source
from txport.runtime.errors import InputError
from txport.runtime.search.settings import GREEDY, NO_RULES, Search


@dataclass(frozen=True)
class Request:
    """One sentence to translate.

    Attributes:
        source_ids: input of the encoder, eos included: 1 to `Limits.source` ids, or feature vectors.
        max_length: maximum number of generated tokens, eos included, at most `Limits.target`; None for that maximum.
        min_length: minimum number of tokens before the answer may end.
        prefix: target ids that the answer must begin with.
        scores: whether to compute `Hypothesis.scores`.
        forced: number of ids of `prefix` that the model itself forces. They count in the length of a hypothesis; the
            rest of the prefix does not, as with Hugging Face's `forced_bos_token_id` and `decoder_input_ids`.
        key: number of the request for random sampling. The seed and the key determine the sample.
        search: settings of the search; the same for all requests of one scheduler.
        words: int64, ascending: the ids that the answer may contain; None if the search has no `shortlist`.
    """

    source_ids: Source
    max_length: int | None = None
    min_length: int = 0
    prefix: Sequence[int] = ()
    scores: bool = False
    forced: int = 0
    key: int = 0
    search: Search = GREEDY
    words: Int64 | None = field(default=None, compare=False)

    def check(self, limits: Limits) -> None:
        """Raise `InputError` if the source is empty or too long for the engine, or if a length is not positive."""
        count = len(self.source_ids)
        if not 1 <= count <= limits.source:
            raise InputError(
                f"a source of {count} tokens does not fit: give 1 to {limits.source} tokens, including eos"
            )
        if self.max_length is not None and self.max_length < 1:
            raise InputError(f"a maximum length of {self.max_length} allows no tokens: set 1 or more")

    @property
    def ruled(self) -> bool:
        """True if a rule may change scores after the prefix, so that the host must read each step."""
        return self.min_length > 0 or self.search.rules.change_scores

    def limit(self, limits: Limits) -> int:
        """Return the maximum number of tokens of its answer within the limits of an engine, eos included."""
        if self.max_length is None:
            return limits.target
        return min(self.max_length, limits.target)


@dataclass(frozen=True)
class Hypothesis:
    """One answer to a request.

    Attributes:
        ids: target ids with the prefix, without bos; they end with eos unless the maximum length came first.
        scores: the natural logarithm of each id's probability, or None. With beams, after all rules, and 0 for the ids
            of the prefix.
        score: the score of a beam search (`Search.length_penalty`); None for other searches.
    """

    ids: list[int]
    scores: list[float] | None
    score: float | None = None


@dataclass(frozen=True)
class Result:
    """The answers to a request.

    Attributes:
        index: index of the request in the order of submission, from 0.
        hypotheses: at most `Search.n_best`, the best first.
    """

    index: int
    hypotheses: list[Hypothesis]

    @property
    def ids(self) -> list[int]:
        """The ids of the best answer."""
        return self.hypotheses[0].ids

    @property
    def scores(self) -> list[float] | None:
        """The scores of the best answer."""
        return self.hypotheses[0].scores


@dataclass(frozen=True)
class Token:
    """One token of a stream: its id, its log-probability or None, and whether it is the last."""

    id: int
    score: float | None
    last: bool


@dataclass
class Slot:
    """A request that is being decoded. It has one row, or several in beam search and sampling.

    Attributes:
        index: index of the request.
        request: the request.
        limit: maximum number of tokens of its answer.
        length: number of tokens so far.
        ids: the tokens of its answer so far.
        scores: the score of each token, if `Request.scores` is set.
        done: whether the answer is finished.
        ruled: see `Request.ruled`.
        single_steps: up to this length the host must read each step before the next one starts.
    """

    index: int
    request: Request
    limit: int
    length: int = 0
    ids: list[int] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)
    done: bool = False

    def __post_init__(self) -> None:
        request = self.request
        self.ruled = request.ruled
        required = max(len(request.prefix), request.min_length)
        if request.scores or request.search.rules != NO_RULES:
            self.single_steps = self.limit
        else:
            self.single_steps = required

    def extend(self, token_ids: Sequence[int], ends: Container[int]) -> None:
        """Append tokens up to the end of the answer. End tokens inside the prefix do not end it."""
        for token in token_ids:
            self.ids.append(token)
            is_end = token in ends and len(self.ids) > len(self.request.prefix)
            if is_end or len(self.ids) >= self.limit:
                self.done = True
                break
        self.length = len(self.ids)

    def result(self) -> Result:
        """Return the answer so far."""
        return Result(self.index, [self.hypothesis()])

    def hypothesis(self) -> Hypothesis:
        """Return the tokens so far."""
        return Hypothesis(self.ids, self.scores if self.request.scores else None)
