"""Greedy search: the device chooses the most probable token of each step, unless a rule changes the choice."""

from collections.abc import Mapping, Sequence

from txport.runtime.bundle.schema import SpecialTokens
from txport.runtime.engine import DecoderState, Float32, Int64
from txport.runtime.search.requests import Request, Slot
from txport.runtime.search.rules import Constraints, forced_token
from txport.runtime.search.settings import GREEDY, Search


class Greedy:
    """The policy of greedy search; see `txport.runtime.search.policy.Policy`.

    Args:
        tokens: ids of special tokens.
        search: the settings of the search.
        recomputes_logits: see `txport.runtime.engine.Engine`.
    """

    rows = 1
    top = 0

    def __init__(self, tokens: SpecialTokens, search: Search = GREEDY, recomputes_logits: bool = False) -> None:
        self._recomputes = recomputes_logits
        self._constraints = Constraints(search.rules, tokens)
        self._pad = tokens.pad
        self._eos = tokens.eos

    def slot(self, index: int, request: Request, limit: int) -> Slot:
        """Return the slot of a request."""
        return Slot(index, request, limit)

    def needs_logits(self, request: Request) -> bool:
        """Return whether the host reads logits.

        An engine that recomputes logits does not need to keep them for rules that rarely forbid the best token.
        """
        return request.scores or self._constraints.penalises or (request.ruled and not self._recomputes)

    def steps_one_by_one(self, slots: Sequence[Slot]) -> bool:
        """Return whether the host must read the next step before the step after it starts."""
        return any(slot.length < slot.single_steps for slot in slots)

    def choose(self, state: DecoderState, slots: Sequence[Slot | None], token_ids: Int64, one_by_one: bool) -> None:
        """Append the tokens `[steps, rows]` that the device chose, or others where rules forbid them."""
        if one_by_one:
            self._choose_one(state, slots, token_ids[0])
            return
        for slot, column in zip(slots, token_ids.T.tolist(), strict=True):
            if slot is not None:
                slot.extend(column, self._constraints.ends)

    def _choose_one(self, state: DecoderState, slots: Sequence[Slot | None], token_ids: Int64) -> None:
        """Append one token and its score to each slot; override the device's choice where the token differs."""
        overrides: list[tuple[int, int, bool]] = []
        scored: list[tuple[int, Slot]] = []
        active = {row: slot for row, slot in enumerate(slots) if slot is not None}
        for row, token in self.tokens(state, active, token_ids).items():
            slot = active[row]
            slot.extend([token], self._constraints.ends)
            # The device finishes a row at eos, also where the prefix forces eos. It does not check `Rules.end_ids`.
            ends_early = slot.done and token != self._eos and token in self._constraints.ends
            continues = token == self._eos and not slot.done
            if ends_early or continues or token != token_ids[row]:
                overrides.append((row, self._pad if ends_early else token, slot.done))
            if slot.request.scores:
                scored.append((row, slot))
        if overrides:
            state.override(*map(list, zip(*overrides, strict=True)))
        if scored:
            scores = state.log_probabilities([row for row, _ in scored], [slot.ids[-1] for _, slot in scored])
            for (_, slot), score in zip(scored, scores.tolist(), strict=True):
                slot.scores.append(score)

    def tokens(self, state: DecoderState, slots: Mapping[int, Slot], token_ids: Int64) -> dict[int, int]:
        """Return the token of each row of `slots`: the device's choice in `token_ids` `[rows]`, or another by rules."""
        next_tokens: dict[int, int] = {}
        ruled_slots: dict[int, Slot] = {}
        for row, slot in slots.items():
            token = forced_token(slot)
            if token is None:
                token = int(token_ids[row])
                if slot.ruled and self._changes(slot, token):
                    ruled_slots[row] = slot
            next_tokens[row] = token
        if ruled_slots:
            for (row, slot), logits in zip(ruled_slots.items(), state.logits([*ruled_slots]), strict=True):
                next_tokens[row] = self._best(logits, slot)
        return next_tokens

    def _changes(self, slot: Slot, token: int) -> bool:
        """Return whether the rules may choose another token than the best one."""
        return self._constraints.penalises or token in self._constraints.banned_ids(slot.ids, slot.request)

    def _best(self, logits: Float32, slot: Slot) -> int:
        """Return the best token of `[vocabulary]` logits after the rules; of equal scores the first, as with ArgMax."""
        scores = logits.copy()
        self._constraints.apply(scores, slot.ids, slot.request)
        return int(scores.argmax())
