"""Beam search as Hugging Face's `generate` does it (transformers 5, generation/utils.py, `_beam_search`).

A sentence has `Search.beam` rows in a batch. The first step uses only one of them. After each step, the best
continuations of all hypotheses are assigned to the rows.
"""

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
from txport.runtime.bundle.schema import SpecialTokens
from txport.runtime.engine import DecoderState, Float32, Float64, Int64, best_ids, log_sum_exp
from txport.runtime.search.requests import Hypothesis, Request, Result, Slot
from txport.runtime.search.rules import Constraints, forced_token
from txport.runtime.search.settings import Search


class Candidate(NamedTuple):
    """A running hypothesis, extended by one token.

    Attributes:
        total: the log-probability of the hypothesis with this token.
        parent: index of the hypothesis in its sentence.
        token: the id.
        score: the log-probability of the token.
    """

    total: float
    parent: int
    token: int
    score: float


class _Running(NamedTuple):
    """A hypothesis that is not finished."""

    ids: list[int]
    scores: list[float]
    total: float


@dataclass
class BeamSlot(Slot):
    """A sentence whose rows are hypotheses, by descending log-probability; `ids` and `scores` stay empty.

    Attributes:
        running: hypotheses that continue, one for each of the first rows.
        finished: at most `Search.beam` (times the patience) finished hypotheses, by descending score.
    """

    running: list[_Running] = field(default_factory=lambda: [_Running([], [], 0.0)])
    finished: list[Hypothesis] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__post_init__()
        search = self.request.search
        if search.early_stopping is True:
            patience = search.patience
        else:
            patience = 1.0
        self._max_finished = max(1, round(search.beam * patience))
        self._uncounted = len(self.request.prefix) - self.request.forced

    def force(self) -> list[Candidate]:
        """Append the next token of the prefix to the only hypothesis; the return value is as for `advance`."""
        (only,) = self.running
        token = int(self.request.prefix[self.length])
        self.length += 1
        self.running = [_Running([*only.ids, token], [*only.scores, 0.0], only.total)]
        if self.length < self.limit:
            return [Candidate(only.total, 0, token, 0.0)]
        self._end(self.running)
        self.done = True
        return []

    def advance(self, candidates: Sequence[Candidate], ends: Container[int]) -> list[Candidate]:
        """Continue the search with the best candidates.

        Args:
            candidates: by descending total; enough of them that at least `beam` do not end their hypothesis.
            ends: ids that end a hypothesis.

        Returns:
            the running hypotheses; none if the sentence is finished.
        """
        beam = self.request.search.beam
        self.length += 1
        at_limit = self.length >= self.limit
        continuing: list[Candidate] = []
        ending: list[_Running] = []
        for rank, candidate in enumerate(candidates):
            if at_limit or candidate.token in ends:
                if rank < beam:  # as in Hugging Face: an end below the best `beam` candidates is dropped
                    ending.append(self._continued(candidate))
            elif len(continuing) < beam:
                continuing.append(candidate)
        self._end(ending)
        self.running = [self._continued(candidate) for candidate in continuing]
        self.done = not continuing or self._should_stop()
        if self.done:
            return []
        return continuing

    def _continued(self, candidate: Candidate) -> _Running:
        parent = self.running[candidate.parent]
        return _Running([*parent.ids, candidate.token], [*parent.scores, candidate.score], candidate.total)

    def _end(self, ending: Sequence[_Running]) -> None:
        count = max(1, self.length - self._uncounted)
        penalty: float = count**self.request.search.length_penalty
        self.finished += [Hypothesis(each.ids, each.scores, each.total / penalty) for each in ending]
        self.finished.sort(key=_score, reverse=True)  # a stable sort: of equal scores, the hypothesis that ended first
        del self.finished[self._max_finished :]

    def _should_stop(self) -> bool:
        """Return whether the search stops at this step, according to `Search.early_stopping`."""
        search = self.request.search
        if len(self.finished) < self._max_finished:
            return False
        if search.early_stopping is True:
            return True
        length = self.length - self._uncounted
        if search.early_stopping == "never" and search.length_penalty > 0:
            length = self.limit - self._uncounted
        possible: float = self.running[0].total / max(1, length) ** search.length_penalty
        return possible <= _score(self.finished[-1])

    def result(self) -> Result:
        """Return the best hypotheses that ended."""
        best = self.finished[: self.request.search.n_best]
        if not self.request.scores:
            best = [replace(hypothesis, scores=None) for hypothesis in best]
        return Result(self.index, best)


def _score(hypothesis: Hypothesis) -> float:
    assert hypothesis.score is not None
    return hypothesis.score


