"""Searches of several independent answers: samples, and alternatives at a position.

The first step after the prefix has one row; then each answer takes a row of its own.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from txport.runtime.bundle.schema import SpecialTokens
from txport.runtime.engine import DecoderState, Float32, Int64, best_ids
from txport.runtime.search.requests import Request, Result, Slot
from txport.runtime.search.rules import Constraints, forced_token
from txport.runtime.search.sampling import draw
from txport.runtime.search.settings import Search


@dataclass
class ForkedSlot(Slot):
    """A sentence with a slot for each of its answers; `ids` and `scores` are of what they have in common."""

    answers: list[Slot] = field(default_factory=list)

    def result(self) -> Result:
        """The answers, in the order in which they were chosen."""
        parts = self.answers or [self]
        return Result(self.index, [part.hypothesis() for part in parts])


class Forks:
    """The policy of sampling, and of alternatives; see `txport.runtime.search.scheduler.Policy`.

    Args:
        tokens: ids with a meaning.
        search: its settings.
    """

    top = 0

    def __init__(self, tokens: SpecialTokens, search: Search) -> None:
        self._constraints = Constraints(search.rules, tokens)
        self._sampling = search.sampling
        self._pad = tokens.pad
        self.rows = search.alternatives or search.n_best

    def slot(self, index: int, request: Request, limit: int) -> Slot:
        """The slot of a request."""
        return ForkedSlot(index, request, limit)

    def needs_logits(self, request: Request) -> bool:
        """Whether the host reads logits: always."""
        return True

    def stepwise(self, slots: Sequence[Slot]) -> bool:
        """Whether the host sees the next step: always."""
        return True

    def choose(self, state: DecoderState, slots: Sequence[Slot | None], token_ids: Int64, stepwise: bool) -> None:
        """Choose a token for each row, instead of those that the device chose."""
        logits = state.logits()
        order = list(range(state.rows))
        made: list[tuple[int, int, int, Slot]] = []  # row, the row that was stepped, token, answer
        for index, slot in enumerate(slots):
            if not isinstance(slot, ForkedSlot):
                continue
            first = index * self.rows
            if slot.answers:
                for number, answer in enumerate(slot.answers):
                    if not answer.done:
                        row = first + number
                        made.append((row, row, self._best(logits[row], answer, number, 1)[0], answer))
            elif slot.length < len(slot.request.prefix):
                made.append((first, first, int(slot.request.prefix[slot.length]), slot))
            else:
                for number, token in enumerate(self._fork(logits[first], slot)):
                    answer = Slot(slot.index, slot.request, slot.limit, slot.length, [*slot.ids], [*slot.scores])
                    slot.answers.append(answer)
                    order[first + number] = first
                    made.append((first + number, first, token, answer))
        self._extend(state, made)
        for slot in slots:
            if isinstance(slot, ForkedSlot) and slot.answers:
                slot.length += 1
                slot.done = all(answer.done for answer in slot.answers)
        if order != list(range(state.rows)):
            state.reorder(order)
        overrides = [(row, self._pad if answer.done else token, answer.done) for row, _, token, answer in made]
        state.override(*map(list, zip(*overrides, strict=True)))

    def _extend(self, state: DecoderState, made: Sequence[tuple[int, int, int, Slot]]) -> None:
        """Append the tokens and their scores to their answers."""
        scored = [each for each in made if each[3].request.scores]
        if scored:
            scores = state.log_probabilities([row for _, row, _, _ in scored], [token for _, _, token, _ in scored])
            for (_, _, _, answer), score in zip(scored, scores.tolist(), strict=True):
                answer.scores.append(score)
        for _, _, token, answer in made:
            answer.extend([token], self._constraints.ends)

    def _fork(self, logits: Float32, slot: ForkedSlot) -> list[int]:
        """The first token of each answer."""
        if self._sampling is None:
            return self._best(logits, slot, 0, self.rows)
        return [self._best(logits, slot, number, 1)[0] for number in range(self.rows)]

    def _best(self, logits: Float32, answer: Slot, number: int, count: int) -> list[int]:
        """The best tokens by the rules, or one that is drawn for the sample of this number."""
        token = forced_token(answer)
        if token is not None:
            return [token]
        scores = logits.copy()
        self._constraints.apply(scores, answer.ids, answer.request)
        if self._sampling is not None:
            return [draw(scores, self._sampling, answer.request.key, number, answer.length)]
        return [token for token in best_ids(scores, count).tolist() if scores[token] > -np.inf]
