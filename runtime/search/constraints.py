"""Constraints on the next token of an answer: a forced prefix, and a minimum length."""

from collections.abc import Sequence

import numpy as np
from txport.runtime.bundle.schema import SpecialTokens
from txport.runtime.engine import Float32
from txport.runtime.search.requests import Request, Slot


def may_forbid(request: Request) -> bool:
    """Whether the device's choice may be forbidden at some step, so that the next best is needed."""
    return request.min_length > 0


def forced_token(slot: Slot) -> int | None:
    """The only id that may come next, or None."""
    position = len(slot.ids)
    prefix = slot.request.prefix
    return int(prefix[position]) if position < len(prefix) else None


def forbidden_tokens(slot: Slot, tokens: SpecialTokens) -> list[int]:
    """Ids that must not come next, where none is forced."""
    return [tokens.eos] if len(slot.ids) < slot.request.min_length else []


def best_but(logits: Float32, forbidden: Sequence[int]) -> int:
    """The best id of `[vocabulary]` logits besides these; the first of equals, as with ArgMax."""
    allowed = logits.astype(np.float32)
    allowed[list(forbidden)] = -np.inf
    return int(allowed.argmax())
