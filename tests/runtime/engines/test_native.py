"""The fused engine from Python: a bundle, the library's place, errors, what takes its place.

Its arithmetic is compared with PyTorch in tests/exporter/test_fused.py.
"""

import dataclasses
import functools
import logging
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from moved_rows import LIMITS, WALK, Turn, check_moves
from toy import BUNDLE
from txport.runtime import Translator
from txport.runtime.bundle.archive import Archive, write_archive
from txport.runtime.bundle.manifest import NAME, Manifest
from txport.runtime.engine import log_probabilities
from txport.runtime.engines import native
from txport.runtime.engines.choice import choose, open_engine
from txport.runtime.engines.native import NativeEngine, find_library, missing
from txport.runtime.engines.native_state import MAX_STEPS
from txport.runtime.engines.ort import OrtEngine
from txport.runtime.errors import BundleError, EngineError, InputError, MissingLibrary
from txport.runtime.golden import check_translator, load_golden
from txport.runtime.search.decoding import decode_all
from txport.runtime.search.requests import Request
from txport.runtime.search.settings import Rules, Search

needs_library = pytest.mark.skipif(missing() is not None, reason=f"needs the fused engine's library: {missing()}")
SOURCES = st.lists(st.lists(st.integers(4, 99), max_size=11).map(lambda ids: [*ids, 3]), min_size=1, max_size=4)


@pytest.fixture(scope="module")
def engine(bundle: Path) -> NativeEngine:
    return NativeEngine(bundle, Manifest.load(bundle), threads=1)


@functools.cache
def _ort(bundle: Path) -> OrtEngine:
    return OrtEngine(bundle, Manifest.load(bundle), threads=1)


@needs_library
def test_it_is_what_the_manifest_says(bundle: Path, engine: NativeEngine) -> None:
    manifest = Manifest.load(bundle)
    assert engine.name.startswith("fused cpu (") and "float32 weights" in engine.name
    assert (engine.limits, engine.tokens) == (manifest.limits, manifest.tokens)
    assert engine.vocabulary == manifest.model.target_vocabulary and 1 < engine.poll <= MAX_STEPS


@needs_library
@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="AVX2 is an instruction set of x86-64")
def test_the_instruction_set_can_be_limited(bundle: Path) -> None:
    """In a process for each value, since the variable is read once."""
    code = "from txport.runtime.entry import inspect; inspect()"
    for limit, expected in (("AVX2", r"fused cpu \(AVX2, "), ("AVX", "TXPORT_MAX_ISA is 'AVX': set it to AVX2")):
        command = [sys.executable, "-c", code, str(bundle), "--check"]
        environment = {**os.environ, "TXPORT_MAX_ISA": limit}
        run = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert re.search(expected, run.stdout + run.stderr), run
        assert run.returncode == (0 if limit == "AVX2" else 2)


@needs_library
def test_weights_in_an_archive_are_those_of_the_file(bundle: Path, tmp_path: Path) -> None:
    """From a part of a file, and from memory; the search and its candidates see the same numbers."""
    manifest = Manifest.load(bundle)
    with (tmp_path / "model.txb").open("wb") as file:
        write_archive(file, bundle, [NAME, *manifest.files])
    data = (tmp_path / "model.txb").read_bytes()
    requests = [Request(tuple(case.source_ids), 20, scores=True) for case in load_golden(bundle).cases[:4]]
    expected = decode_all(NativeEngine(bundle, manifest, threads=1), requests)
    for files in (tmp_path / "model.txb", Archive(memoryview(data), "it")):
        engine = NativeEngine(files, manifest, threads=1)
        assert decode_all(engine, requests) == expected
        with Translator(data if isinstance(files, Archive) else files, "cpu", "fused") as translator:
            assert check_translator(translator, load_golden(files)) == []


