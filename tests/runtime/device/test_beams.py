"""Beams on a device, over memory that checks every access: no cache is copied, and the answers are those of the CPU."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from device_engines import engine_on, manifest_of, reading_vectors
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from memory_device import HashProgram, MemoryDevice
from memory_engine import TOKENS, MemoryEngine
from txport.runtime.bundle.manifest import Manifest
from txport.runtime.bundle.schema import Graph, Limits
from txport.runtime.device.beams import DeviceBeams
from txport.runtime.device.buffers import StepSizes, bytes_needed
from txport.runtime.device.engine import DeviceEngine
from txport.runtime.engine import DecoderState, Engine
from txport.runtime.engines.ort import OrtEngine
from txport.runtime.engines.ort_beams import OrtBeams
from txport.runtime.engines.ort_cuda import OrtProgram
from txport.runtime.errors import EngineError, ResourceError
from txport.runtime.search.decoding import decode_all
from txport.runtime.search.requests import Request, Result
from txport.runtime.search.settings import Rules, Search

OLD = tuple(map(int, onnxruntime.__version__.split(".")[:2])) < (1, 25)
SLOW = settings(deadline=None, max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
LONGEST = 70  # more than two lengths of caches
SEARCHES = st.one_of(
    st.builds(
        Search,
        beam=st.sampled_from([2, 3, 4]),
        n_best=st.just(2),
        length_penalty=st.sampled_from([0.0, 1.0]),
        early_stopping=st.sampled_from([False, True, "never"]),
        rules=st.sampled_from([Rules(), Rules(no_repeat_ngram=2), Rules(end_ids=(7,))]),
    ),
    st.builds(Search, alternatives=st.integers(2, 4)),
)


def assert_same(ours: Sequence[Result], expected: Sequence[Result]) -> None:
    for one, other in zip(ours, expected, strict=True):
        assert [made.ids for made in one.hypotheses] == [wanted.ids for wanted in other.hypotheses]
        for made, wanted in zip(one.hypotheses, other.hypotheses, strict=True):
            assert made.score == (None if wanted.score is None else pytest.approx(wanted.score, abs=1e-5))
            assert made.scores == (None if wanted.scores is None else pytest.approx(wanted.scores, abs=1e-5))


def requests_of(data: st.DataObject, search: Search, words: int, ends: int) -> list[Request]:
    """Some requests, short and long, that are refilled into few rows."""
    source = st.lists(st.integers(4, words), min_size=1, max_size=9).map(lambda ids: [*ids, ends])
    limits, prefixes = st.sampled_from([1, 5, 33, LONGEST]), st.sampled_from([[], [8]])
    request = st.builds(Request, source, limits, st.just(0), prefixes, st.just(True), search=st.just(search))
    return data.draw(st.lists(request, min_size=1, max_size=7))


def hash_engine(device: MemoryDevice, rows: int = 12, features: bool = False) -> tuple[DeviceEngine, HashProgram]:
    return engine_on(device, batches=(1, 3, rows), targets=(32, 100), features=features)


@settings(deadline=None, max_examples=60)
@given(st.data(), SEARCHES, st.booleans(), st.booleans())
def test_any_batch_gives_what_each_sentence_gives_alone(
    data: st.DataObject, search: Search, lazy: bool, features: bool
) -> None:
    """By a model that sees each token of each hypothesis, read back from the caches."""
    engine, _ = hash_engine(MemoryDevice(lazy), features=features)
    requests = requests_of(data, search, 11, TOKENS.eos)
    expected = decode_all(MemoryEngine(Limits(12, 40, 100)), requests)
    if features:
        requests = reading_vectors(requests)
    for rows in (None, 1, 2, 3):
        assert_same(decode_all(engine, requests, rows=rows), expected)


class LateSession:
    """A session of ONNX Runtime's CPU provider, whose runs are work of a device's stream: as late as it may be."""

    def __init__(self, session: Any, device: MemoryDevice) -> None:
        self._session, self._device = session, device

    def io_binding(self) -> Any:
        return self._session.io_binding()

    def run_with_iobinding(self, *arguments: object) -> None:
        self._device.enqueue(partial(self._session.run_with_iobinding, *arguments))


class Enqueuing(OrtProgram):
    """A program whose runs are captured as work of the device's stream."""

    def __init__(self, bundle: Path, manifest: Manifest, device: MemoryDevice) -> None:
        super().__init__(bundle, manifest, manifest.lowerings, device, provider="cpu")
        self.captures = self.captured = True
        for name in ("_encoder", "_step", "_beam_step"):
            setattr(self, name, LateSession(getattr(self, name), device))


