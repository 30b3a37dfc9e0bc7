"""Beam search and its rules against Hugging Face's `generate` and against exhaustive search."""

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from beam_searches import BEAMS, RULES, requests
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from memory_engine import TOKENS, VOCABULARY, MemoryEngine, MemoryState, logits_after
from txport.runtime.bundle.schema import Limits
from txport.runtime.errors import InputError, ResourceError
from txport.runtime.search.decoding import decode_all, stream
from txport.runtime.search.requests import Request
from txport.runtime.search.settings import Rules, Sampling, Search


def contradicts(request: Request, rules: Rules) -> bool:
    """Whether the one token there is room for must both be and not be: `generate` leaves it to chance."""
    return request.max_length == len(request.prefix) + 1 and rules.forced_end in rules.begin_suppress


@settings(max_examples=60, deadline=None)
@given(
    st.lists(requests(), min_size=1, max_size=3),
    BEAMS,
    RULES,
    st.booleans(),
    st.sampled_from([-3.0, 0.0, 1.0, 2.0]),
    st.sampled_from([1, 2, 4]),
)
def test_hypotheses_and_scores_are_those_of_generate(
    asked: list[Request], search: Search, rules: Rules, renormalize: bool, eos_weight: float, sentences: int
) -> None:
    pytest.importorskip("transformers", reason="needs transformers: pip install 'txport[dev]'")
    from beam_oracle import generate

    search = replace(search, rules=replace(rules, renormalize=renormalize))
    # `generate` takes one forced token, and no prompt besides.
    allowed = [request for request in asked if request.forced in (0, len(request.prefix))]
    asked = [replace(request, search=search) for request in allowed if not contradicts(request, rules)]
    engine = MemoryEngine(Limits(sentences * search.beam, 12, 100), 1, eos_weight)
    for result, request in zip(decode_all(engine, asked), asked, strict=True):
        assert request.max_length is not None
        expected = generate(request, request.max_length, eos_weight)
        assert [made.ids for made in result.hypotheses] == [made.ids for made in expected]
        for made, right in zip(result.hypotheses, expected, strict=True):
            assert made.score == pytest.approx(right.score, abs=1e-4)


@settings(max_examples=60, deadline=None)
@given(requests(), RULES, st.sampled_from([-3.0, 0.0, 1.0]))
def test_greedy_search_takes_the_rules_too(request_: Request, rules: Rules, eos_weight: float) -> None:
    pytest.importorskip("transformers", reason="needs transformers: pip install 'txport[dev]'")
    from beam_oracle import generate

    assume(request_.forced in (0, len(request_.prefix)) and not contradicts(request_, rules))
    request = replace(request_, search=Search(rules=rules))
    assert request.max_length is not None
    (result,) = decode_all(MemoryEngine(eos_weight=eos_weight), [request])
    assert result.ids == generate(request, request.max_length, eos_weight)[0].ids


@settings(max_examples=60, deadline=None)
@given(
    st.lists(requests(), min_size=1, max_size=8),
    BEAMS,
    RULES,
    st.sampled_from([-3.0, 0.0, 1.0]),
    st.sampled_from([1, 3]),
    st.sampled_from([5, 9, 40]),
    st.sampled_from([20, 4096]),
    st.sampled_from([1, 2]),
)
def test_batches_change_nothing(
    asked: list[Request],
    search: Search,
    rules: Rules,
    eos_weight: float,
    poll: int,
    rows: int,
    batch_tokens: int,
    workers: int,
) -> None:
    asked = [replace(request, search=replace(search, rules=rules), scores=True) for request in asked]
    engine = MemoryEngine(Limits(rows, 12, 100), poll, eos_weight)
    together = decode_all(engine, asked, batch_tokens=batch_tokens, workers=workers)
    alone = [decode_all(MemoryEngine(eos_weight=eos_weight, limits=Limits(8, 12, 100)), [each])[0] for each in asked]
    assert [result.hypotheses for result in together] == [result.hypotheses for result in alone]


