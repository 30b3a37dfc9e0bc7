"""Rows that choose among words of their own: greedy search against brute force, every search against its definition."""

import contextlib
import dataclasses

import numpy as np
import pytest
from greedy_oracle import RESTRICTED, check_results
from hypothesis import given, settings
from hypothesis import strategies as st
from memory_engine import TOKENS, VOCABULARY, MemoryEngine
from txport.runtime.bundle.schema import Limits
from txport.runtime.errors import InputError
from txport.runtime.search.decoding import decode_all, stream
from txport.runtime.search.queue import Queue
from txport.runtime.search.requests import Request
from txport.runtime.search.settings import Rules, Sampling, Search
from txport.runtime.search.shared import SharedBatches


@settings(max_examples=30, deadline=None)
@given(st.lists(RESTRICTED, max_size=6), st.sampled_from([-3.0, 0.0, 1.0]), st.integers(1, 4), st.integers(1, 3))
def test_a_row_chooses_among_its_own_words_whatever_the_others_have(
    requests: list[Request], eos_weight: float, rows: int, workers: int
) -> None:
    engine = MemoryEngine(Limits(rows, 12, 100), poll=4, eos_weight=eos_weight)
    results = decode_all(engine, requests, workers=workers)
    check_results(results, requests, engine.limits, eos_weight)
    for result in results:
        assert set(result.ids) <= set(requests[result.index].words.tolist())  # type: ignore[union-attr]


@settings(max_examples=30, deadline=None)
@given(RESTRICTED)
def test_a_stream_does_as_well(request: Request) -> None:
    engine = MemoryEngine(poll=4)
    assert [token.id for token in stream(engine, request)] == decode_all(engine, [request])[0].ids


@pytest.mark.parametrize(
    "search",
    [
        Search(beam=3, n_best=3),
        Search(sampling=Sampling(temperature=2.0), n_best=2),
        Search(alternatives=3),
        Search(rules=Rules(repetition_penalty=1.5, no_repeat_ngram=2)),
        Search(beam=2, rules=Rules(suppress=(5,), forced_end=3)),
    ],
)
@settings(max_examples=8, deadline=None)
@given(st.lists(RESTRICTED, min_size=1, max_size=4))
def test_any_search_is_that_of_a_model_with_no_other_words(search: Search, requests: list[Request]) -> None:
    """A list of all words changes nothing, and a shorter one does what suppressing all others does, but for scores."""
    of_all = np.arange(VOCABULARY)
    # Beams begin with what does not end them.
    requests = [
        dataclasses.replace(request, prefix=[token for token in request.prefix if token != TOKENS.eos])
        for request in requests
    ]
    every = dataclasses.replace(search, shortlist=True)
    engine = MemoryEngine(Limits(8, 12, 30))
    whole = [dataclasses.replace(request, search=search, words=None) for request in requests]
    listed = [dataclasses.replace(request, search=every, words=of_all) for request in requests]
    assert decode_all(engine, whole) == decode_all(engine, listed)
    for request in requests:
        assert request.words is not None
        own = dataclasses.replace(request, search=every)
        for hypothesis in decode_all(engine, [own])[0].hypotheses:
            assert set(hypothesis.ids) <= set(request.words.tolist())


def test_an_engine_without_shortlists_refuses_them() -> None:
    engine = MemoryEngine()
    engine.restricts = False
    request = Request([5, 3], 4, search=Search(shortlist=True), words=np.array([3, 5]))
    sentence = "a shortlist needs the fused engine, and memory runs this bundle: leave it out"
    with pytest.raises(InputError, match=sentence):
        decode_all(engine, [request])
    with pytest.raises(InputError, match=sentence):
        next(stream(engine, request))
    with pytest.raises(InputError, match=sentence):
        SharedBatches().decode(engine, [request])
    with contextlib.closing(Queue(engine)) as queue, pytest.raises(InputError, match=sentence):
        queue.submit(request)
