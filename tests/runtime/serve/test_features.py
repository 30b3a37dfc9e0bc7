"""POST /features of a real tx-serve: answers are those of direct calls, all else is refused by one sentence."""

import io
import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from serving import PAIR, Served, serving
from txport.runtime.translator import Translator

pytest.importorskip("uvicorn", reason="needs a server: pip install 'txport[serve]'")
pytest.importorskip("starlette", reason="needs a server: pip install 'txport[serve]'")
pytest.importorskip("prometheus_client", reason="needs a server: pip install 'txport[serve]'")

BUNDLE = Path(__file__).parents[2] / "data" / "feature_bundle"
NPY = "application/x-npy"


def saved(array: Any, **options: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, array, **options)
    return file.getvalue()


# A header that promises more than any memory has.
HUGE = saved(np.ones((3, 6))).replace(b"(3, 6), }" + b" " * 9, b"(3, 6" + b"0" * 9 + b"), }")
assert saved(np.ones((3, 6))) != HUGE


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    with serving(f"speech={BUNDLE}", "--max-bytes", "5000") as served:
        yield served


def post(port: int, body: bytes, kind: str = NPY, query: str = "", path: str = "features") -> tuple[int, Any]:
    request = urllib.request.Request(f"http://127.0.0.1:{port}/{path}{query}", body, {"Content-Type": kind})
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)["error"]


def test_answers_are_those_of_direct_calls(server: Served) -> None:
    array = np.random.default_rng(0).standard_normal((9, 6))
    (expected,) = Translator(BUNDLE, "cpu").translate_features([array], alignments=True)
    status, answer = post(server.port, saved(array))
    assert (status, answer) == (
        200,
        {"translatedText": expected.text, "ids": expected.ids, "finished": expected.finished},
    )
    for form in (np.asfortranarray(array), array.astype(">f8"), array.astype(">f4")):
        assert post(server.port, saved(form)) == (200, answer)
    status, answer = post(server.port, saved(array.astype(np.float32)), query="?alignments=true&model=speech")
    assert expected.alignment is not None
    assert status == 200 and answer["ids"] == expected.ids
    assert answer["vectors"] == expected.alignment.tokens and answer["seconds"] == expected.alignment.times
    assert post(server.port, saved(array.astype(np.float32)), query="?alignments=1")[1] == answer


@pytest.mark.parametrize(
    ("body", "kind", "status", "message"),
    [
        (saved(np.ones((3, 5))), NPY, 422, "the array has the shape [3, 5]: this bundle reads [vectors, 6]"),
        (saved(np.ones(())), NPY, 422, "the array has the shape []: this bundle reads [vectors, 6]"),
        (saved(np.ones((3, 7))), NPY, 422, "the array has the shape [3, 7]: this bundle reads [vectors, 6]"),
        (saved(np.full((2, 6), np.nan)), NPY, 422, "the array has NaN or infinity in vector 0"),
        (saved(np.full((2, 6), -np.inf, ">f4")), NPY, 422, "the array has NaN or infinity in vector 0"),
        (saved(np.ones((0, 6))), NPY, 422, "the array has 0 vectors: give 1 to 64, as many as this bundle takes"),
        (saved(np.ones((65, 6))), NPY, 422, "the array has 65 vectors: give 1 to 64, as many as this bundle takes"),
        (saved(np.ones((2, 6), complex)), NPY, 422, "the array is an array of complex128: give real numbers"),
        (saved(np.ones((2, 6), bool)), NPY, 422, "the array is an array of bool: give real numbers"),
        (saved(np.full((2, 6), "a")), NPY, 422, "the array is an array of <U1: give real numbers"),
        (saved(np.ones((3, 6)))[:-9], NPY, 400, "the body is not an array of NumPy"),
        (HUGE, NPY, 400, "the body is not an array of NumPy"),
        (b"", NPY, 400, "the body is not an array of NumPy"),
        (b"text", NPY, 400, "the body is not an array of NumPy"),
        (b"PK\3\4text", NPY, 400, "the body is not an array of NumPy"),
        (b"\x93NUMPY\1\0\4\0{'''", NPY, 400, "the body is not an array of NumPy"),
        (b"\x93NUMPY\1\0\x0f\0  x\n y\n   z\n q", NPY, 400, "the body is not an array of NumPy"),
        (saved(np.array([{}], dtype=object), allow_pickle=True), NPY, 400, "the body is not an array of NumPy"),
        (saved(np.ones((3, 6))), "application/json", 415, "send numpy.save's bytes as application/x-npy"),
        (saved(np.ones((900, 6))), NPY, 413, "the body has more than 5000 bytes"),
    ],
)
def test_other_bodies_are_refused(server: Served, body: bytes, kind: str, status: int, message: str) -> None:
    found, answer = post(server.port, body, kind)
    assert found == status and message in answer


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("?alignment=true", "there is no field 'alignment': did you mean alignments?"),
        ("?beam=4", "there is no field 'beam'"),
        ("?alignments=yes", "alignments is neither true nor false"),
    ],
)
def test_other_fields_are_refused(server: Served, query: str, message: str) -> None:
    status, answer = post(server.port, saved(np.ones((3, 6))), query=query)
    assert status == 400 and message in answer


def test_text_is_refused_by_a_bundle_of_vectors_and_the_reverse(server: Served) -> None:
    body = json.dumps({"q": "text", "source": "", "target": ""}).encode()
    found, answer = post(server.port, body, "application/json", path="translate")
    assert found == 422 and "this bundle reads feature vectors, not text or ids" in answer
    with serving(PAIR) as other:
        found, answer = post(other.port, saved(np.ones((3, 6))))
    assert found == 422 and "this bundle reads text or ids, not feature vectors" in answer