@pytest.mark.parametrize("penalty", [0.0, 1.0])
def test_a_wide_beam_is_exhaustive_search(penalty: float) -> None:
    source, limit = [5, 9, TOKENS.eos], 3
    scores = dict[tuple[int, ...], float]()
    for length in range(1, limit + 1):
        for ids in itertools.product(range(VOCABULARY), repeat=length):
            if TOKENS.eos not in ids[:-1] and (ids[-1] == TOKENS.eos or length == limit):
                scores[ids] = _log_probability(source, ids) / length**penalty
    best = sorted(scores, key=lambda ids: -scores[ids])[:20]
    search = Search(beam=VOCABULARY**2, n_best=20, length_penalty=penalty, early_stopping="never")
    engine = MemoryEngine(Limits(search.beam, 12, 100))
    (result,) = decode_all(engine, [Request(source, limit, search=search)])
    assert [tuple(made.ids) for made in result.hypotheses] == best
    assert [made.score for made in result.hypotheses] == pytest.approx([scores[ids] for ids in best], abs=1e-5)


def _log_probability(source: list[int], ids: tuple[int, ...]) -> float:
    total = 0.0
    for position, token in enumerate(ids):
        logits = logits_after(source, [TOKENS.bos, *ids[:position]], 0.0).astype(np.float64)
        total += float(logits[token] - np.log(np.exp(logits).sum()))
    return total


def test_patience_lets_more_hypotheses_end() -> None:
    sources = [[word, TOKENS.eos] for word in range(4, 12)]

    def longest(patience: float) -> int:
        engine = MemoryEngine(eos_weight=1.0)
        search = Search(beam=2, early_stopping=True, patience=patience)
        decode_all(engine, [Request(source, 60, search=search) for source in sources])
        return len(engine.steps)

    assert longest(1.0) < longest(3.0)


def test_a_beam_needs_as_many_rows() -> None:
    with pytest.raises(InputError, match="a sentence needs 5 rows, but this bundle supports at most 4"):
        decode_all(MemoryEngine(), [Request([4, TOKENS.eos], search=Search(beam=5))])


@pytest.mark.parametrize(
    ("room", "words"),
    [
        (23, "there is not enough memory for 3 sentences of 8 rows each: batch 1 fits"),
        (7, "there is not enough memory for 3 sentences of 8 rows each: beam or n_best 4 fits"),
        (0, "memory for 0 rows"),
    ],
)
def test_where_memory_is_short_it_is_said_what_fits(room: int, words: str) -> None:
    class Short(MemoryEngine):
        def allocate(self, rows: int, *sizes: int, **outputs: Any) -> MemoryState:
            if rows > room:
                raise ResourceError(f"there is memory for {room} rows")
            return super().allocate(rows, *sizes, **outputs)

    asked = [Request([4, TOKENS.eos], search=Search(beam=8))] * 3
    with pytest.raises(ResourceError, match=words):
        decode_all(Short(Limits(100, 12, 100)), asked)


def test_a_stream_has_no_beams() -> None:
    with pytest.raises(InputError, match="a stream is greedy"):
        list(stream(MemoryEngine(), Request([4, TOKENS.eos], search=Search(beam=2))))


@pytest.mark.parametrize(
    "search",
    [Search(), Search(beam=3), Search(sampling=Sampling()), Search(alternatives=2)],
    ids=["greedy", "beam", "sample", "alternatives"],
)
def test_an_answer_to_which_nothing_may_be_added_ends(search: Search) -> None:
    search = replace(search, rules=Rules(no_repeat_ngram=1))
    (result,) = decode_all(MemoryEngine(), [Request([5, TOKENS.eos], None, 50, search=search)])
    for made in result.hypotheses:
        assert sorted(made.ids) == [token for token in range(VOCABULARY) if token != TOKENS.bos]
        assert made.ids[-1] == TOKENS.eos
