"""Greedy search by its definition, for the model of `memory_engine`, and requests for it."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from hypothesis import strategies as st
from memory_engine import TOKENS, logits_after
from txport.runtime.bundle.schema import Limits
from txport.runtime.search.requests import Request, Result
from txport.runtime.search.settings import Search


def oracle(request: Request, limits: Limits, eos_weight: float) -> tuple[list[int], list[float]]:
    """Return the ids and scores of one sentence, computed by the definition of greedy search."""
    limit = min(request.max_length or limits.target, limits.target)
    ids: list[int] = []
    scores: list[float] = []
    while len(ids) < limit and TOKENS.eos not in ids[len(request.prefix) :]:
        logits = logits_after(request.source_ids, [TOKENS.bos, *ids], eos_weight).astype(np.float64)
        if request.words is not None:  # other words do not exist for the request
            logits[np.setdiff1d(np.arange(len(logits)), request.words)] = -np.inf
        allowed = logits.copy()
        if len(ids) < request.min_length:
            allowed[TOKENS.eos] = -np.inf
        if allowed.max() == -np.inf:  # no token is allowed
            allowed[TOKENS.eos] = 0
        token = request.prefix[len(ids)] if len(ids) < len(request.prefix) else int(allowed.argmax())
        scores.append(float(logits[token] - np.log(np.exp(logits).sum())))
        ids.append(token)
    return ids, scores


WORD = st.integers(4, 11)
SOURCE = st.lists(WORD, max_size=11).map(lambda ids: [*ids, TOKENS.eos])
REQUEST = st.builds(
    Request,
    SOURCE,
    st.none() | st.integers(1, 110),
    st.integers(0, 40),
    st.lists(st.integers(3, 11), max_size=5),
    st.booleans(),
)
# Requests with a shortlist that includes the prefix, as in `txport.runtime.calls.requests`.
RESTRICTED = st.builds(
    lambda request, words: replace(
        request,
        words=np.unique([*words, *request.prefix, TOKENS.eos]),
        search=Search(shortlist=True),
    ),
    REQUEST,
    st.lists(st.integers(0, 11), max_size=11),
)
PLAIN = st.builds(Request, SOURCE, st.none() | st.integers(1, 110))


def sources(lengths: Sequence[int]) -> list[Request]:
    """Return distinct sources of these lengths. Their answers have the maximum length of 40."""
    words = [([4 + i % 8, 4 + i // 8 % 8] * 6)[: length - 1] for i, length in enumerate(lengths)]
    return [Request([*word, TOKENS.eos], 40) for word in words]


def check_results(results: Sequence[Result], requests: Sequence[Request], limits: Limits, eos_weight: float) -> None:
    """Check that each request has a result, equal to that of the sentence alone."""
    assert sorted(result.index for result in results) == list(range(len(requests)))
    for result in results:
        request = requests[result.index]
        ids, scores = oracle(request, limits, eos_weight)
        assert result.ids == ids
        if request.scores:
            assert result.scores is not None
            np.testing.assert_allclose(result.scores, scores, rtol=0, atol=1e-5)
        else:
            assert result.scores is None
