"""Feature vectors through the C ABI against Python: ids, scores, times, beams, streams, the queue, errors."""

import ctypes
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from option_doors import c_options
from toy import BUNDLE as TOY
from txport.runtime.errors import InputError
from txport.runtime.golden import load_golden
from txport.runtime.results import Translation
from txport.runtime.translator import Translator

BUILD = Path(os.environ.get("TXPORT_CPP_BUILD", "/nowhere"))
BUNDLE = Path(__file__).parents[2] / "data" / "feature_bundle"
Vectors = npt.NDArray[np.float32]

pytestmark = pytest.mark.skipif("TXPORT_CPP_BUILD" not in os.environ, reason="needs the C++ build: make cpp")


class CFeatures(ctypes.Structure):
    """`txport_features` of txport.h."""

    _fields_ = [
        ("values", ctypes.POINTER(ctypes.c_float)),
        ("count", ctypes.c_size_t),
        ("size", ctypes.c_size_t),
    ]

    @classmethod
    def of(cls, array: Vectors) -> "CFeatures":
        """The struct of an array, which must live as long."""
        return cls(array.ctypes.data_as(ctypes.POINTER(ctypes.c_float)), *array.shape)


class COpen(ctypes.Structure):
    """The first fields of `txport_translator_options` of txport.h, and `engine`."""

    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("device", ctypes.c_char_p),
        ("lowering", ctypes.c_char_p),
        *((name, ctypes.c_int32) for name in ("threads", "batch", "batch_tokens")),
        ("warning", ctypes.c_void_p),
        ("warning_user", ctypes.c_void_p),
        ("workers", ctypes.c_int32),
        ("engine", ctypes.c_char_p),
        ("trust_engines", ctypes.c_int32),
        ("verify", ctypes.c_int32),
    ]


class CRequest(ctypes.Structure):
    """`txport_request` of txport.h, to wait for the answer."""

    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("seconds", ctypes.c_double),
        *((name, ctypes.c_void_p) for name in ("done", "token", "user")),
    ]


class Library:
    """libtxport.so with one bundle open."""

    def __init__(self, bundle: Path, engine: str = "auto") -> None:
        self.c = ctypes.CDLL(str(BUILD / "libtxport.so"))
        self.c.txport_message.restype = ctypes.c_char_p
        for name, kind in (("ids", ctypes.c_int64), ("scores", ctypes.c_double), ("alignment", ctypes.c_int64)):
            getattr(self.c, f"txport_result_{name}").restype = ctypes.POINTER(kind)
        self.c.txport_result_times.restype = ctypes.POINTER(ctypes.c_double)
        self.c.txport_result_attention.restype = ctypes.POINTER(ctypes.c_float)
        self.c.txport_result_text.restype = ctypes.c_char_p
        self.c.txport_result_hypotheses.restype = ctypes.c_void_p
        self.handle = ctypes.c_void_p()
        options = COpen(struct_size=ctypes.sizeof(COpen), device=b"cpu", engine=engine.encode(), threads=1)
        self.check(self.c.txport_open(os.fsencode(bundle), ctypes.byref(options), ctypes.byref(self.handle)))

    def check(self, code: int) -> None:
        if code:
            assert code == 1, f"{code}: {self.c.txport_message()}"
            raise InputError(self.c.txport_message().decode())

    def translate(self, arrays: Sequence[Vectors], **options: Any) -> "Result":
        result = ctypes.c_void_p()
        given = (CFeatures * len(arrays))(*map(CFeatures.of, arrays))
        asked = ctypes.byref(c_options(options))
        self.check(self.c.txport_translate_features(self.handle, given, len(arrays), asked, ctypes.byref(result)))
        return Result(self.c, result)

    def stream(self, array: Vectors, **options: Any) -> list[int]:
        stream, made, token = ctypes.c_void_p(), [], ctypes.c_int64()
        given, asked = CFeatures.of(array), c_options(options)
        opened = self.c.txport_stream_open_features(self.handle, *map(ctypes.byref, (given, asked, stream)))
        self.check(opened)
        while self.c.txport_stream_next(stream, ctypes.byref(token), None, None, None) == 0:
            made.append(token.value)
        self.c.txport_stream_close(stream)
        return made

    def submit(self, array: Vectors, **options: Any) -> ctypes.c_void_p:
        pending, request = ctypes.c_void_p(), CRequest(struct_size=ctypes.sizeof(CRequest))
        arguments = CFeatures.of(array), c_options(options), request, pending
        self.check(self.c.txport_submit_features(self.handle, *map(ctypes.byref, arguments)))
        return pending

    def wait(self, pending: ctypes.c_void_p) -> "Result":
        result = ctypes.c_void_p()
        self.check(self.c.txport_pending_wait(pending, ctypes.c_double(60), ctypes.byref(result)))
        self.c.txport_pending_free(pending)
        return Result(self.c, result)