def real_engine(bundle: Path, device: MemoryDevice) -> DeviceEngine:
    manifest = Manifest.load(bundle)
    return DeviceEngine(device, manifest, Enqueuing(bundle, manifest, device))


needs_opset_24 = pytest.mark.skipif(OLD, reason="needs ONNX Runtime 1.25 for opset 24")


@pytest.fixture(scope="module")
def host(attention_bundle: Path) -> OrtEngine:
    return OrtEngine(attention_bundle, Manifest.load(attention_bundle), ["scatter"], threads=1)


@needs_opset_24
@SLOW
@given(st.data(), SEARCHES, st.sampled_from([1, 2, 4]))
def test_the_real_step_gives_the_answers_of_the_cpu(
    attention_bundle: Path, host: OrtEngine, data: st.DataObject, search: Search, rows: int
) -> None:
    engine = real_engine(attention_bundle, MemoryDevice())
    requests = requests_of(data, search, 90, host.tokens.eos)
    expected = decode_all(host, requests, rows=rows)
    assert_same(decode_all(engine, requests, rows=rows), expected)
    assert_same(decode_all(engine, requests, rows=rows), expected)


def begun(engine: Engine, beams: int, target: int = 100, top: int = 8) -> DecoderState:
    """Two sentences, of which the second is placed."""
    state = engine.allocate(2 * beams, 4, 32, top=top, beams=beams)
    source = [5, 7, 9, TOKENS.eos]
    state.place([beams], engine.encode(np.array([source]), np.array([4])), [0], [target])
    return state


def test_reordering_copies_nothing_and_a_step_exchanges_two_blocks() -> None:
    device = MemoryDevice()
    engine, program = hash_engine(device)
    state = begun(engine, 4)
    assert isinstance(state, DeviceBeams)
    state.step()
    state.read()  # the step is captured by then
    copies, enqueued, captures, steps = device.copies, device.enqueued, device.captures, len(program.launched)
    for _ in range(20):
        state.reorder([0, 1, 2, 3, 4, 4, 7, 4])
        state.override(range(4, 8), [5, 6, 7, 8], [False] * 4)
        state.step()
        state.read()
    assert device.copies == copies and device.captures == captures and len(program.launched) == steps + 20
    assert device.enqueued == enqueued + 20 * 3, "an upload, the step and a download"


def test_a_search_copies_what_it_places_and_what_moves_and_nothing_else() -> None:
    """As many copies of the device as greedy search makes over one batch, whatever the hypotheses do."""
    request = Request([5, 7, 9, TOKENS.eos], 30, search=Search(beam=4, n_best=4))
    counts = []
    for each in (request, replace(request, search=Search())):
        device = MemoryDevice()
        engine, program = hash_engine(device)
        program.eos_weight = -99.0
        decode_all(engine, [each])
        before = device.copies, len(program.launched)
        decode_all(engine, [each])
        assert len(program.launched) - before[1] == 30
        counts.append(device.copies - before[0])
    assert counts[0] == counts[1] > 0