@needs_library
def test_weights_in_memory_begin_where_numbers_may(bundle: Path, tmp_path: Path) -> None:
    manifest = Manifest.load(bundle)
    with (tmp_path / "model.txb").open("wb") as file:
        write_archive(file, bundle, [NAME, *manifest.files])
    data = np.frombuffer(b"1" + (tmp_path / "model.txb").read_bytes(), np.uint8)
    with pytest.raises(InputError, match="not at a multiple of 4 bytes"):
        NativeEngine(Archive(data.data[1:], "it"), manifest)


@needs_library
def test_a_bundle_gives_the_ids_that_it_was_exported_with(bundle: Path) -> None:
    with Translator(bundle, "cpu", "fused") as translator:
        assert translator.engine.name.startswith("fused")
        assert check_translator(translator, load_golden(bundle)) == []
        texts = ["See you at 5 pm.", "", "It cost $12.50."]
        ours = translator.translate(texts, scores=True)
        pieces = [piece.id for piece in translator.stream(texts[0])]
    theirs = Translator(bundle, "cpu", "ort").translate(texts, scores=True)
    assert pieces == ours[0].ids
    for one, other in zip(ours, theirs, strict=True):
        assert (one.text, one.ids) == (other.text, other.ids)
        np.testing.assert_allclose(one.scores or [], other.scores or [], atol=1e-4)


@needs_library
def test_workers_share_one_engine(bundle: Path) -> None:
    rng = np.random.default_rng(0)
    sources = [[*rng.integers(4, 200, rng.integers(0, 30)).tolist(), 3] for _ in range(60)]
    with Translator(bundle, "cpu", "fused", workers=2, batch=16) as many, Translator(bundle, "cpu", "fused") as one:
        assert [x.ids for x in many.translate_ids(sources)] == [x.ids for x in one.translate_ids(sources)]


@needs_library
@settings(max_examples=25, deadline=None)
@given(sources=SOURCES, limits=LIMITS, walk=WALK)
def test_rows_move_repeat_and_are_refilled(
    bundle: Path, engine: NativeEngine, sources: list[list[int]], limits: list[int], walk: list[Turn]
) -> None:
    def after(source: Sequence[int], made: Sequence[int]) -> int:
        return decode_all(_ort(bundle), [Request(source, len(made) + 1, prefix=made)])[0].ids[-1]

    check_moves(engine, sources, limits[: len(sources)], walk, after)


@needs_library
def test_many_steps_are_one_call_or_few(engine: NativeEngine) -> None:
    """As one by one, and groups that were not read yet come in order."""
    source = np.array([[17, 30, 25, 3], [40, 3, 0, 0]])
    memory = engine.encode(source, np.array([4, 2]))
    made = []
    for counts in ([MAX_STEPS + 6], [1] * (MAX_STEPS + 6), [3, MAX_STEPS, 3]):
        state = engine.allocate(3, 4, 80)
        state.place([2, 0], memory, [0, 1], [80, 80])
        for count in counts:
            state.step(count)
        outputs = [state.read() for _ in counts]
        assert [len(output.token_ids) for output in outputs] == counts
        assert all(output.finished[1] for output in outputs), "a row that was never placed"
        made.append(np.concatenate([output.token_ids for output in outputs]))
        assert (made[-1][:, 1] == engine.tokens.pad).all()
    np.testing.assert_array_equal(made[0], made[1])
    np.testing.assert_array_equal(made[0], made[2])


@needs_library
def test_arrays_of_any_form_are_taken(engine: NativeEngine) -> None:
    """Ids of 32 bits, columns of a larger array, Fortran's order."""
    ids = np.array([[17, 30, 25, 3], [40, 41, 42, 3]])
    lengths = np.array([4, 4])
    wide = np.zeros((2, 8), np.int64)
    wide[:, ::2] = ids
    forms = [(ids, lengths), (ids.astype(np.int32), lengths.astype(np.int32)), (wide[:, ::2], lengths)]
    forms.append((np.asfortranarray(ids), lengths[::-1]))
    found = []
    for given_ids, given_lengths in forms:
        state = engine.allocate(2, 4, 16, logits=True)
        state.place([0, 1], engine.encode(given_ids, given_lengths), [0, 1], [16, 16])
        state.step(1)
        state.read()
        found.append(state.logits())
    for logits in found[1:]:
        np.testing.assert_array_equal(logits, found[0])