class Result:
    """A `txport_result`."""

    def __init__(self, c: ctypes.CDLL, handle: ctypes.c_void_p) -> None:
        self._c, self._handle = c, handle

    def list(self, name: str, index: int) -> list[Any] | None:
        length = ctypes.c_size_t()
        found = getattr(self._c, f"txport_result_{name}")(self._handle, ctypes.c_size_t(index), ctypes.byref(length))
        return found[: length.value] if found else None

    def text(self, index: int) -> str:
        return str(self._c.txport_result_text(self._handle, ctypes.c_size_t(index), None).decode())

    def attention(self, index: int) -> Vectors:
        sizes = ctypes.c_size_t(), ctypes.c_size_t()
        found = self._c.txport_result_attention(self._handle, ctypes.c_size_t(index), *map(ctypes.byref, sizes))
        return np.ctypeslib.as_array(found, (sizes[0].value, sizes[1].value)).copy()

    def hypotheses(self, index: int) -> "Result":
        return Result(self._c, ctypes.c_void_p(self._c.txport_result_hypotheses(self._handle, ctypes.c_size_t(index))))


def vectors(*lengths: int) -> list[Vectors]:
    random = np.random.default_rng(7)
    return [random.standard_normal((length, 6), np.float32) for length in lengths]


@pytest.fixture(scope="module", params=["ort", "fused"])
def pair(request: pytest.FixtureRequest) -> tuple[Library, Translator]:
    return Library(BUNDLE, request.param), Translator(BUNDLE, "cpu", request.param, threads=1)


def assert_same(ours: Result, expected: Sequence[Translation]) -> None:
    for index, wanted in enumerate(expected):
        assert ours.list("ids", index) == wanted.ids and ours.text(index) == wanted.text
        scores = ours.list("scores", index)
        assert (scores is None) == (wanted.scores is None)
        assert scores is None or scores == pytest.approx(wanted.scores, abs=1e-5)


def test_answers_are_those_of_python(pair: tuple[Library, Translator]) -> None:
    library, translator = pair
    arrays = vectors(9, 1, 30, 4, 64, 2, 17, 5)
    for options in ({"scores": True}, {"max_length": 5}, {"prefix": [7, 8], "min_length": 4}, {"no_repeat_ngram": 2}):
        assert_same(library.translate(arrays, **options), translator.translate_features(arrays, **options))


def test_beams_are_those_of_python(pair: tuple[Library, Translator]) -> None:
    library, translator = pair
    arrays = vectors(9, 1, 30, 4)
    options = {"beam": 4, "n_best": 3, "scores": True}
    ours = library.translate(arrays, **options)
    for index, expected in enumerate(translator.translate_features(arrays, **options)):
        assert len(expected.hypotheses) == 3
        assert_same(ours.hypotheses(index), expected.hypotheses)