@settings(deadline=None, max_examples=40)
@given(st.integers(2, 4), st.integers(0, 2**16), st.booleans())
def test_forks_and_moves_at_random(beams: int, seed: int, lazy: bool) -> None:
    """Sentences that are copied, dropped and moved to longer caches go on as in an engine that copies rows."""
    random = np.random.default_rng(seed)
    states = [begun(hash_engine(MemoryDevice(lazy))[0], beams), begun(MemoryEngine(Limits(12, 40, 100)), beams)]
    order, count = [0, 1], 2
    placed = np.array([False, True])
    for turn in range(40):
        rows = range(count * beams)
        if turn % 5 == 4:
            others = [int(random.integers(count)) for _ in range(random.integers(0, 12 // beams))]
            order = [*others, int(placed.nonzero()[0][0])]
            placed, count = placed[order], len(order)
            moved = [sentence * beams + beam for sentence in order for beam in range(beams)]
            target = max(32, 2 * turn)
            states = [state.resized(moved, target) for state in states]
            rows = range(count * beams)
        here = placed.repeat(beams)
        outputs = []
        for state in states:
            state.step()
            outputs.append(state.read())
        assert (outputs[0].finished == outputs[1].finished)[here & (turn > 0)].all()
        tops = [state.top(2 * beams) for state in states]
        shown = here if turn else here & (np.arange(len(here)) % beams == 0)
        np.testing.assert_array_equal(tops[0].token_ids[shown], tops[1].token_ids[shown])
        scores = [(top.logits - top.normaliser[:, None])[shown] for top in tops]
        np.testing.assert_allclose(*scores, atol=1e-5)
        forks = [row // beams * beams + (int(random.integers(beams)) if turn else 0) for row in rows]
        tokens = random.integers(4, 11, len(rows)).tolist()
        working = [row for row in rows if here[row]]
        for state in states:
            state.reorder(forks)
            state.override(working, [tokens[row] for row in working], [False] * len(working))


def test_groups_of_steps_and_more_candidates_than_the_graph_gives() -> None:
    """What a search may ask for although beams do not: the host then follows each step by itself."""
    engine, program = hash_engine(MemoryDevice())
    program.eos_weight = -99.0
    states = [begun(engine, 2), begun(MemoryEngine(Limits(12, 40, 100), poll=4, eos_weight=-99.0), 2)]
    outputs = []
    for state in states:
        state.step(3)
        state.step(2)
        outputs.append([state.read(), state.read()])
    for one, other in zip(*outputs, strict=True):
        np.testing.assert_array_equal(one.token_ids[:, 2], other.token_ids[:, 2])
        assert one.token_ids.shape == other.token_ids.shape and one.finished[2] == other.finished[2]
    wide = begun(engine, 2, top=20)
    wide.step(5)
    wide.read()
    assert wide.top(20).token_ids.shape == (4, 20)
    expected = states[1].top(8)
    for top in (states[0].top(8), wide.top(20)):
        np.testing.assert_array_equal(top.token_ids[2, :8], expected.token_ids[2])
        np.testing.assert_allclose(top.logits[2, :8], expected.logits[2], atol=1e-5)
        np.testing.assert_allclose(top.normaliser[2], expected.normaliser[2], atol=1e-5)


def test_without_the_step_caches_are_gathered() -> None:
    class Without(HashProgram):
        def graph_of(self, beams: int) -> Graph | None:
            return self.step_graph if beams == 1 else None

    device, manifest = MemoryDevice(), manifest_of()
    engine = DeviceEngine(device, manifest, Without(device, manifest, manifest.step("scatter"), (12,), (100,)))
    request = Request([5, 7, 9, TOKENS.eos], 30, search=Search(beam=3, n_best=2))
    assert not isinstance(engine.allocate(6, 4, 32, beams=3), DeviceBeams)
    assert_same(decode_all(engine, [request]), decode_all(MemoryEngine(Limits(12, 40, 100)), [request]))


def test_too_little_memory_says_what_would_fit() -> None:
    one, three = (bytes_needed(manifest_of(), StepSizes(count, 32, 32, True, 4), "int32") for count in (1, 3))
    engine, _ = hash_engine(MemoryDevice(room=(one + three) // 2))
    said = r"a batch of 3 sentences in 4 rows each, of 32 source and 32 target tokens: .* a batch of 1 would fit"
    with pytest.raises(ResourceError, match=said):
        engine.allocate(12, 4, 32, beams=4)
    assert engine.allocate(4, 4, 32, beams=4).rows == 4


def test_a_device_that_fails_with_a_step_under_way_is_not_used_again() -> None:
    device = MemoryDevice()
    state = begun(hash_engine(device)[0], 2)
    state.step()
    device.broken = "an illegal memory access was encountered"
    with pytest.raises(EngineError, match="illegal memory access"):
        state.read()
    device.broken = None
    with pytest.raises(EngineError, match="create the Translator again"):
        state.step()


@needs_opset_24
def test_the_state_is_that_of_the_cpu_in_all_it_shows(attention_bundle: Path, host: OrtEngine) -> None:
    """The same candidates, normalisers and flags, to the last digit: both run the same step."""
    states = [begun(engine, 4, 25) for engine in (real_engine(attention_bundle, MemoryDevice()), host)]
    assert isinstance(states[0], DeviceBeams) and isinstance(states[1], OrtBeams)
    random = np.random.default_rng(3)
    for turn in range(25):
        order = [*range(4), *(4 + int(random.integers(4)) if turn else 4 for _ in range(4))]
        tokens = random.integers(4, 90, 4).tolist()
        outputs, tops = [], []
        for state in states:
            state.step()
            outputs.append(state.read())
            tops.append(state.top(8))
            state.reorder(order)
            state.override(range(4, 8), tokens, [turn == 20] * 4)
        rows = slice(4, None if turn else 5)
        np.testing.assert_array_equal(outputs[0].token_ids, outputs[1].token_ids)
        np.testing.assert_array_equal(outputs[0].finished, outputs[1].finished)
        np.testing.assert_array_equal(tops[0].token_ids[rows], tops[1].token_ids[rows])
        np.testing.assert_allclose(tops[0].logits[rows], tops[1].logits[rows], atol=1e-5)
        np.testing.assert_allclose(tops[0].normaliser[rows], tops[1].normaliser[rows], atol=1e-5)
