"""Beam search by its own step, which copies no cache, against the same search over rows like others."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from moved_rows import check_moves, turns
from txport.runtime.bundle.manifest import Manifest
from txport.runtime.engine import Top
from txport.runtime.engines.ort import OrtEngine
from txport.runtime.engines.ort_beams import WINDOW, OrtBeams
from txport.runtime.search.decoding import decode_all
from txport.runtime.search.requests import Request, Result
from txport.runtime.search.settings import Rules, Sampling, Search

OLD = tuple(map(int, onnxruntime.__version__.split(".")[:2])) < (1, 25)
pytestmark = pytest.mark.skipif(OLD, reason="needs ONNX Runtime 1.25 for opset 24")
SLOW = settings(deadline=None, max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
LONGEST = 40  # more than two windows of a cache


@pytest.fixture(scope="module")
def engine(attention_bundle: Path) -> OrtEngine:
    return OrtEngine(attention_bundle, Manifest.load(attention_bundle), ["ort"], threads=1)


@pytest.fixture(scope="module")
def plain(attention_bundle: Path) -> OrtEngine:
    """The same bundle as if it had been exported without the step of beam search."""
    manifest = Manifest.load(attention_bundle)
    graphs = tuple(graph for graph in manifest.graphs if graph.role != "decoder_beams")
    return OrtEngine(attention_bundle, replace(manifest, graphs=graphs), ["ort"], threads=1)


def assert_same(ours: Sequence[Result], expected: Sequence[Result]) -> None:
    for one, other in zip(ours, expected, strict=True):
        for made, wanted in zip(one.hypotheses, other.hypotheses, strict=True):
            assert made.ids == wanted.ids
            if wanted.score is not None:
                assert made.score == pytest.approx(wanted.score, abs=1e-5)
            if wanted.scores is not None:
                assert made.scores == pytest.approx(wanted.scores, abs=1e-5)


SOURCES = st.lists(st.lists(st.integers(4, 90), min_size=1, max_size=9), min_size=1, max_size=7)
SEARCHES = st.one_of(
    st.builds(
        Search,
        beam=st.integers(2, 9),  # 9 need more candidates than the graph gives
        n_best=st.just(2),
        length_penalty=st.sampled_from([0.0, 1.0]),
        early_stopping=st.sampled_from([False, True, "never"]),
        rules=st.sampled_from([Rules(), Rules(no_repeat_ngram=2), Rules(end_ids=(7,))]),
    ),
    st.builds(Search, n_best=st.integers(2, 4), sampling=st.just(Sampling(temperature=1.5))),
    st.builds(Search, alternatives=st.integers(2, 4)),
)


@SLOW
@given(SOURCES, SEARCHES, st.data())
def test_answers_are_those_of_plain_rows(
    engine: OrtEngine, plain: OrtEngine, sources: list[list[int]], search: Search, data: st.DataObject
) -> None:
    """With refills, moves, more rows and longer caches on the way."""
    limits = st.sampled_from([1, 5, LONGEST])
    requests = [
        Request(
            [*source, engine.tokens.eos], data.draw(limits), prefix=data.draw(st.sampled_from([[], [8]])), scores=True
        )
        for source in sources
    ]
    requests = [replace(request, search=search) for request in requests]
    rows = data.draw(st.integers(1, 4))
    assert_same(decode_all(engine, requests, rows=rows), decode_all(plain, requests, rows=rows))


class Single:
    """The engine, all of whose states are of the step of beam search, with one beam."""

    def __init__(self, engine: OrtEngine) -> None:
        self._engine = engine

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def allocate(self, rows: int, source: int, target: int, **outputs: Any) -> OrtBeams:
        assert self._engine.beam_steps is not None
        return OrtBeams.of(self._engine.beam_steps, (rows, source, target), 1, logits=False, top=1)


@SLOW
@given(
    st.lists(st.lists(st.integers(4, 90), min_size=1, max_size=9), min_size=1, max_size=4),
    st.lists(st.integers(1, LONGEST), min_size=4, max_size=4),
    turns(st.integers(4, 90), 4),
)
def test_rows_of_one_beam_move_as_all_rows_do(
    engine: OrtEngine, plain: OrtEngine, sources: list[list[int]], limits: list[int], walk: list[Any]
) -> None:
    walk = [replace(turn, order=()) for turn in walk]  # a beam alone has no other to continue

    def after(source: Sequence[int], made: Sequence[int]) -> int:
        (result,) = decode_all(plain, [Request(source, len(made) + 1, prefix=made)])
        return result.ids[-1]

    check_moves(Single(engine), sources, limits[: len(sources)], walk, after)


def states(engine: OrtEngine, plain: OrtEngine, beams: int, source: Sequence[int], top: int) -> Iterator[Any]:
    """The same sentence twice in each engine's state."""
    for each in (engine, plain):
        state = each.allocate(2 * beams, len(source), LONGEST, top=top, beams=beams)
        memory = each.encode(np.array([source, source]), np.array([len(source)] * 2))
        state.place([0, beams], memory, [0, 1], [LONGEST] * 2)
        yield state