@needs_library
def test_tokens_are_scored_by_the_library(engine: NativeEngine) -> None:
    state = engine.allocate(2, 4, 16, logits=True)
    state.place([0, 1], engine.encode(np.array([[17, 30, 25, 3], [40, 3, 0, 0]]), np.array([4, 2])), [0, 1], [16, 16])
    state.step(1)
    state.read()
    rows, token_ids = [1, 0, 1], [3, 17, 90]
    expected = log_probabilities(state.logits()[rows], token_ids)
    np.testing.assert_allclose(state.log_probabilities(rows[:2], token_ids[:2]), expected[:2], rtol=0, atol=1e-6)
    np.testing.assert_allclose(state.log_probabilities(rows[2:], token_ids[2:]), expected[2:], rtol=0, atol=1e-6)


@needs_library
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("words", [None, [3, 17, 41, 90]])
def test_logits_that_were_not_stored_are_the_same_bits(bundle: Path, threads: int, words: list[int] | None) -> None:
    engine = NativeEngine(bundle, Manifest.load(bundle), threads=threads)
    assert engine.recomputes_logits
    memory = engine.encode(np.array([[17, 30, 25, 3], [40, 3, 0, 0]]), np.array([4, 2]))
    stored, others = (engine.allocate(2, 4, 16, logits=logits) for logits in (True, False))
    for state in (stored, others):
        state.place([0, 1], memory, [0, 1], [16, 16])
        if words is not None:
            state.restrict([1], [np.array(words)])
    for _ in range(3):
        for state in (stored, others):
            state.step(1)
            state.read()
        np.testing.assert_array_equal(others.logits(), stored.logits())
        np.testing.assert_array_equal(others.logits([1]), stored.logits([1]))
        chosen = [0, 1, 1], [3, 17, 90]
        for row, token in zip(*chosen, strict=True):
            assert others.log_probabilities([row], [token]) == stored.log_probabilities([row], [token])
        for state in (stored, others):
            state.override([0, 1], [17, 17], [False, False])


@needs_library
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_candidates_are_those_of_all_logits(bundle: Path, threads: int) -> None:
    engine = NativeEngine(bundle, Manifest.load(bundle), threads=threads)
    memory = engine.encode(np.array([[17, 30, 25, 3], [40, 3, 0, 0]]), np.array([4, 2]))
    k = 12
    with_logits, without = (engine.allocate(2, 4, 16, logits=logits, top=k) for logits in (True, False))
    for state in (with_logits, without):
        state.place([0, 1], memory, [0, 1], [16, 16])
    for _ in range(3):
        for state in (with_logits, without):
            state.step(1)
            state.read()
        logits = with_logits.logits().astype(np.float64)
        order = np.argsort(-logits, axis=1, kind="stable")
        for top, width in [(with_logits.top(k), k), (without.top(5), 5)]:
            np.testing.assert_array_equal(top.token_ids, order[:, :width])
            np.testing.assert_array_equal(top.logits, np.take_along_axis(logits, order[:, :width], axis=1))
            np.testing.assert_allclose(top.normaliser, np.log(np.exp(logits).sum(axis=1)), rtol=0, atol=1e-6)
        for state in (with_logits, without):
            state.override([0, 1], order[:, 1].tolist(), [False, False])


