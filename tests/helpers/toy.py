"""The committed toy bundle and what it must answer; `make_toy_bundle.py` says what it computes."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from txport.runtime.bundle.schema import SpecialTokens

BUNDLE = Path(__file__).parents[1] / "data" / "toy_bundle"
TOKENS = SpecialTokens(pad=0, unk=1, bos=2, eos=3)
VOCABULARY, MADE = 96, 47
SOURCE, LIMIT, BATCH = 24, 72, 8


def logits(source: Sequence[int], fed: Sequence[int]) -> np.ndarray:
    """float64 `[VOCABULARY]`: a parabola whose top is the id to be chosen; of its neighbours the higher is second."""
    total = 9 * sum(source) + 14 * sum(token * (i + 1) for i, token in enumerate(fed))
    ids = np.arange(VOCABULARY)
    return 0.25 * ids - (ids - total % MADE) ** 2.0


def default_limit(source: Sequence[int]) -> int:
    """The most ids of an answer, where nobody asks for another limit."""
    return min(LIMIT, 2 * len(source) + 20)


def answer(
    source: Sequence[int], limit: int = LIMIT, minimum: int = 0, prefix: Sequence[int] = ()
) -> tuple[list[int], list[float]]:
    """The ids that must come out for one source, and their log-probabilities."""
    ids: list[int] = []
    scores: list[float] = []
    while len(ids) < limit and TOKENS.eos not in ids[len(prefix) :]:
        given = logits(source, [TOKENS.bos, *ids])
        allowed = given.copy()
        if len(ids) < minimum:
            allowed[TOKENS.eos] = -np.inf
        token = prefix[len(ids)] if len(ids) < len(prefix) else int(allowed.argmax())
        ids.append(token)
        scores.append(float(given[token] - given.max() - np.log(np.exp(given - given.max()).sum())))
    return ids, scores
