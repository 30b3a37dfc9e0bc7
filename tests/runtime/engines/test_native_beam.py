"""Beam search in the fused engine's library against the one in Python, over the same engine."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from beam_searches import BEAMS, RULES, requests
from hypothesis import given, settings
from hypothesis import strategies as st
from txport.runtime.bundle.manifest import Manifest
from txport.runtime.engine import Int64
from txport.runtime.engines.native import NativeEngine, missing
from txport.runtime.engines.native_beams import NativeBeams, NativeBeamSearch
from txport.runtime.errors import InputError
from txport.runtime.search.beam import BeamSearch
from txport.runtime.search.decoding import decode_all, policy_of
from txport.runtime.search.policy import Policy
from txport.runtime.search.requests import Request, Result
from txport.runtime.search.scheduler import Scheduler
from txport.runtime.search.settings import NO_RULES, Rules, Search

pytestmark = pytest.mark.skipif(missing() is not None, reason=f"needs the fused engine's library: {missing()}")


@pytest.fixture(scope="module")
def engine(bundle: Path) -> NativeEngine:
    return NativeEngine(bundle, Manifest.load(bundle), threads=1)


def answers(engine: NativeEngine, policy: Policy, asked: Sequence[Request], rows: int) -> list[Result]:
    scheduler = Scheduler(engine, policy, rows=rows)
    scheduler.submit(asked)
    return sorted(scheduler.drain(), key=lambda result: result.index)


@settings(max_examples=80, deadline=None)
@given(
    st.lists(st.tuples(requests(), st.sampled_from([0, 30])), min_size=1, max_size=6),
    BEAMS,
    st.sampled_from([1.0, 0.4, 2.0]),
    RULES,
    st.booleans(),
    st.booleans(),
    st.integers(1, 4),
)
def test_the_library_searches_as_python_does(
    engine: NativeEngine,
    asked: list[tuple[Request, int]],
    search: Search,
    patience: float,
    rules: Rules,
    renormalize: bool,
    scores: bool,
    rows: int,
) -> None:
    search = replace(search, patience=patience, rules=replace(rules, renormalize=renormalize))
    wanted = [
        replace(request, max_length=(request.max_length or 0) + more, search=search, scores=scores)
        for request, more in asked
    ]
    expected = answers(engine, BeamSearch(engine.tokens, search, engine.vocabulary), wanted, rows)
    found = answers(engine, NativeBeamSearch(engine, search), wanted, rows)
    if rules == NO_RULES and not any(request.ruled for request in wanted):
        assert found == expected
    # Where there are rules, NumPy normalises in float64 there, and here the engine in float32.
    for ours, theirs in zip(found, expected, strict=True):
        assert [made.ids for made in ours.hypotheses] == [made.ids for made in theirs.hypotheses]
        for one, other in zip(ours.hypotheses, theirs.hypotheses, strict=True):
            assert one.score == pytest.approx(other.score, abs=1e-4)
            assert one.scores == pytest.approx(other.scores, abs=5e-6)


def test_it_is_what_the_fused_engine_searches_by(engine: NativeEngine) -> None:
    assert isinstance(policy_of(engine, Search(beam=2)), NativeBeamSearch)


def test_python_is_asked_once_for_many_steps(engine: NativeEngine) -> None:
    """As seldom as greedy search polls, unless a sentence ends."""
    calls = []

    class Counted(NativeBeamSearch):
        def choose(self, state: object, slots: object, token_ids: Int64, one_by_one: bool) -> None:
            calls.append(None)
            super().choose(state, slots, token_ids, one_by_one)  # type: ignore[arg-type]

    # No end may come, so that all tokens are made.
    search = Search(beam=3, rules=Rules(suppress=(engine.tokens.eos,)))
    request = Request([17, 30, 25, engine.tokens.eos], 64, search=search)
    (made,) = answers(engine, Counted(engine, search), [request], 1)
    assert len(made.ids) == 64 and len(calls) <= 64 / engine.poll + 2


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ({"beam": 0}, "beam is 0, which is not between 1 and 64"),
        ({"n_best": 3}, "n_best is 3, which is not between 1 and 2"),
        ({"length_penalty": float("nan")}, "length_penalty is not a finite number"),
        ({"repetition_penalty": float("inf")}, "repetition_penalty is not a finite number"),
        ({"suppress": [10**6]}, "suppress is 1000000"),
        ({"bad_words": [[5], []]}, "bad_words contains an entry without ids"),
        ({"forced_end": 10**6}, "forced_end is 1000000"),
    ],
)
def test_settings_that_cannot_be_are_refused_by_the_library(
    engine: NativeEngine, setting: dict[str, object], words: str
) -> None:
    lists = {"bad_words": [], "suppress": [], "begin_suppress": [], "end_ids": [], "forced_end": None}
    numbers = {"beam": 2, "n_best": 1, "length_penalty": 1.0, "patience": 1.0, "repetition_penalty": 1.0}
    usual = {**lists, **numbers, "early_stopping": False, "no_repeat_ngram": 0, "renormalize": 0}
    with pytest.raises(InputError, match=words):
        NativeBeams(engine, **{**usual, **setting})  # type: ignore[arg-type]


def test_a_state_and_its_sentences_must_fit(engine: NativeEngine) -> None:
    search = Search(beam=2)
    policy, other = NativeBeamSearch(engine, search), NativeBeamSearch(engine, search)
    memory = engine.encode([[5, 3]], [2])  # type: ignore[arg-type]
    request = Request([5, 3], 9, search=search)

    def refused(words: str, sentences: list[Policy | None], top: int = policy.top, rows: int = 4) -> None:
        state = engine.allocate(rows, 2, 9, top=top)
        state.place([0], memory, [0], [9])
        state.step()
        slots = [None if each is None else each.slot(0, request, 9) for each in sentences]
        with pytest.raises(InputError, match=words):
            state.read()
            policy.choose(state, slots, engine.encode, True)  # type: ignore[arg-type]

    refused("count is 1, but the state has 4 rows, 2 per sentence", [policy])
    refused("count is 2, but the state has 5 rows", [policy, None], rows=5)
    refused("a sentence belongs to another search", [other, None])
    refused("allocated with the best 3 candidates of each row, and the search needs 4", [policy, None], top=3)
    assert decode_all(engine, [request])[0].hypotheses
