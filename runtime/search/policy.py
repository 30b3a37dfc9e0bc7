"""Interface of a search: how it chooses tokens for the scheduler."""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from txport.runtime.engine import DecoderState, Int64
from txport.runtime.search.requests import Request, Slot
from txport.runtime.search.settings import Search


class Policy(Protocol):
    """Choice of tokens.

    Attributes:
        rows: number of rows of a request. Its sentence is placed in the first of them; the others are marked as
            finished until the policy reorders the rows.
        top: maximum number of tokens that the policy requests from `DecoderState.top`.
    """

    rows: int
    top: int

    def slot(self, index: int, request: Request, limit: int) -> Slot:
        """Return the slot of a request whose answer may have at most `limit` tokens."""

    def needs_logits(self, request: Request) -> bool:
        """Return whether the state of this request must be allocated with logits."""

    def steps_one_by_one(self, slots: Sequence[Slot]) -> bool:
        """Return whether `choose` must see the next step of these slots before the step after it starts."""

    def choose(self, state: DecoderState, slots: Sequence[Slot | None], token_ids: Int64, one_by_one: bool) -> None:
        """Append the tokens of a group of steps to the answers.

        Args:
            state: the state that generated them.
            slots: the slot of each row, or of each `rows` rows; None for free rows.
            token_ids: int64 `[steps, rows]` that the device chose.
            one_by_one: the result of `steps_one_by_one`. If True, `token_ids` has one step, and no step is in flight.
        """


@runtime_checkable
class SearchingEngine(Protocol):
    """An engine whose library has a beam search with the same results as `txport.runtime.search.beam`."""

    def beam_policy(self, search: Search) -> Policy:
        """Return the policy of a search with beams."""
