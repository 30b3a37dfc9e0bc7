"""The greedy loop against a brute-force oracle, over an engine that checks how it is used."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from memory_engine import LIMITS, TOKENS, MemoryEngine, logits_after
from txport.runtime.engine import Int64, Limits
from txport.runtime.errors import EngineError, InputError
from txport.runtime.greedy import Request, decode_all, stream


def oracle(request: Request, limits: Limits, eos_weight: float) -> tuple[list[int], list[float]]:
    """One sentence alone, straight from the definition."""
    limit = min(request.max_length or limits.target, limits.target)
    ids: list[int] = []
    scores: list[float] = []
    while len(ids) < limit and TOKENS.eos not in ids:
        logits = logits_after(request.source_ids, [TOKENS.bos, *ids], eos_weight).astype(np.float64)
        allowed = logits.copy()
        if len(ids) < request.min_length:
            allowed[TOKENS.eos] = -np.inf
        token = request.prefix[len(ids)] if len(ids) < len(request.prefix) else int(allowed.argmax())
        scores.append(float(np.log(np.exp(logits[token]) / np.exp(logits).sum())))
        ids.append(token)
    return ids, scores


WORD = st.integers(4, 11)
SOURCE = st.lists(WORD, max_size=11).map(lambda ids: [*ids, TOKENS.eos])
REQUEST = st.builds(
    Request, SOURCE, st.none() | st.integers(1, 110), st.integers(0, 40), st.lists(st.integers(3, 11), max_size=5)
)
PLAIN = st.builds(Request, SOURCE, st.none() | st.integers(1, 110))


@settings(max_examples=150, deadline=None)
@given(
    st.lists(REQUEST, max_size=14),
    st.sampled_from([-3.0, 0.0, 1.0]),
    st.sampled_from([1, 3, 8]),
    st.sampled_from([1, 2, 3, 4]),
    st.sampled_from([6, 20, 4096]),
    st.booleans(),
    st.sampled_from([1, 2, 3]),
)
def test_any_batch_gives_what_each_sentence_gives_alone(
    requests: list[Request], eos_weight: float, poll: int, rows: int, batch_tokens: int, scores: bool, workers: int
) -> None:
    engine = MemoryEngine(Limits(rows, 12, 100), poll, eos_weight)
    results = decode_all(engine, requests, batch_tokens=batch_tokens, scores=scores, workers=workers)
    assert [result.index for result in results] == list(range(len(requests)))
    for request, result in zip(requests, results, strict=True):
        ids, expected = oracle(request, engine.limits, eos_weight)
        assert result.ids == ids
        assert result.scores == (pytest.approx(expected, abs=1e-5) if scores else None)


@settings(max_examples=60, deadline=None)
@given(st.lists(PLAIN, min_size=1, max_size=20), st.sampled_from([1, 5]))
def test_unconstrained_requests_need_no_logits(requests: list[Request], poll: int) -> None:
    engine = MemoryEngine(LIMITS, poll)
    for result in decode_all(engine, requests):
        assert result.ids == oracle(requests[result.index], LIMITS, 0.0)[0]


@settings(max_examples=60, deadline=None)
@given(REQUEST, st.booleans())
def test_stream_gives_the_same_tokens(request: Request, scores: bool) -> None:
    tokens = list(stream(MemoryEngine(LIMITS, poll=4), request, scores=scores))
    ids, expected = oracle(request, LIMITS, 0.0)
    assert [token.id for token in tokens] == ids
    assert [token.score for token in tokens] == (pytest.approx(expected, abs=1e-5) if scores else [None] * len(ids))


def sources(lengths: Sequence[int]) -> list[Request]:
    """Distinct sources of these lengths that run to the maximum length of 40, since nothing ends them earlier."""
    words = [([4 + i % 8, 4 + i // 8 % 8] * 6)[: length - 1] for i, length in enumerate(lengths)]
    return [Request([*word, TOKENS.eos], 40) for word in words]


def test_rows_that_finish_are_refilled() -> None:
    engine = MemoryEngine(Limits(4, 12, 100), eos_weight=-99.0)
    requests = [Request(request.source_ids, 10 if i % 4 else 40) for i, request in enumerate(sources([12] * 16))]
    decode_all(engine, requests)
    # 4 x 40 + 12 x 10 tokens: 70 full steps if no row ever idled, 160 if each batch waited for its longest.
    assert len(engine.steps) < 100
    assert engine.encoded == [4, 4, 4, 4]


@pytest.mark.parametrize("poll", [1, 2, 4, 8])
def test_a_device_works_on_a_group_of_steps_while_the_host_reads_another(poll: int) -> None:
    engine = MemoryEngine(LIMITS, poll, -99.0)
    decode_all(engine, [Request(request.source_ids, 32) for request in sources([3, 3])])  # as long as the first caches
    assert len(engine.steps) == 32, "the maximum length is known"
    assert engine.ahead == ([] if poll == 1 else [poll // 2] * (32 // (poll // 2) - 1))
    engine.ahead.clear()
    assert len(list(stream(engine, Request([4, TOKENS.eos], 5)))) == 5
    assert engine.ahead == ([] if poll == 1 else [1] * 4)
    # Of an end that is not known, fewer steps than poll are lost.
    for length in range(1, 13):
        ending = MemoryEngine(LIMITS, poll, 1.0)
        (result,) = decode_all(ending, [Request(sources([length])[0].source_ids)])
        assert len(ending.steps) - len(result.ids) < poll


def test_the_batch_shrinks_when_nothing_waits() -> None:
    engine = MemoryEngine(Limits(8, 12, 100), eos_weight=-99.0)
    requests = [Request(request.source_ids, 5 * (i + 1)) for i, request in enumerate(sources([12] * 8))]
    decode_all(engine, requests)
    assert engine.steps == sorted(engine.steps, reverse=True)
    assert engine.steps[-1] == 1 and engine.steps[0] == 8
    assert len(engine.steps) == 40


def test_caches_start_short_and_double() -> None:
    engine = MemoryEngine(Limits(1, 12, 100), eos_weight=-99.0)
    decode_all(engine, [Request([4, TOKENS.eos])])
    assert engine.allocated == [(1, 2, 32)]
    assert engine.moves == [(1, 64), (1, 100)]


def test_narrow_sentences_get_a_batch_of_their_own_when_they_fill_it() -> None:
    engine = MemoryEngine(Limits(4, 12, 100))
    decode_all(engine, sources([12, 12, 12, 12, 4, 4, 4, 4]))
    assert [width for _, width, _ in engine.allocated] == [12, 4]
    engine = MemoryEngine(Limits(4, 12, 100))
    decode_all(engine, sources([12, 12, 12, 12, 4, 4]))
    assert [width for _, width, _ in engine.allocated] == [12]


def test_batch_tokens_bound_the_rows() -> None:
    engine = MemoryEngine(Limits(8, 12, 100))
    decode_all(engine, sources([12] * 8), batch_tokens=36)
    assert engine.allocated[0][:2] == (3, 12)


def test_nothing_to_do() -> None:
    assert decode_all(MemoryEngine(), []) == []


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        (Request([]), "0 tokens"),
        (Request([4] * 13), "13 tokens"),
        (Request([4, 3], max_length=0), "maximum length of 0"),
    ],
)
def test_bad_requests(request_: Request, words: str) -> None:
    with pytest.raises(InputError, match=words):
        decode_all(MemoryEngine(), [request_])
    with pytest.raises(InputError, match=words):
        list(stream(MemoryEngine(), request_))


def test_other_workers_stop_when_one_fails() -> None:
    """Or when Ctrl-C comes, which is raised at the same place: nobody would take what they make."""

    class Failing(MemoryEngine):
        def encode(self, input_ids: Int64, source_lengths: Int64) -> list[tuple[int, ...]]:
            if input_ids[0, 0] == 4:
                raise EngineError("as planned")
            return super().encode(input_ids, source_lengths)

    engine = Failing(Limits(2, 12, 100))
    requests = [Request([4 if i == 40 else 5, TOKENS.eos], 20) for i in range(3000)]
    with pytest.raises(EngineError, match="as planned"):
        decode_all(engine, requests, workers=2)
    assert len(engine.encoded) < 1000
