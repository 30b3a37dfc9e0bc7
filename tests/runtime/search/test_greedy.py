"""Greedy search against a brute-force oracle, over an engine that checks how it is used."""

from dataclasses import replace

import pytest
from greedy_oracle import PLAIN, REQUEST, check_results, oracle
from hypothesis import given, settings
from hypothesis import strategies as st
from memory_engine import LIMITS, TOKENS, MemoryEngine
from toy import BUNDLE
from txport.runtime.bundle.schema import Limits
from txport.runtime.engine import Int64
from txport.runtime.errors import EngineError, InputError
from txport.runtime.search.decoding import decode_all, stream
from txport.runtime.search.requests import Request
from txport.runtime.search.settings import Rules, Sampling, Search


@settings(max_examples=150, deadline=None)
@given(
    st.lists(REQUEST, max_size=14),
    st.sampled_from([-3.0, 0.0, 1.0]),
    st.sampled_from([1, 3, 8]),
    st.sampled_from([1, 2, 3, 4]),
    st.sampled_from([6, 20, 4096]),
    st.sampled_from([1, 2, 3]),
)
def test_any_batch_gives_what_each_sentence_gives_alone(
    requests: list[Request], eos_weight: float, poll: int, rows: int, batch_tokens: int, workers: int
) -> None:
    engine = MemoryEngine(Limits(rows, 12, 100), poll, eos_weight)
    results = decode_all(engine, requests, batch_tokens=batch_tokens, workers=workers)
    assert [result.index for result in results] == list(range(len(requests)))
    check_results(results, requests, engine.limits, eos_weight)


@settings(max_examples=60, deadline=None)
@given(st.lists(PLAIN, min_size=1, max_size=20), st.sampled_from([1, 5]))
def test_unconstrained_requests_need_no_logits(requests: list[Request], poll: int) -> None:
    engine = MemoryEngine(LIMITS, poll)
    check_results(decode_all(engine, requests), requests, LIMITS, 0.0)


@settings(max_examples=60, deadline=None)
@given(REQUEST)
def test_stream_gives_the_same_tokens(request: Request) -> None:
    tokens = list(stream(MemoryEngine(LIMITS, poll=4), request))
    ids, expected = oracle(request, LIMITS, 0.0)
    assert [token.id for token in tokens] == ids
    assert [token.score for token in tokens] == (
        pytest.approx(expected, abs=1e-5) if request.scores else [None] * len(ids)
    )


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


PREFIX = [7, TOKENS.eos, 7, 9, TOKENS.eos]


@pytest.mark.parametrize("search", [Search(), Search(beam=3), Search(sampling=Sampling()), Search(alternatives=2)])
@pytest.mark.parametrize("poll", [1, 8])
def test_an_end_inside_the_prefix_ends_nothing(search: Search, poll: int) -> None:
    """As with decoder_input_ids of `generate`: eos, and an id that only the rules call an end."""
    engine = MemoryEngine(Limits(4, 12, 100), poll, -99.0)
    search = replace(search, rules=Rules(end_ids=(9,)))
    request = Request([5, TOKENS.eos], 12, prefix=PREFIX, search=search)
    for result in decode_all(engine, [request, request]):
        for made in result.hypotheses:
            assert made.ids[: len(PREFIX)] == PREFIX and len(made.ids) > len(PREFIX)
    streamed = [token.id for token in stream(engine, request)] if search == Search(rules=search.rules) else []
    assert streamed[: len(PREFIX)] == PREFIX[: len(streamed)]


def test_an_end_inside_the_prefix_with_an_engine() -> None:
    """The toy bundle by ONNX Runtime: the graph ends a row that the prefix makes go on."""
    from txport.runtime.translator import Translator

    translator = Translator(BUNDLE, "cpu", "ort", threads=1)
    eos = translator.manifest.tokens.eos
    for options in ({}, {"sample": True}, {"alternatives": 2}, {"beam": 2}):
        made = translator.translate_ids([[5, 6, eos]] * 3, prefix=[7, eos, 7], max_length=8, **options)
        for each in made:
            assert each.ids[:3] == [7, eos, 7] and len(each.ids) > 3, (options, each.ids)
