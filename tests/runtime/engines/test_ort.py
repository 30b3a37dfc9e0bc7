"""The ONNX Runtime engine: its state by the rules of the protocol, and graphs that it cannot load."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from toy import BUNDLE, LIMIT, SOURCE, TOKENS, VOCABULARY, answer, logits
from txport.runtime.bundle.manifest import Manifest, list_files
from txport.runtime.engines.ort import OrtEngine, OrtState
from txport.runtime.engines.ort_session import providers_of
from txport.runtime.errors import BundleError, InputError, MissingLibrary, ResourceError
from txport.runtime.search.decoding import decode_all, stream
from txport.runtime.search.requests import Request

MANIFEST = Manifest.load(BUNDLE)
SOURCES = st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=SOURCE)


@pytest.fixture(scope="module")
def engine() -> OrtEngine:
    return OrtEngine(BUNDLE, MANIFEST, threads=1)


def placed(engine: OrtEngine, sources: Sequence[Sequence[int]], target: int = LIMIT, width: int = SOURCE) -> OrtState:
    """A state with these sources in its rows."""
    lengths = np.array([len(source) for source in sources], np.int64)
    ids = np.zeros((len(sources), int(lengths.max())), np.int64)
    for row, source in enumerate(sources):
        ids[row, : len(source)] = source
    state = engine.allocate(len(sources), width, target, logits=True)
    rows = range(len(sources))
    state.place(rows, engine.encode(ids, lengths), rows, [LIMIT] * len(sources))
    return state


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(SOURCES, st.none() | st.integers(1, LIMIT), st.integers(0, 20)), max_size=12),
    st.integers(1, 4),
    st.lists(st.integers(0, 47), max_size=4),
    st.booleans(),
)
def test_answers_are_those_of_arithmetic(
    engine: OrtEngine, cases: list[tuple[list[int], int | None, int]], rows: int, prefix: list[int], scores: bool
) -> None:
    requests = [Request(source, limit, minimum, prefix, scores) for source, limit, minimum in cases]
    results = decode_all(engine, requests, rows=rows)
    for (source, limit, minimum), result in zip(cases, results, strict=True):
        ids, expected = answer(source, limit or LIMIT, minimum, prefix)
        assert result.ids == ids
        assert result.scores == (pytest.approx(expected, rel=1e-4, abs=1e-4) if scores else None)


def test_encoder_output_is_used_where_it_lies(engine: OrtEngine) -> None:
    """And what a refill then writes over it leaves the other rows as they are."""
    ids, lengths = np.array([[5, 7, 9, 3], [6, 8, 3, 0]]), np.array([4, 3])
    memory = engine.encode(ids, lengths)
    state = engine.allocate(2, 4, LIMIT)
    state.place([0, 1], memory, [0, 1], [LIMIT] * 2)
    assert all(np.shares_memory(state._buffers[name], memory[name]) for name in memory)
    state.step(2)
    state.place([1], engine.encode(ids[:1], lengths[:1]), [0], [LIMIT])
    state.step(2)
    made = state.read().token_ids.T.tolist()
    first, second = answer([5, 7, 9, 3], LIMIT)[0], answer([6, 8, 3], LIMIT)[0]
    assert made[0] == first[:4] and made[1] == [*second[:2], *first[:2]]


@settings(max_examples=20, deadline=None)
@given(SOURCES)
def test_streams_too(engine: OrtEngine, source: list[int]) -> None:
    assert [token.id for token in stream(engine, Request(source))] == answer(source)[0]


def test_logits_of_every_step(engine: OrtEngine) -> None:
    sources = [[5, 7, 9], [11, 2]]
    state = placed(engine, sources)
    fed = [[TOKENS.bos], [TOKENS.bos]]
    for _ in range(10):
        state.step()
        for row, token in enumerate(state.read().token_ids[0]):
            np.testing.assert_array_equal(state.logits()[row], logits(sources[row], fed[row]))
            fed[row].append(int(token))


def test_many_steps_between_two_looks(engine: OrtEngine) -> None:
    state = placed(engine, [[5, 7, 9]])
    state.step(5)
    state.step(2)
    output = state.read()
    assert output.token_ids[:, 0].tolist() == answer([5, 7, 9])[0][:7]
    assert output.finished.tolist() == [False]


def test_a_row_that_was_never_placed_makes_pad(engine: OrtEngine) -> None:
    state = engine.allocate(2, SOURCE, 8)
    ids = np.array([[5, 7]], np.int64)
    state.place([1], engine.encode(ids, np.array([2])), [0], [8])
    state.step(3)
    output = state.read()
    assert output.token_ids[:, 0].tolist() == [TOKENS.pad] * 3
    assert output.token_ids[:, 1].tolist() == answer([5, 7])[0][:3]
    assert output.finished.tolist() == [True, False]


@pytest.mark.parametrize("width", [3, 4, SOURCE])
def test_wider_buffers_change_nothing(engine: OrtEngine, width: int) -> None:
    state = placed(engine, [[5, 7, 9], [77]], width=width)
    state.step(6)
    made = state.read().token_ids
    assert made[:, 0].tolist() == answer([5, 7, 9])[0][:6]
    assert made[:, 1].tolist() == answer([77])[0][:6]


def test_what_was_in_a_row_before_is_gone(engine: OrtEngine) -> None:
    """Even what no mask would hide: NaN times zero is NaN."""
    state = placed(engine, [[5, 7, 9], [11, 2]])
    state.step(4)
    state.read()
    for name in ("self_key_0", "self_value_0", "cross_key_0", "cross_value_0"):
        state._buffers[name][0, :, : 5 if name.startswith("self") else SOURCE] = np.nan
    state._finished[0] = True
    state.place([0], engine.encode(np.array([[33, 4]]), np.array([2])), [0], [LIMIT])
    state.step(3)
    made = state.read().token_ids
    assert made[:, 0].tolist() == answer([33, 4])[0][:3]
    assert made[:, 1].tolist() == answer([11, 2])[0][4:7]


@pytest.mark.parametrize("target", [5, 6, 20, 32, LIMIT])
@pytest.mark.parametrize("rows", [[2, 0], [0, 2], [1], [0, 1, 2], [1, 2, 0]])
def test_moved_rows_go_on_as_before(engine: OrtEngine, rows: list[int], target: int) -> None:
    """Also from caches that are full, and to caches that are shorter or as long."""
    sources = [[5, 7, 9], [11, 2], [77]]
    for first in (5, 4, 20):
        state = placed(engine, sources, target=first)
        state.step(4)
        state.read()
        state = state.resized(rows, target)
        assert (state.rows, state.target) == (len(rows), target)
        state.step()
        assert state.read().token_ids[0].tolist() == [answer(sources[row])[0][4] for row in rows]
        assert state.logits().shape[0] == len(rows)


def test_a_row_that_takes_the_place_of_a_longer_one_leaves_nothing_of_it() -> None:
    """What stood behind its end is masked, and a NaN there would come through the mask."""
    engine = OrtEngine(BUNDLE, MANIFEST, ["scatter"], threads=1)
    state = placed(engine, [[5, 7, 9], [11, 2]])
    state.step(4)
    state.read()
    state.place([1], engine.encode(np.array([[33, 4]]), np.array([2])), [0], [LIMIT])
    for name in ("self_key_0", "self_value_0"):
        state._buffers[name][0, :, :5] = np.nan
    state = state.resized([1], LIMIT)
    state.step(4)
    assert state.read().token_ids[:, 0].tolist() == answer([33, 4])[0][:4]


def test_first_caches_have_room_for_answers_as_long_as_the_sources(engine: OrtEngine) -> None:
    """Where longer ones cost no time; the step of `scatter` computes over all of them."""
    assert [engine.first_target(source) for source in (1, 31, 32, 63, 64, 200)] == [32, 32, 64, 64, 128, 256]
    plain = OrtEngine(BUNDLE, MANIFEST, ["scatter"], threads=1)
    assert {plain.first_target(source) for source in (1, 32, 200)} == {32}


def test_override(engine: OrtEngine) -> None:
    ends = next(source for i in range(90) if (source := [i, 4]) and answer(source)[0][0] == TOKENS.eos)
    state = placed(engine, [ends, [5, 7], [5, 7]])
    state.step()
    assert state.read().finished.tolist() == [True, False, False]
    state.override([0, 1, 2], [9, TOKENS.eos, 8], [False, True, False])
    state.step()
    output = state.read()
    assert output.token_ids[0].tolist() == [
        answer(ends, prefix=[9])[0][1],
        TOKENS.pad,
        answer([5, 7], prefix=[8])[0][1],
    ]
    assert output.finished.tolist() == [False, True, False]


def test_the_step_copies_nothing(engine: OrtEngine) -> None:
    """Ids, positions, flags and caches are written where they are read."""
    state = placed(engine, [[5, 7]])
    before = {name: buffer.copy() for name, buffer in state._buffers.items()}
    state.step()
    written = {name for name, buffer in state._buffers.items() if not np.array_equal(buffer, before[name])}
    assert written == {"token_ids", "positions", "self_key_0", "self_value_0", "logits"}


def test_lowerings(damaged: Path) -> None:
    assert OrtEngine(BUNDLE, MANIFEST).step_graph.lowering == "ort"
    assert OrtEngine(BUNDLE, MANIFEST, ["scatter"]).step_graph.lowering == "scatter"
    few = Manifest(**{**vars(MANIFEST), "graphs": tuple(g for g in MANIFEST.graphs if g.lowering != "ort")})
    assert OrtEngine(BUNDLE, few).step_graph.lowering == "scatter"
    with pytest.raises(BundleError, match="no lowering 'ort', only scatter, tensorscatter"):
        few.usable_lowerings("ort")
    with pytest.raises(InputError, match="'swift' is unknown"):
        MANIFEST.usable_lowerings("swift")


def test_a_lowering_that_does_not_load_is_passed_over(damaged: Path) -> None:
    (damaged / "onnx/decoder_step.ort.onnx").write_bytes(b"not onnx")
    assert OrtEngine(damaged, MANIFEST).step_graph.lowering == "scatter"
    with pytest.raises(BundleError, match=r"does not load .*decoder_step\.ort\.onnx"):
        OrtEngine(damaged, MANIFEST, ["ort"])


@pytest.mark.parametrize(
    ("version", "lowering"),
    [("1.20.0", "scatter"), ("1.21.0", "scatter"), ("1.21.1", "ort"), ("1.22.0+cpu", "ort"), ("1.31.1", "ort")],
)
def test_versions_that_compute_a_lowering_wrongly_pass_it_over(
    bundle: Path, monkeypatch: pytest.MonkeyPatch, version: str, lowering: str
) -> None:
    """`make test-onnxruntime` runs the versions themselves."""
    monkeypatch.setattr(onnxruntime, "__version__", version)
    manifest = Manifest.load(bundle)
    assert OrtEngine(bundle, manifest).step_graph.lowering == lowering
    if lowering != "ort":
        with pytest.raises(BundleError, match=rf"{version} computes the lowering ort .* install 1\.21\.1 or newer"):
            OrtEngine(bundle, manifest, ["ort"])


def test_no_version_computes_float16_wrongly(float16_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its step has no operator that versions before 1.21.1 compute wrongly."""
    monkeypatch.setattr(onnxruntime, "__version__", "1.20.0")
    assert OrtEngine(float16_bundle, Manifest.load(float16_bundle), ["ort"]).step_graph.lowering == "ort"


