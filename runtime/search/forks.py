"""Searches with several independent answers: samples, and alternatives at a position.

Up to the first step after the prefix, a sentence uses one row; then each answer has its own row.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from txport.runtime.bundle.schema import SpecialTokens
from txport.runtime.engine import DecoderState, Float32, Int64, best_ids
from txport.runtime.search.greedy import Greedy
from txport.runtime.search.requests import Request, Result, Slot
from txport.runtime.search.rules import Constraints, forced_token
from txport.runtime.search.sampling import draw
from txport.runtime.search.settings import Search


@dataclass
class ForkedSlot(Slot):
    """A sentence with a slot for each of its answers; `ids` and `scores` hold their common prefix."""

    answers: list[Slot] = field(default_factory=list)

    def result(self) -> Result:
        """Return the answers, in the order of their first tokens."""
        parts = self.answers or [self]
        return Result(self.index, [part.hypothesis() for part in parts])


class Forks:
    """The policy of sampling and of alternatives; see `txport.runtime.search.policy.Policy`.

    Args:
        tokens: ids of special tokens.
        search: the settings of the search.
        recomputes_logits: see `txport.runtime.engine.Engine`.
    """

    top = 0

    def __init__(self, tokens: SpecialTokens, search: Search, recomputes_logits: bool = False) -> None:
        self._recomputes = recomputes_logits
        self._greedy = Greedy(tokens, search, recomputes_logits)
        self._constraints = Constraints(search.rules, tokens)
        self._sampling = search.sampling
        self._pad = tokens.pad
        self.rows = search.alternatives or search.n_best

    def slot(self, index: int, request: Request, limit: int) -> Slot:
        """Return the slot of a request."""
        return ForkedSlot(index, request, limit)

    def needs_logits(self, request: Request) -> bool:
        """Return whether the host reads logits: in each step, or only at the step where alternatives begin."""
        return self._sampling is not None or not self._recomputes or self._greedy.needs_logits(request)

    def steps_one_by_one(self, slots: Sequence[Slot]) -> bool:
        """Return True: the host must read each step before the next one starts."""
        return True

    def choose(self, state: DecoderState, slots: Sequence[Slot | None], token_ids: Int64, one_by_one: bool) -> None:
        """Choose a token for each row: the one that the device chose, or another one."""
        order = list(range(state.rows))
        forked = [(index * self.rows, slot) for index, slot in enumerate(slots) if isinstance(slot, ForkedSlot)]
        # For each row: the row itself, the row whose logits it continues, the token, and its answer or common prefix.
        continuations = self._continued(state, forked, token_ids[0])
        for first, slot in forked:
            if slot.answers:
                continue
            if slot.length < len(slot.request.prefix):
                continuations.append((first, first, int(slot.request.prefix[slot.length]), slot))
                continue
            for number, token in enumerate(self._fork(state, first, slot)):
                answer = Slot(slot.index, slot.request, slot.limit, slot.length, [*slot.ids], [*slot.scores])
                slot.answers.append(answer)
                order[first + number] = first
                continuations.append((first + number, first, token, answer))
        self._extend(state, continuations)
        for _, slot in forked:
            if slot.answers:
                slot.length += 1
                slot.done = all(answer.done for answer in slot.answers)
        if order != list(range(state.rows)):
            state.reorder(order)
        overrides = [(row, self._pad if answer.done else token, answer.done) for row, _, token, answer in continuations]
        state.override(*map(list, zip(*overrides, strict=True)))

    def _continued(
        self, state: DecoderState, forked: Sequence[tuple[int, ForkedSlot]], token_ids: Int64
    ) -> list[tuple[int, int, int, Slot]]:
        """Return the next tokens of unfinished answers, which stay in their rows, with elements as in `choose`."""
        answers = {
            first + number: (number, answer)
            for first, slot in forked
            for number, answer in enumerate(slot.answers)
            if not answer.done
        }
        if self._sampling is None:
            next_tokens = self._greedy.tokens(state, {row: answer for row, (_, answer) in answers.items()}, token_ids)
        else:
            logits = state.logits()
            next_tokens = {row: self._sample(logits[row], answer, number) for row, (number, answer) in answers.items()}
        return [(row, row, token, answers[row][1]) for row, token in next_tokens.items()]

    def _extend(self, state: DecoderState, continuations: Sequence[tuple[int, int, int, Slot]]) -> None:
        """Append the tokens and their scores to their answers."""
        scored = [each for each in continuations if each[3].request.scores]
        if scored:
            scores = state.log_probabilities([row for _, row, _, _ in scored], [token for _, _, token, _ in scored])
            for (_, _, _, answer), score in zip(scored, scores.tolist(), strict=True):
                answer.scores.append(score)
        for _, _, token, answer in continuations:
            answer.extend([token], self._constraints.ends)

    def _fork(self, state: DecoderState, row: int, slot: ForkedSlot) -> list[int]:
        """Return the first token of each answer."""
        (logits,) = state.logits([row])
        if self._sampling is not None:
            return [self._sample(logits, slot, number) for number in range(self.rows)]
        token = forced_token(slot)
        if token is not None:
            return [token]
        scores = self._constrain(logits, slot)
        return [token for token in best_ids(scores, self.rows).tolist() if scores[token] > -np.inf]

    def _sample(self, logits: Float32, answer: Slot, number: int) -> int:
        """Return the next token of the sample of this number."""
        assert self._sampling is not None
        token = forced_token(answer)
        if token is not None:
            return token
        return draw(self._constrain(logits, answer), self._sampling, answer.request.key, number, answer.length)

    def _constrain(self, logits: Float32, answer: Slot) -> Float32:
        """Return a copy of the logits after the rules."""
        scores = logits.copy()
        self._constraints.apply(scores, answer.ids, answer.request)
        return scores
