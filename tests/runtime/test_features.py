"""Bundles that read feature vectors: batches, beams, streams, the queue, alignments with times, and refusals."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from memory_device import MemoryDevice
from ort_over_device import over
from txport.runtime import open_bundle
from txport.runtime.device.engine import DeviceEngine
from txport.runtime.engines.native import missing
from txport.runtime.errors import InputError
from txport.runtime.golden import check_translator, load_golden
from txport.runtime.search.decoding import decode_all
from txport.runtime.search.requests import Request
from txport.runtime.translator import Translator

BUNDLE = Path(__file__).parents[1] / "data" / "feature_bundle"
SIZE = 6
RATE = 50.0


def vectors(*lengths: int, seed: int = 0) -> list[npt.NDArray[np.float32]]:
    random = np.random.default_rng(seed)
    return [random.standard_normal((length, SIZE), np.float32) for length in lengths]


def on_a_device(*_arguments: object, **_options: object) -> DeviceEngine:
    """ONNX Runtime with the state on a device, as on a GPU."""
    return over(MemoryDevice(lazy=False), BUNDLE)


@pytest.fixture(scope="module", params=["ort", "fused", "device"])
def translator(request: pytest.FixtureRequest) -> Translator:
    if request.param == "fused" and (reason := missing()) is not None:
        pytest.skip(f"needs the fused engine: {reason}")
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "device":
            patch.setattr(open_bundle, "open_engine", on_a_device)
        return Translator(BUNDLE, "cpu", "auto" if request.param == "device" else request.param, threads=1)


def test_golden_cases_are_pytorchs_answers(translator: Translator) -> None:
    golden = load_golden(BUNDLE)
    assert len(golden.cases) > 8 and len({case.target_ids for case in golden.cases}) > 4
    assert check_translator(translator, golden) == []


def test_batches_of_unequal_lengths_are_as_each_alone(translator: Translator) -> None:
    arrays = vectors(9, 1, 30, 4, 64, 2, 17, 5)
    together = translator.translate_features(arrays, scores=True)
    assert len({tuple(each.ids) for each in together}) > 5
    for array, expected in zip(arrays, together, strict=True):
        (alone,) = translator.translate_features([array], scores=True)
        assert alone.ids == expected.ids and alone.text == expected.text
        assert alone.scores == pytest.approx(expected.scores, abs=1e-4)
        assert not alone.truncated


def test_arrays_of_other_types_are_the_same_vectors(translator: Translator) -> None:
    (array,) = vectors(7)
    rounded = array.astype(np.float16)
    expected = translator.translate_features([rounded.astype(np.float32)])[0].ids
    fortran = np.asfortranarray(rounded.astype(np.float64))
    for other in (rounded, fortran, rounded.tolist(), fortran[::1]):
        assert translator.translate_features([other])[0].ids == expected
    assert translator.translate_features(iter([rounded]))[0].ids == expected
    assert translator.translate_features([]) == []


def test_beams_are_those_of_the_search(translator: Translator) -> None:
    """The best of four hypotheses is as probable as greedy search's at least, by the model's own scores."""
    arrays = vectors(5, 12, 3, 20)
    greedy = translator.translate_features(arrays, scores=True, max_length=12)
    beams = translator.translate_features(arrays, beam=4, n_best=4, length_penalty=0.0, max_length=12)
    for one, other in zip(greedy, beams, strict=True):
        assert one.scores is not None and len(other.hypotheses) == 4
        ranked = [each.score for each in other.hypotheses]
        assert ranked == sorted(ranked, reverse=True)
        assert other.score is not None and other.score >= sum(one.scores) - 1e-4


def test_streams_and_the_queue_give_the_same(translator: Translator) -> None:
    arrays = vectors(6, 11, 2)
    expected = translator.translate_features(arrays)
    for array, wanted in zip(arrays, expected, strict=True):
        assert [piece.id for piece in translator.stream_features(array)] == wanted.ids
    pieces: list[list[int]] = [[] for _ in arrays]
    pending = [
        translator.submit_features(array, on_piece=lambda piece, ids=ids: ids.append(piece.id))  # type: ignore[misc]
        for array, ids in zip(arrays, pieces, strict=True)
    ]
    assert [each.result(60) for each in pending] == expected
    assert pieces == [each.ids for each in expected]


def test_alignments_are_vectors_and_times(translator: Translator) -> None:
    arrays = vectors(8, 15)
    made = translator.translate_features(arrays, alignments=True, attention=True)
    special = {translator.manifest.tokens.pad, translator.manifest.tokens.bos, translator.manifest.tokens.eos}
    for array, each in zip(arrays, made, strict=True):
        assert each.attention is not None and each.attention.shape == (len(each.ids), len(array))
        np.testing.assert_allclose(each.attention.sum(axis=1), 1, atol=1e-4)
        assert each.alignment is not None and each.alignment.times is not None
        for token, position, time, row in zip(
            each.ids, each.alignment.tokens, each.alignment.times, each.attention, strict=True
        ):
            assert position == (None if token in special else int(row.argmax()))
            assert time == (None if position is None else position / RATE)
        assert each.alignment.words == [] and each.alignment.source_words == []


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.ones((3, 5)), r"array 2 has the shape \[3, 5\]: this bundle reads \[vectors, 6\]"),
        (np.ones(6), r"array 2 has the shape \[6\]: this bundle reads \[vectors, 6\]"),
        (np.ones((1, 3, 6)), r"array 2 has the shape \[1, 3, 6\]"),
        (np.ones((0, 6)), "array 2 has 0 vectors: give 1 to 64, as many as this bundle takes"),
        (np.ones((65, 6)), "array 2 has 65 vectors: give 1 to 64"),
        (np.array([[1.0] * 6, [np.nan] * 6]), "array 2 has NaN or infinity in vector 1, counted from 0"),
        (np.full((2, 6), 1e300), "array 2 has NaN or infinity in vector 0, counted from 0"),
        (np.ones((2, 6), complex), "array 2 is an array of complex128: give real numbers"),
        (np.full((2, 6), "a"), "array 2 is an array of <U1: give real numbers"),
        ("text", "array 2 is an array of <U4: give real numbers"),
        (np.ones((2, 6)) > 0, "array 2 is an array of bool: give real numbers"),
        (np.ones((2, 6)).astype(object), "array 2 is an array of object: give real numbers"),
        ([[1.0] * 6, [1.0] * 5], r"array 2 is not an array of real numbers, \[vectors, 6\]: setting an array element"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(translator: Translator, array: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        translator.translate_features([np.ones((2, 6)), array])


@pytest.mark.parametrize("form", ["fortran", "big-endian", "half", "double", "list", "every second row"])
def test_forms_of_arrays_give_the_same(translator: Translator, form: str) -> None:
    array = vectors(9)[0].astype(np.float16).astype(np.float32)
    forms: dict[str, Any] = {
        "fortran": np.asfortranarray(array),
        "big-endian": array.astype(">f4"),
        "half": array.astype(np.float16),
        "double": array.astype(float),
        "list": array.tolist(),
        "every second row": np.repeat(array, 2, axis=0)[::2],
    }
    expected, found = translator.translate_features([array, forms[form]])
    assert found.ids == expected.ids and len(set(found.ids)) > 1


def test_one_array_is_not_a_list_of_arrays(translator: Translator) -> None:
    with pytest.raises(InputError, match="arrays come as a list, and this is of type int"):
        translator.translate_features(5)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="arrays come as a list: put the one array in a list"):
        translator.translate_features(vectors(3)[0])


TEXT_CALLS: list[Callable[[Translator], object]] = [
    lambda translator: translator.translate(["a"]),
    lambda translator: list(translator.translate_windows([["a"]])),
    lambda translator: translator.translate_document("a"),
    lambda translator: translator.translate_ids([[5, 3]]),
    lambda translator: list(translator.stream("a")),
    lambda translator: translator.submit("a"),
    lambda translator: translator.submit_document("a"),
    lambda translator: translator.score(["a"], ["b"]),
    lambda translator: translator.score_ids([[5, 3]], [[5, 3]]),
    lambda translator: translator.embed(["a"]),
    lambda translator: translator.attention_maps("a"),
]


@pytest.mark.parametrize("call", TEXT_CALLS)
def test_text_and_ids_are_refused(translator: Translator, call: Callable[[Translator], object]) -> None:
    with pytest.raises(InputError, match="this bundle reads feature vectors, not text or ids: use translate_features"):
        call(translator)


def test_words_of_vectors_cannot_be_copied(translator: Translator) -> None:
    with pytest.raises(InputError, match="replace_unknowns copies words of a text, and this bundle reads vectors"):
        translator.translate_features(vectors(3), replace_unknowns=True)


def test_bundles_of_text_refuse_vectors(toy: Translator) -> None:
    for call in (toy.submit_features, lambda array: toy.translate_features([array]), toy.stream_features):
        with pytest.raises(InputError, match="this bundle reads text or ids, not feature vectors: use translate or"):
            call(vectors(3)[0])


def test_engines_refuse_the_other_kind(translator: Translator) -> None:
    """An engine that a search calls directly reads no memory outside its input."""
    with pytest.raises(InputError, match=r"vectors must be \[batch, source, 6\], not \[1, 3\]"):
        translator.engine.encode(np.ones((1, 3), np.int64), np.array([3]))
    with pytest.raises(InputError, match=r"vectors must be \[batch, source, 6\], not \[1, 3, 5\]"):
        translator.engine.encode(np.ones((1, 3, 5), np.float32), np.array([3]))


def test_padding_is_not_read(translator: Translator) -> None:
    engine = translator.engine
    array = vectors(4)[0][None]
    wide = np.concatenate([array, np.full((1, 9, SIZE), 1e6, np.float32)], axis=1)
    (expected,) = decode_all(engine, [Request(array[0], 10)])
    state = engine.allocate(1, 13, 10, logits=True)
    state.place([0], engine.encode(wide, np.array([4])), [0], [10])
    made = []
    for _ in range(10):
        state.step()
        made.append(int(state.read().token_ids[0, 0]))
    assert made[: len(expected.ids)] == expected.ids