@pytest.mark.parametrize("name", ["encoder", "decoder_step.scatter"])
def test_truncated_graphs_are_one_sentence(damaged: Path, name: str) -> None:
    path = damaged / "onnx" / f"{name}.onnx"
    data = path.read_bytes()
    for length in (0, 1, len(data) // 2, len(data) - 1):
        path.write_bytes(data[:length])
        with pytest.raises(BundleError) as caught:
            OrtEngine(damaged, MANIFEST, ["scatter"])
        assert str(path) in str(caught.value) and "\n" not in str(caught.value)


def test_missing_weights_are_one_sentence(damaged: Path) -> None:
    (damaged / "onnx/weights.bin").unlink()
    with pytest.raises(BundleError, match="does not load"):
        OrtEngine(damaged, MANIFEST, ["ort"])


def test_short_weights_are_one_sentence(damaged: Path) -> None:
    (damaged / "onnx/weights.bin").write_bytes(bytes(100))
    with pytest.raises(BundleError, match="does not load"):
        OrtEngine(damaged, MANIFEST, ["ort"])


def test_a_graph_that_is_not_what_the_manifest_says(damaged: Path) -> None:
    (damaged / "onnx/encoder.onnx").write_bytes((damaged / "onnx/decoder_step.ort.onnx").read_bytes())
    manifest = Manifest(**{**vars(MANIFEST), "files": list_files(damaged)})
    with pytest.raises(BundleError, match="other inputs or outputs"):
        OrtEngine(damaged, manifest)


def test_too_little_memory_is_one_sentence(engine: OrtEngine) -> None:
    with pytest.raises(ResourceError, match="not enough memory for a batch of"):
        engine.allocate(1 << 40, 8, 1 << 20)


def test_the_real_bundle_gives_its_golden_answers(bundle: Path) -> None:
    """Through states of one row, where `check_translator` uses batches."""
    from txport.runtime.golden import load_golden

    manifest = Manifest.load(bundle)
    for graph in manifest.graphs[1:]:
        try:
            engine = OrtEngine(bundle, manifest, [graph.lowering])
        except BundleError as error:
            assert graph.lowering == "tensorscatter", error
            continue
        for case in load_golden(bundle).cases[:4]:
            assert [token.id for token in stream(engine, Request(case.source_ids))] == list(case.target_ids)


def test_cuda_without_its_provider_is_one_sentence() -> None:
    if "CUDAExecutionProvider" in onnxruntime.get_available_providers():
        pytest.skip("needs an ONNX Runtime without the CUDA provider")
    with pytest.raises(MissingLibrary, match=r"CUDA provider, which is not installed: pip install 'txport\[ort-gpu\]'"):
        providers_of("cuda")