class BeamSearch:
    """The policy of beam search; see `txport.runtime.search.policy.Policy`.

    Args:
        tokens: ids of special tokens.
        search: the settings of the search.
        vocabulary: number of logits of a row.
    """

    def __init__(self, tokens: SpecialTokens, search: Search, vocabulary: int) -> None:
        self._constraints = Constraints(search.rules, tokens)
        self._renormalize = search.rules.renormalize
        self._pad = tokens.pad
        self.rows = search.beam
        self._candidate_count = candidate_count(search, self._constraints)
        self.top = min(self._candidate_count, vocabulary)

    def slot(self, index: int, request: Request, limit: int) -> Slot:
        """Return the slot of a request."""
        return BeamSlot(index, request, limit)

    def needs_logits(self, request: Request) -> bool:
        """Return whether rules need all logits and not only the best ones."""
        return request.ruled

    def steps_one_by_one(self, slots: Sequence[Slot]) -> bool:
        """Return True: the host must read each step before the next one starts."""
        return True

    def choose(self, state: DecoderState, slots: Sequence[Slot | None], token_ids: Int64, one_by_one: bool) -> None:
        """Continue the best hypotheses, instead of the tokens that the device chose."""
        order = list(range(state.rows))
        overrides: list[tuple[int, int, bool]] = []
        for index, candidates in self._candidates(state, slots).items():
            slot = slots[index]
            assert isinstance(slot, BeamSlot)
            first = index * self.rows
            before = len(slot.running)
            if candidates:
                continuing = slot.advance(candidates, self._constraints.ends)
            else:
                continuing = slot.force()
            for row, candidate in enumerate(continuing, first):
                order[row] = first + candidate.parent
                overrides.append((row, candidate.token, False))
            overrides += [(row, self._pad, True) for row in range(first + len(continuing), first + before)]
        if order != list(range(state.rows)):
            state.reorder(order)
        state.override(*map(list, zip(*overrides, strict=True)))

    def _candidates(self, state: DecoderState, slots: Sequence[Slot | None]) -> dict[int, list[Candidate]]:
        """Return the best continuations of each active slot, by descending total."""
        active = {index: slot for index, slot in enumerate(slots) if isinstance(slot, BeamSlot)}
        past_prefix = {index: slot for index, slot in active.items() if slot.length >= len(slot.request.prefix)}
        if not past_prefix:
            return {index: [] for index in active}
        ids, scores = self._score_rows(state, past_prefix)
        totals = np.full(ids.shape, -np.inf)
        for index, slot in past_prefix.items():
            rows = slice(index * self.rows, index * self.rows + len(slot.running))
            totals[rows] = np.array([hypothesis.total for hypothesis in slot.running])[:, None] + scores[rows]
        k = ids.shape[1]
        flat = totals.reshape(len(slots), -1)
        best = np.argsort(-flat, axis=1, kind="stable")[:, : self._candidate_count]

        def of_slot(index: int) -> list[Candidate]:
            positions = best[index]
            rows = index * self.rows + positions // k
            columns = positions % k
            fields = flat[index, positions], positions // k, ids[rows, columns], scores[rows, columns]
            candidates = map(Candidate, *(field.tolist() for field in fields))
            return [candidate for candidate in candidates if candidate.total > -np.inf]

        return {index: of_slot(index) if index in past_prefix else [] for index in active}

    def _score_rows(self, state: DecoderState, slots: Mapping[int, BeamSlot]) -> tuple[Int64, Float64]:
        """Return ids `[rows, k]` and log-probabilities `[rows, k]` of the best tokens; undefined for empty rows."""
        # Scores of a sentence must not depend on other sentences of its batch, not even in the last digit.
        ids = np.zeros((state.rows, self.top), np.int64)
        scores = np.full(ids.shape, -np.inf)
        forced = {index: token for index, slot in slots.items() if (token := forced_token(slot)) is not None}
        unforced = {index: slot for index, slot in slots.items() if index not in forced}
        if not all(slot.ruled for slot in unforced.values()):
            best = state.top(self.top)
            ids = best.token_ids.copy()
            scores = best.logits - best.normaliser[:, None]
        if ruled := {index: slot for index, slot in unforced.items() if slot.ruled}:
            logits = state.logits()
            for index, slot in ruled.items():
                for row, hypothesis in enumerate(slot.running, index * self.rows):
                    ids[row], scores[row] = self._ruled(logits[row], hypothesis.ids, slot)
        for index, token in forced.items():
            rows = slice(index * self.rows, (index + 1) * self.rows)
            scores[rows] = -np.inf
            ids[rows, 0], scores[rows, 0] = token, 0
        return ids, scores

    def _ruled(self, logits: Float32, generated: Sequence[int], slot: BeamSlot) -> tuple[Int64, Float64]:
        """Return ids `[k]` and log-probabilities `[k]` of the best tokens after the rules; -inf for forbidden ones."""
        log_probabilities = log_softmax(logits)
        self._constraints.apply(log_probabilities, generated, slot.request)
        if self._renormalize:
            log_probabilities = log_softmax(log_probabilities)
        best = best_ids(log_probabilities, self.top)
        return best, log_probabilities[best]


def candidate_count(search: Search, constraints: Constraints) -> int:
    """Return the number of candidates of a sentence.

    At least `beam` of them remain even if the candidates include every end id of every hypothesis.
    """
    return (1 + len(constraints.ends)) * search.beam


def log_softmax(logits: Float32 | Float64) -> Float64:
    """Return float64 `[vocabulary]` log-probabilities."""
    largest, log_sum = log_sum_exp(logits)
    normalised: Float64 = logits.astype(np.float64) - largest - log_sum
    return normalised