@needs_library
def test_misuse_is_one_sentence(engine: NativeEngine) -> None:
    state = engine.allocate(1, 4, 16)
    state.place([0], engine.encode(np.array([[17, 3]]), np.array([2])), [0], [40])
    with pytest.raises(InputError, match="end of its cache"):
        state.step(17)
    with pytest.raises(InputError, match="allocated without candidates: allocate it with top"):
        state.top(1)
    with pytest.raises(InputError, match="k is 3, which is not between 1 and 2"):
        engine.allocate(1, 4, 16, top=2).top(3)
    with pytest.raises(InputError, match=f"top is {engine.vocabulary + 1}, which is not between 0"):
        engine.allocate(1, 4, 16, top=engine.vocabulary + 1)
    with pytest.raises(InputError):
        state.place([1], engine.encode(np.array([[17, 3]]), np.array([2])), [0], [16])


@needs_library
def test_a_step_that_is_refused_makes_nothing_and_those_before_it_are_read(engine: NativeEngine) -> None:
    state = engine.allocate(1, 4, MAX_STEPS)
    with pytest.raises(InputError, match="nothing to read: step first"):
        state.read()
    state.place([0], engine.encode(np.array([[17, 3]]), np.array([2])), [0], [MAX_STEPS + 8])
    state.step(2)
    with pytest.raises(InputError, match="end of its cache"):
        state.step(MAX_STEPS)
    assert state.read().token_ids.shape == (2, 1)
    state.step(3)
    assert state.read().token_ids.shape == (3, 1)
    with pytest.raises(InputError, match="count is -1, which is not between 1 and 64"):
        state.step(-1)
    with pytest.raises(InputError, match="nothing to read"):
        state.read()


@needs_library
def test_arrays_of_different_lengths_are_refused(engine: NativeEngine) -> None:
    source, lengths = np.array([[17, 3], [30, 3]]), np.array([2, 2])
    with pytest.raises(InputError, match="source_lengths has 1 elements and input_ids 2: each needs one for the other"):
        engine.encode(source, lengths[:1])
    memory, state = engine.encode(source, lengths), engine.allocate(2, 4, 16)
    with pytest.raises(InputError, match="memory_rows has 1 elements and rows 2"):
        state.place([0, 1], memory, [0], [8, 8])
    with pytest.raises(InputError, match="target_limits has 3 elements and rows 2"):
        state.place([0, 1], memory, [0, 1], [8, 8, 8])
    state.place([0, 1], memory, [0, 1], [8, 8])
    with pytest.raises(InputError, match="token_ids has 1 elements and rows 2"):
        state.override([0, 1], [5], [False, False])
    with pytest.raises(InputError, match="finished has 1 elements and rows 2"):
        state.override([0, 1], [5, 5], [False])


