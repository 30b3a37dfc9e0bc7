"""Samples and alternatives: their distribution, and that they depend on nothing but their seed and sentence."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from greedy_oracle import SOURCE, oracle
from hypothesis import given, settings
from hypothesis import strategies as st
from memory_engine import TOKENS, VOCABULARY, MemoryEngine, logits_after
from txport.runtime.bundle.schema import Limits
from txport.runtime.search.decoding import decode_all
from txport.runtime.search.requests import Request
from txport.runtime.search.sampling import draw, probabilities, uniform
from txport.runtime.search.settings import Sampling, Search

DRAWS = Path(__file__).parents[2] / "data" / "draws.json"
SAMPLING = st.builds(
    Sampling,
    st.sampled_from([0.5, 1.0, 2.0]),
    st.sampled_from([0, 1, 4]),
    st.sampled_from([1.0, 0.7]),
    st.sampled_from([0.0, 0.2]),
    st.integers(0, 2**63 - 1),
)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(SOURCE, min_size=1, max_size=6),
    SAMPLING,
    st.integers(1, 3),
    st.sampled_from([4, 7]),
    st.sampled_from([1, 2]),
    st.sampled_from([(), (6, 10)]),
)
def test_a_batch_draws_what_each_sentence_draws_alone(
    sources: list[list[int]], sampling: Sampling, count: int, rows: int, workers: int, prefix: tuple[int, ...]
) -> None:
    search = Search(n_best=count, sampling=sampling)
    asked = [Request(source, 20, prefix=prefix, key=key, search=search) for key, source in enumerate(sources)]
    together = decode_all(MemoryEngine(Limits(rows, 12, 100)), asked, workers=workers)
    assert [result.hypotheses for result in together] == [
        decode_all(MemoryEngine(), [each])[0].hypotheses for each in asked
    ]


def test_draws_are_those_that_numpy_makes() -> None:
    """The vectors of tests/data/make_draws.py, which the C++ runtime is checked with, too."""
    file = json.loads(DRAWS.read_bytes())
    for item in file["uniform"]:
        assert uniform(*map(int, item["place"])) == item["number"]
    for item in file["draws"]:
        seed, *place = map(int, item["place"])
        sampling = Sampling(item["temperature"], item["top_k"], item["top_p"], item["min_p"], seed)
        assert draw(np.array(item["logits"], np.float32), sampling, *place) == item["token"]


@settings(max_examples=60, deadline=None)
@given(SAMPLING, st.integers(0, 1000), st.booleans())
def test_what_may_be_drawn_is_what_hugging_face_leaves(sampling: Sampling, seed: int, banned: bool) -> None:
    torch = pytest.importorskip("torch", reason="needs torch: pip install 'txport[dev]'")
    warpers = pytest.importorskip("transformers", reason="needs transformers: pip install 'txport[dev]'")
    logits = (np.random.default_rng(seed).standard_normal(VOCABULARY) * 3).astype(np.float32)
    if banned:
        logits[3] = -np.inf
    scores = torch.from_numpy(logits.astype(np.float64))[None]
    parts = [warpers.TemperatureLogitsWarper(sampling.temperature)]
    if sampling.top_k:
        parts.append(warpers.TopKLogitsWarper(sampling.top_k))
    if sampling.top_p < 1:
        parts.append(warpers.TopPLogitsWarper(sampling.top_p))
    if sampling.min_p:
        parts.append(warpers.MinPLogitsWarper(sampling.min_p))
    for part in parts:
        scores = part(None, scores)
    ours = probabilities(logits, sampling)
    np.testing.assert_allclose(ours / ours.sum(), scores.softmax(-1)[0].numpy(), atol=1e-12)


def test_a_tail_of_exactly_the_mass_is_removed() -> None:
    """Of four equal tokens two have the probability 1/2, all of it that is wanted."""
    assert np.count_nonzero(probabilities(np.zeros(4, np.float32), Sampling(top_p=0.5))) == 2


def test_draws_are_of_the_distribution() -> None:
    """Chi-square, 11 degrees of freedom: above 31.3 in one of a thousand; the seed is fixed."""
    logits = np.linspace(-1, 1, VOCABULARY).astype(np.float32)
    count = 20_000
    drawn = [draw(logits, Sampling(seed=5), key, 0, 0) for key in range(count)]
    weights = probabilities(logits, Sampling())
    expected = count * weights / weights.sum()
    seen = np.bincount(drawn, minlength=VOCABULARY)
    assert ((seen - expected) ** 2 / expected).sum() < 31.3


def test_numbers_differ_by_seed_sentence_sample_and_position() -> None:
    keys = [
        (seed, key, sample, position) for seed in (0, 7) for key in (0, 1) for sample in (0, 1) for position in (0, 1)
    ]
    assert len({uniform(*each) for each in keys}) == len(keys)
    assert all(0 <= uniform(*each) < 1 for each in keys)


@pytest.mark.parametrize("prefix", [(), (6, 10)])
def test_alternatives_are_the_best_tokens_and_their_greedy_answers(prefix: tuple[int, ...]) -> None:
    source = [5, 9, 7, TOKENS.eos]
    engine = MemoryEngine()
    plain = Request(source, 30, prefix=prefix, scores=True)
    (result,) = decode_all(engine, [replace(plain, search=Search(alternatives=3))])
    logits = logits_after(source, [TOKENS.bos, *prefix], 0.0)
    best = np.argsort(-logits)[:3].tolist()
    assert [made.ids[len(prefix)] for made in result.hypotheses] == best
    for made, token in zip(result.hypotheses, best, strict=True):
        ids, scores = oracle(replace(plain, prefix=[*prefix, token]), engine.limits, 0.0)
        assert made.ids == ids
        assert made.scores == pytest.approx(scores, abs=1e-5)