def test_alignments_have_the_times_of_python(pair: tuple[Library, Translator]) -> None:
    library, translator = pair
    arrays = vectors(12, 5)
    ours = library.translate(arrays, alignments=True, attention=True)
    for index, each in enumerate(translator.translate_features(arrays, alignments=True, attention=True)):
        assert each.alignment is not None and each.alignment.times is not None and each.attention is not None
        assert ours.list("alignment", index) == [-1 if token is None else token for token in each.alignment.tokens]
        assert ours.list("times", index) == [-1.0 if time is None else time for time in each.alignment.times]
        np.testing.assert_allclose(ours.attention(index), each.attention, atol=1e-5)
    assert library.translate(arrays).list("times", 0) is None


def test_streams_and_the_queue_are_those_of_python(pair: tuple[Library, Translator]) -> None:
    library, translator = pair
    arrays = vectors(6, 11, 2)
    expected = translator.translate_features(arrays, max_length=9)
    assert [library.stream(array, max_length=9) for array in arrays] == [each.ids for each in expected]
    pending = [library.submit(array.copy(), max_length=9) for array in arrays]  # what is given may go at once
    for each, wanted in zip(pending, expected, strict=True):
        assert_same(library.wait(each), [wanted])


def test_the_self_check_reads_golden_vectors(pair: tuple[Library, Translator]) -> None:
    """Ids that PyTorch made of these vectors; models with others answer otherwise."""
    library, _ = pair
    assert library.c.txport_self_check(library.handle) == 0
    assert all(case.vectors for case in load_golden(BUNDLE).cases)


@pytest.mark.parametrize("method", ["translate", "stream", "submit"])
def test_errors_have_the_words_of_python(pair: tuple[Library, Translator], method: str) -> None:
    library, translator = pair
    broken = np.ones((3, 6), np.float32)
    broken[1, 2] = np.inf
    for array in (np.ones((3, 5), np.float32), np.ones((65, 6), np.float32), np.ones((0, 6), np.float32), broken):
        with pytest.raises(InputError) as ours:
            library.translate([array]) if method == "translate" else getattr(library, method)(array)
        with pytest.raises(InputError) as theirs:
            called = getattr(translator, f"{method}_features")
            called([array]) if method == "translate" else called(array)
        assert str(ours.value) == str(theirs.value)


def test_words_cannot_be_copied_in_the_words_of_python(pair: tuple[Library, Translator]) -> None:
    library, translator = pair
    with pytest.raises(InputError) as ours:
        library.translate(vectors(3), replace_unknowns=True)
    with pytest.raises(InputError) as theirs:
        translator.translate_features(vectors(3), replace_unknowns=True)
    assert str(ours.value) == str(theirs.value)


def test_the_other_kind_of_source_is_refused_in_the_words_of_python(pair: tuple[Library, Translator]) -> None:
    library, translator = pair
    result, texts = ctypes.c_void_p(), (ctypes.c_char_p * 1)(b"text")
    code = library.c.txport_translate(library.handle, texts, None, 1, None, ctypes.byref(result))
    with pytest.raises(InputError) as theirs:
        translator.translate(["text"])
    assert code == 1 and library.c.txport_message().decode() == str(theirs.value)
    ids = (ctypes.POINTER(ctypes.c_int64) * 1)((ctypes.c_int64 * 2)(5, 3))
    lengths = (ctypes.c_size_t * 1)(2)
    code = library.c.txport_translate_ids(library.handle, ids, lengths, 1, None, ctypes.byref(result))
    assert code == 1 and library.c.txport_message().decode() == str(theirs.value)
    for array in vectors(3):
        with pytest.raises(InputError) as ours:
            Library(TOY).translate([array])
        with pytest.raises(InputError) as theirs:
            Translator(TOY, "cpu").translate_features([array])
        assert str(ours.value) == str(theirs.value)


def test_null_pointers_are_refused() -> None:
    library = Library(BUNDLE)
    result = ctypes.c_void_p()
    assert library.c.txport_translate_features(library.handle, None, 1, None, ctypes.byref(result)) == 1
    assert b"features is NULL" in library.c.txport_message()
    given = (CFeatures * 1)(CFeatures(None, 3, 6))
    assert library.c.txport_translate_features(library.handle, given, 1, None, ctypes.byref(result)) == 1
    assert b"features[0].values" in library.c.txport_message()