@needs_library
def test_a_damaged_file_of_weights_is_refused(bundle: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(bundle, tmp_path / "copy", ignore=shutil.ignore_patterns("engines"))
    with (copy / "onnx" / "weights.bin").open("ab") as file:
        file.write(b"x")
    manifest = Manifest.load(bundle)
    with pytest.raises(BundleError, match=r"weights\.bin has \d+ bytes instead of \d+"):
        NativeEngine(copy, manifest)
    with pytest.raises(BundleError, match=r"weights\.bin cannot be mapped"):
        NativeEngine(tmp_path, manifest)


@needs_library
def test_a_bundle_that_it_cannot_run_falls_to_onnx_runtime(
    bundle: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: object) -> None:
        raise EngineError("the fused engine cannot run it: its heads are of 7")

    manifest = dataclasses.replace(Manifest.load(bundle), verification=None)
    monkeypatch.setattr(native, "NativeEngine", refuse)
    choice = choose(manifest, "cpu", bundle=bundle)
    assert choice.attempts == [("fused", None), *(("ort", lowering) for lowering in manifest.lowerings)]
    with caplog.at_level(logging.WARNING, "txport"):
        assert "ONNX Runtime" in open_engine(bundle, manifest, choice, 1).name
    assert caplog.messages == ["the fused engine cannot run it: its heads are of 7; ONNX Runtime is used instead"]
    with pytest.raises(EngineError, match="heads are of 7"):
        open_engine(bundle, manifest, choose(manifest, "cpu", "fused", bundle=bundle))


# --- where there is no library ---------------------------------------------------------------------------------------


def test_without_the_library_everything_runs_on_onnx_runtime(
    bundle: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(native.VARIABLE, "")
    assert find_library() is None
    manifest = dataclasses.replace(Manifest.load(bundle), verification=None)
    with caplog.at_level(logging.INFO, "txport"):
        for _ in range(2):
            assert "ONNX Runtime" in open_engine(bundle, manifest, choose(manifest, "cpu"), 1).name
    assert caplog.messages == [f"ONNX Runtime runs the bundle: {missing()}"], "it is said once"
    choice = choose(manifest, "cpu")
    assert choice.engine == "ort" and f"; {missing()}; ONNX Runtime runs" in choice.reason
    assert "make fused" in (missing() or "")
    with pytest.raises(MissingLibrary, match="the fused engine cannot be used: .* make fused"):
        choose(Manifest.load(bundle), "cpu", "fused")
    with pytest.raises(MissingLibrary, match="make fused"):
        NativeEngine(bundle, manifest)


def test_a_library_that_is_none_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(native.VARIABLE, str(tmp_path / "nowhere.so"))
    with pytest.raises(MissingLibrary, match=r"nowhere\.so cannot be loaded .*make fused"):
        NativeEngine(BUNDLE, Manifest.load(BUNDLE))
    (tmp_path / "text.so").write_text("no library")
    monkeypatch.setenv(native.VARIABLE, str(tmp_path / "text.so"))
    with pytest.raises(MissingLibrary, match=r"text\.so cannot be loaded"):
        NativeEngine(BUNDLE, Manifest.load(BUNDLE))


@needs_library
def test_a_library_of_another_version_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library = find_library()
    assert library is not None
    copy = tmp_path / "old.so"
    shutil.copyfile(library, copy)
    monkeypatch.setenv(native.VARIABLE, str(copy))
    monkeypatch.setattr(native, "VERSION", "99.0.0")
    with pytest.raises(MissingLibrary, match=r"old\.so is of txport \S+, and this is 99\.0\.0"):
        NativeEngine(BUNDLE, Manifest.load(BUNDLE))


@needs_library
def test_a_bundle_without_parameters_is_refused_by_the_library_too() -> None:
    with pytest.raises(EngineError, match="fused engine cannot run"):
        NativeEngine(BUNDLE, Manifest.load(BUNDLE))


@needs_library
@pytest.mark.parametrize("search", [Search(shortlist=True), Search(shortlist=True, beam=3, n_best=2)])
def test_rows_with_words_of_their_own_are_those_of_masked_logits(engine: NativeEngine, search: Search) -> None:
    """In any batch, alone, and where a search over all words suppresses the others."""
    random = np.random.default_rng(3)
    requests = [
        Request(
            [*random.integers(4, 99, random.integers(1, 12)).tolist(), 3],
            20,
            scores=True,
            search=search,
            words=np.unique([3, *random.choice(engine.vocabulary, random.choice([1, 30, engine.vocabulary // 2]))]),
        )
        for _ in range(9)
    ]
    together = decode_all(engine, requests, rows=4)
    for request, one in zip(requests, together, strict=True):
        assert decode_all(engine, [request])[0].hypotheses == one.hypotheses, "bit by bit"
        assert request.words is not None
        others = np.setdiff1d(np.arange(engine.vocabulary), request.words).tolist()
        rules = Rules(suppress=tuple(others), renormalize=search.beam > 1)
        masked = dataclasses.replace(
            request, search=dataclasses.replace(search, shortlist=False, rules=rules), words=None
        )
        other = decode_all(engine, [masked])[0]
        assert one.ids == other.ids
        if search.beam > 1:
            np.testing.assert_allclose(one.scores or [], other.scores or [], atol=1e-5)
