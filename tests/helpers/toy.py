"""The committed toy bundle and its expected answers; `make_toy_bundle.py` describes its model."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from txport.runtime.bundle.schema import SpecialTokens

BUNDLE = Path(__file__).parents[1] / "data" / "toy_bundle"
TOKENS = SpecialTokens(pad=0, unk=1, bos=2, eos=3)
VOCABULARY, MADE = 96, 47
SOURCE, LIMIT, BATCH = 24, 72, 8


def logits(source: Sequence[int], fed: Sequence[int]) -> np.ndarray:
    """Return float64 `[VOCABULARY]` logits: a parabola with its top at the best id. Its larger neighbour is second."""
    total = 9 * sum(source) + 14 * sum(token * (i + 1) for i, token in enumerate(fed))
    ids = np.arange(VOCABULARY)
    return 0.25 * ids - (ids - total % MADE) ** 2.0


def default_limit(source: Sequence[int]) -> int:
    """Return the default maximum number of ids of an answer."""
    return min(LIMIT, 2 * len(source) + 20)


def answer(
    source: Sequence[int], limit: int = LIMIT, minimum: int = 0, prefix: Sequence[int] = ()
) -> tuple[list[int], list[float]]:
    """Return the expected ids for one source, and their log-probabilities."""
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