@SLOW
@given(st.integers(2, 5), st.integers(0, 2**16))
def test_candidates_after_random_forks(engine: OrtEngine, plain: OrtEngine, beams: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    both = list(states(engine, plain, beams, [5, 7, 9, engine.tokens.eos], 2 * beams))
    assert isinstance(both[0], OrtBeams) and not isinstance(both[1], OrtBeams)
    rows = range(2 * beams)
    for turn in range(WINDOW + 3):
        found: list[Top] = []
        order = [row // beams * beams + (int(random.integers(beams)) if turn else 0) for row in rows]
        tokens = random.integers(4, 90, len(rows)).tolist()
        for state in both:
            state.step()
            state.read()
            found.append(state.top(2 * beams))
            state.reorder(order)
            state.override(rows, tokens, [False] * len(rows))
        placed = slice(None) if turn else [0, beams]
        scores = [(top.logits - top.normaliser[:, None])[placed] for top in found]
        np.testing.assert_allclose(scores[0], scores[1], atol=1e-5)
        for ids, likely, expected in zip(found[0].token_ids[placed], scores[0], _by_id(found[1], placed), strict=True):
            # Two that are nearly as likely may change places; the last one with one that is not there.
            differences = [score - expected.get(int(i), likely[-1]) for i, score in zip(ids, likely, strict=True)]
            assert np.abs(differences).max() <= 1e-5


def _by_id(top: Top, rows: Any) -> list[dict[int, float]]:
    """The scores of a row's candidates."""
    scores = top.logits - top.normaliser[:, None]
    pairs = zip(top.token_ids[rows].tolist(), scores[rows].tolist(), strict=True)
    return [dict(zip(ids, values, strict=True)) for ids, values in pairs]


def test_no_cache_is_copied(engine: OrtEngine, plain: OrtEngine) -> None:
    """Nor is what the encoder gave: a sentence's is there once, where the encoder wrote it."""
    source = [5, 7, 9, engine.tokens.eos]
    memory = engine.encode(np.array([source]), np.array([4]))
    state = engine.allocate(4, 4, LONGEST, top=8, beams=4)
    state.place([0], memory, [0], [LONGEST])
    state.step()
    before = {name: state._buffers[name].copy() for name in state._buffers if name.startswith(("self_key", "self_val"))}
    state.reorder([0, 0, 0, 0])
    for name, values in before.items():
        np.testing.assert_array_equal(state._buffers[name], values)
    assert all(np.shares_memory(state._buffers[name], values) for name, values in memory.items())


LAST = 20  # positions of a model: more than one window of a cache, fewer than two


@pytest.fixture(scope="module", params=["sinusoidal", "learned", "rotary", "relative"])
def short(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle of a random model with `LAST` positions, which never chooses eos."""
    torch = pytest.importorskip("torch", reason="needs PyTorch to export a bundle")
    from numpy_runner import random_model
    from txport.exporter.export import ExportOptions, export_bundle
    from txport.models.checkpoint import save_checkpoint

    model = random_model(positions=request.param, max_positions=LAST, projection_bias=True)
    with torch.no_grad():
        model.projection.bias[model.config.eos_id] = -1e4
    directory = tmp_path_factory.mktemp("short")
    save_checkpoint(directory / "checkpoint", model, None, ["4 5 6"], {})
    options = ExportOptions(lowerings=("ort",), beams=True, verify=False)
    export_bundle(directory / "checkpoint", directory / "bundle", options)
    return directory / "bundle"


def test_a_sentence_at_the_last_position_waits_for_others(short: Path) -> None:
    """The sentence of the third limit ends there, while those that have taken the rows of the first two continue."""
    manifest = Manifest.load(short)
    plain = replace(manifest, graphs=tuple(graph for graph in manifest.graphs if graph.role != "decoder_beams"))
    search = Search(beam=3, n_best=3)
    limits = [3, 4, LAST, LAST, LAST]
    requests = [Request([5, 7, 9 + i, manifest.tokens.eos], limit, search=search) for i, limit in enumerate(limits)]
    ours, expected = (
        decode_all(OrtEngine(short, each, ["ort"], threads=1), requests, rows=3) for each in (manifest, plain)
    )
    assert_same(ours, expected)
    assert [len(result.ids) for result in ours] == limits
