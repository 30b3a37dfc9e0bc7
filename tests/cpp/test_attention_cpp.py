"""Alignments, attention, scores of given translations and embeddings of the C ABI against the Python runtime."""

import copy
import ctypes
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from option_doors import c_options
from toy import BUNDLE as TOY
from txport.runtime.bundle.manifest import Manifest
from txport.runtime.bundle.tokenizer_schema import Languages
from txport.runtime.errors import BundleError, InputError
from txport.runtime.text.alignment import Alignment
from txport.runtime.translator import Translator
from unknown_words import texts as unknown_texts
from unknown_words import unknown_bundle, unknown_checkpoint

SOURCE = Path(__file__).parents[2] / "runtime" / "cpp"
BUILD = Path(os.environ.get("TXPORT_CPP_BUILD", "/nowhere"))
pytestmark = pytest.mark.skipif("TXPORT_CPP_BUILD" not in os.environ, reason="needs the C++ build: make cpp")

# Empty, of full-width letters and several spaces (which normalisation changes), of unseen characters, too long.
TEXTS = [
    "one hundred and five",
    "seven",
    "",
    "ｓｅｖｅｎ  seven",
    "it is ten past nine 🙂 漢字",
    "two thousand three hundred and eleven",
    "é" * 100,
    "seven " * 200,
]
GIVEN = [text for text in TEXTS if text]
Floats = npt.NDArray[np.float32]


class Span(ctypes.Structure):
    """`txport_span` and `txport_word_pair`: two numbers."""

    _fields_ = [("first", ctypes.c_size_t), ("second", ctypes.c_size_t)]


class Library:
    """libtxport.so with one bundle open: what its functions give, as Python's runtime has it."""

    def __init__(self, bundle: Path) -> None:
        self._library = ctypes.CDLL(str(BUILD / "libtxport.so"))
        self._library.txport_message.restype = ctypes.c_char_p
        self._library.txport_result_count.restype = ctypes.c_size_t
        for name, kind in (
            ("ids", ctypes.POINTER(ctypes.c_int64)),
            ("alignment", ctypes.POINTER(ctypes.c_int64)),
            ("scores", ctypes.POINTER(ctypes.c_double)),
            ("text", ctypes.c_char_p),
            ("pharaoh", ctypes.c_char_p),
            ("spans", ctypes.POINTER(Span)),
            ("word_pairs", ctypes.POINTER(Span)),
            ("attention", ctypes.POINTER(ctypes.c_float)),
            ("embedding", ctypes.POINTER(ctypes.c_float)),
        ):
            getattr(self._library, f"txport_result_{name}").restype = kind
        self._translator, self._result = ctypes.c_void_p(), ctypes.c_void_p()
        self._check(self._library.txport_open(str(bundle).encode(), None, ctypes.byref(self._translator)))

    def twin(self) -> "Library":
        """The same translator, for another thread: results are its own."""
        other = copy.copy(self)
        other._result = ctypes.c_void_p()
        return other

    def close(self) -> None:
        self._library.txport_result_free(self._result)
        self._library.txport_close(self._translator)

    def translate(self, texts: Sequence[str], **options: Any) -> int:
        return self._call("translate", *_texts(texts), _count(texts), ctypes.byref(c_options(options)))

    def translate_ids(self, sources: Sequence[Sequence[int]], **options: Any) -> int:
        return self._call("translate_ids", *_ids(sources), _count(sources), ctypes.byref(c_options(options)))

    def score(self, texts: Sequence[str], targets: Sequence[str]) -> int:
        return self._call("score", *_texts(texts), *_texts(targets), _count(texts), None)

    def score_ids(self, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]) -> int:
        return self._call("score_ids", *_ids(sources), *_ids(targets), _count(sources))

    def embed(self, texts: Sequence[str], pooled: bool) -> int:
        return self._call("embed", *_texts(texts), _count(texts), ctypes.c_int32(pooled), None)

    def listed(self, name: str, index: int, *which: Any) -> list[Any]:
        """An array of a sentence of the last result."""
        length = ctypes.c_size_t()
        read = getattr(self._library, f"txport_result_{name}")
        found = read(self._result, ctypes.c_size_t(index), *which, ctypes.byref(length))
        items = found[: length.value] if found else []
        return [(item.first, item.second) if isinstance(item, Span) else item for item in items]

    def text(self, name: str, index: int) -> str | None:
        found = getattr(self._library, f"txport_result_{name}")(self._result, ctypes.c_size_t(index), None)
        return None if found is None else found.decode()

    def matrix(self, name: str, index: int) -> Floats | None:
        rows, columns = ctypes.c_size_t(), ctypes.c_size_t()
        read = getattr(self._library, f"txport_result_{name}")
        found = read(self._result, ctypes.c_size_t(index), ctypes.byref(rows), ctypes.byref(columns))
        return np.ctypeslib.as_array(found, (rows.value, columns.value)).copy() if found else None

    def _call(self, name: str, *arguments: Any) -> int:
        self._library.txport_result_free(self._result)
        self._check(getattr(self._library, f"txport_{name}")(self._translator, *arguments, ctypes.byref(self._result)))
        return int(self._library.txport_result_count(self._result))

    def _check(self, code: int) -> None:
        if code:
            kind = {1: InputError, 2: BundleError}.get(code, RuntimeError)
            raise kind(self._library.txport_message().decode())


def test_unknown_tokens_are_replaced_alike(tmp_path: Path) -> None:
    """Texts, spans and refusals are Python's, with pieces of a model of words as well."""
    pytest.importorskip("torch", reason="needs PyTorch: pip install 'txport[dev]'")
    for kind in ("unigram", "word"):
        unknown_checkpoint(tmp_path / kind, model_type=kind)
        bundle = tmp_path / f"{kind}-bundle"
        unknown_bundle(tmp_path / kind, bundle)
        python = Translator(bundle, "cpu", threads=1)
        library = Library(bundle)
        lines = [*unknown_texts(120), "Ω" * 3000, "", "漢 " + "cat " * 80]
        for options in ({"replace_unknowns": True}, {"generation": "model"}, {"replace_unknowns": True, "beam": 4}):
            expected = python.translate(lines, **options, alignments=True)
            library.translate(lines, **options)
            assert [library.text("text", i) for i in range(len(lines))] == [each.text for each in expected]
            library.translate(lines, **options, alignments=True)
            for number, result in enumerate(expected):
                assert library.text("text", number) == result.text
                if result.alignment is not None:
                    assert library.text("pharaoh", number) == result.alignment.pharaoh
        plain = python.translate(lines, beam=4)
        assert sum(one.text != other.text for one, other in zip(expected, plain, strict=True)) > 40
        known = python.tokenizer.encode("tree small the")
        sources = [known, [1, 1, 3]]
        library.translate_ids(sources, replace_unknowns=True)
        made = python.translate_ids(sources, replace_unknowns=True)
        assert [library.text("text", i) for i in range(2)] == [each.text for each in made]
        library.close()
    with pytest.raises(BundleError, match="--with-attention"):
        Library(TOY).translate(["a"], replace_unknowns=True)


def _count(items: Sequence[object]) -> ctypes.c_size_t:
    return ctypes.c_size_t(len(items))


def _texts(texts: Sequence[str]) -> tuple[Any, Any]:
    encoded = [text.encode() for text in texts]
    return (ctypes.c_char_p * len(encoded))(*encoded), (ctypes.c_size_t * len(encoded))(*map(len, encoded))


def _ids(rows: Sequence[Sequence[int]]) -> tuple[Any, Any]:
    arrays = [(ctypes.c_int64 * max(len(row), 1))(*row) for row in rows]
    pointers = [ctypes.cast(array, ctypes.POINTER(ctypes.c_int64)) for array in arrays]
    return (ctypes.POINTER(ctypes.c_int64) * len(rows))(*pointers), (ctypes.c_size_t * len(rows))(*map(len, rows))


@pytest.fixture(scope="module", params=["float32", "float16", "int8"])
def directory(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle with the optional graphs; in float16 as the CPU runs it."""
    if request.param == "float32":
        return Path(request.getfixturevalue("attention_bundle"))
    pytest.importorskip("torch", reason="needs PyTorch to export a bundle")
    from txport.exporter import export

    output = tmp_path_factory.mktemp("attention") / request.param
    chosen = {request.param: True}
    options = export.ExportOptions(sentences=16, singles=1, lowerings=("ort",), attention=True, verify=False, **chosen)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(export, "choose_islands", lambda *_: [])  # all of this model would be one
        export.export_bundle(request.getfixturevalue("checkpoint"), output, options)
    return output


@pytest.fixture(scope="module")
def cpp(directory: Path) -> Iterator[Library]:
    library = Library(directory)
    yield library
    library.close()


@pytest.fixture(scope="module")
def python(directory: Path) -> Translator:
    return Translator(directory, "cpu")


def test_alignments_and_attention(cpp: Library, python: Translator) -> None:
    expected = python.translate(TEXTS, alignments=True, attention=True)
    assert cpp.translate(TEXTS, alignments=True, attention=True) == len(TEXTS)
    for index, (text, result) in enumerate(zip(TEXTS, expected, strict=True)):
        assert cpp.listed("ids", index) == result.ids and cpp.text("text", index) == result.text
        if result.alignment is None or result.attention is None:
            assert text == "" and cpp.text("pharaoh", index) is None and cpp.matrix("attention", index) is None
            continue
        same_alignment(cpp, index, text, result.text, result.alignment)
        attention = cpp.matrix("attention", index)
        assert attention is not None
        np.testing.assert_allclose(attention, result.attention, rtol=0, atol=1e-6)
        np.testing.assert_allclose(attention.sum(axis=1), 1, atol=1e-5)


def same_alignment(cpp: Library, index: int, text: str, made: str, expected: Alignment) -> None:
    assert cpp.listed("alignment", index) == [-1 if token is None else token for token in expected.tokens]
    assert cpp.text("pharaoh", index) == expected.pharaoh
    assert cpp.listed("word_pairs", index) == expected.words
    spans = expected.source_spans, expected.target_spans, expected.source_words, expected.target_words
    for which, (characters, of) in enumerate(zip(spans, (text, made, text, made), strict=True)):
        in_bytes = [(len(of[:start].encode()), len(of[:end].encode())) for start, end in characters]
        assert cpp.listed("spans", index, ctypes.c_int(which)) == in_bytes


def test_from_ids(cpp: Library, python: Translator) -> None:
    sources = [python.tokenizer.encode(text) for text in TEXTS[:2]]
    expected = python.translate_ids(sources, alignments=True)
    assert cpp.translate_ids(sources, alignments=True) == len(expected)
    for index, result in enumerate(expected):
        assert result.alignment is not None
        same_alignment(cpp, index, "", result.text, result.alignment)
        assert cpp.matrix("attention", index) is None
    cpp.translate(TEXTS[:1], attention=True)
    assert cpp.text("pharaoh", 0) is None and cpp.listed("spans", 0, ctypes.c_int(2)) == []


@pytest.fixture
def languages(attention_bundle: Path, tmp_path: Path) -> Path:
    """A bundle whose sentences choose their target language, which answers begin with as well."""
    bundle = Path(shutil.copytree(attention_bundle, tmp_path / "bundle"))
    manifest = Manifest.load(bundle)
    description = replace(
        manifest.tokenizer,
        source_prefix=("target_language",),
        target_prefix=("target_language",),
        languages=Languages({}, {"fra": 40, "ita": 41}, None, "fra", True),
    )
    replace(manifest, tokenizer=description, alignment_heads=((0, 1), (1, 0))).write(bundle)
    return bundle


def test_languages_and_chosen_heads(languages: Path) -> None:
    """Ids of languages come from nowhere; a marker is of the text, and of its words, but not of its tokens."""
    library, translator = Library(languages), Translator(languages, "cpu")
    texts = ["seven seven", ">>ita<<seven  seven", ">>ita<< ｓｅｖｅｎ", ">>xyz<< one", "seven " * 200]
    expected = translator.translate(texts, alignments=True, attention=True, prefix="one")
    library.translate(texts, alignments=True, attention=True, prefix="one")
    for index, (text, result) in enumerate(zip(texts, expected, strict=True)):
        assert result.alignment is not None and result.alignment.tokens[:2].count(None) == 1
        same_alignment(library, index, text, result.text, result.alignment)
        np.testing.assert_allclose(library.matrix("attention", index), result.attention, rtol=0, atol=1e-6)
    scores = translator.score(texts, ["one"] * len(texts))
    library.score(texts, ["one"] * len(texts))
    assert [library.listed("ids", index) for index in range(len(texts))] == [score.ids for score in scores]
    assert scores[1].ids[0] == 41
    library.close()


def test_scores(cpp: Library, python: Translator) -> None:
    made = python.translate(GIVEN, scores=True, max_length=12)
    texts = [result.text or "seven" for result in made]
    expected = python.score(GIVEN, texts)
    assert cpp.score(GIVEN, texts) == len(GIVEN)
    for index, score in enumerate(expected):
        assert cpp.listed("ids", index) == score.ids
        np.testing.assert_allclose(cpp.listed("scores", index), score.scores, rtol=0, atol=1e-6)
    sources = [python.tokenizer.encode(text) for text in GIVEN[:4]]
    ids = [result.ids for result in made[:4]]
    assert cpp.score_ids(sources, ids) == 4
    for index, given in enumerate(python.score_ids(sources, ids)):
        assert cpp.listed("ids", index) == given.ids == ids[index]
        np.testing.assert_allclose(cpp.listed("scores", index), given.scores, rtol=0, atol=1e-6)


def test_embeddings(cpp: Library, python: Translator) -> None:
    pooled, whole = python.embed(GIVEN), python.embed(GIVEN, pooled=False)
    assert cpp.embed(GIVEN, True) == len(GIVEN)
    for index, row in enumerate(pooled):
        np.testing.assert_array_equal(cpp.matrix("embedding", index), row[None])
    assert cpp.embed(GIVEN, False) == len(GIVEN)
    for index, rows in enumerate(whole):
        np.testing.assert_array_equal(cpp.matrix("embedding", index), rows)
    assert cpp.listed("ids", 0) == [] and cpp.matrix("attention", 0) is None


def test_threads_share_what_the_first_of_them_loads(directory: Path, cpp: Library) -> None:
    def scores(library: Library) -> list[list[float]]:
        library.score(TEXTS[:2], TEXTS[:2])
        return [library.listed("scores", index) for index in range(2)]

    fresh = Library(directory)
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(scores, [fresh.twin() for _ in range(8)]))
    fresh.close()
    expected = scores(cpp)
    for each in found:
        for mine, theirs in zip(each, expected, strict=True):
            np.testing.assert_allclose(mine, theirs, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("method", "arguments"),
    [
        ("score", (["one", " "], ["one", "two"])),
        ("score", (["one"], [" "])),
        ("score", (["one"], ["one " * 300])),
        ("score_ids", ([[5, 3]], [[5, 256]])),
        ("score_ids", ([[5, 3]], [[5] * 129])),
        ("score_ids", ([[5] * 129], [[5]])),
        ("score_ids", ([[5, 3]], [[]])),
        ("score_ids", ([[0, 0]], [[5]])),
        ("score_ids", ([[-1]], [[5]])),
        ("embed", (["one", ""],)),
    ],
)
def test_bad_input_is_refused_in_the_same_words(
    cpp: Library, python: Translator, method: str, arguments: tuple[Any, ...]
) -> None:
    with pytest.raises(InputError) as expected:
        getattr(python, method)(*arguments)
    with pytest.raises(InputError) as found:
        getattr(cpp, method)(*arguments, *([True] if method == "embed" else []))
    assert str(found.value) == str(expected.value)


def test_a_bundle_without_the_graphs_is_refused_in_the_same_words() -> None:
    library, translator = Library(TOY), Translator(TOY, "cpu")
    for mine, theirs in (
        (lambda: library.translate(["one"], alignments=True), lambda: translator.translate(["one"], alignments=True)),
        (lambda: library.translate_ids([[5]], attention=True), lambda: translator.translate_ids([[5]], attention=True)),
        (lambda: library.score(["one"], ["one"]), lambda: translator.score(["one"], ["one"])),
        (lambda: library.score_ids([[5]], [[5]]), lambda: translator.score_ids([[5]], [[5]])),
        (lambda: library.embed(["one"], True), lambda: translator.embed(["one"])),
    ):
        with pytest.raises(BundleError) as found:
            mine()
        with pytest.raises(BundleError) as expected:
            theirs()
        assert str(found.value) == str(expected.value)
    library.close()


@pytest.mark.native("the compiler here builds for x86, and would have to build for arm64")
def test_the_example_of_the_readme(attention_bundle: Path, tmp_path: Path) -> None:
    examples = re.findall(r"```cpp\n(.*?)```", (SOURCE / "README.md").read_text(), re.DOTALL)
    (example,) = [each for each in examples if "options.alignments" in each]
    (tmp_path / "main.cpp").write_text(example)
    flags = ["-std=c++17", "-Wall", "-Werror", f"-I{SOURCE / 'include'}", f"-L{BUILD}", f"-Wl,-rpath,{BUILD}"]
    program = tmp_path / "example"
    subprocess.run(["c++", *flags, tmp_path / "main.cpp", "-ltxport", "-o", program], check=True)
    done = subprocess.run([program, attention_bundle, TEXTS[0]], capture_output=True, text=True, check=True)
    translator = Translator(attention_bundle, "cpu")
    (expected,) = translator.translate(TEXTS[:1], alignments=True, attention=True)
    assert expected.alignment is not None and expected.attention is not None
    lines = done.stdout.splitlines()
    words = TEXTS[0].split(), expected.text.split()
    assert lines[0] == f"{expected.text} ||| {expected.alignment.pharaoh}"
    assert lines[1:-3] == [f"{words[0][source]} -> {words[1][target]}" for source, target in expected.alignment.words]
    rows, columns = expected.attention.shape
    assert lines[-3] == f"{rows} x {columns}" and lines[-1] == str(translator.manifest.model.d_model)
    assert float(lines[-2]) == pytest.approx(translator.score(TEXTS[:1], [expected.text])[0].total, rel=1e-4)


WITH_NUMBERS = ["--json", "--scores", "--attention", "--max-length", "7"]


@pytest.mark.parametrize("options", [[], ["--json"], WITH_NUMBERS], ids=" ".join)
def test_the_tools_write_the_same_alignments(directory: Path, options: list[str], tmp_path: Path) -> None:
    (tmp_path / "in").write_text("".join(f"{text}\n" for text in TEXTS), encoding="utf-8")

    def run(tool: Path) -> "subprocess.CompletedProcess[bytes]":
        command = [tool, directory, tmp_path / "in", "--device", "cpu", "--alignments", *options]
        return subprocess.run(command, capture_output=True, timeout=500)

    expected, found = run(Path(sys.executable).with_name("tx-translate")), run(BUILD / "txport-translate")
    assert found.returncode == expected.returncode == 0 and b"0-0" in found.stdout
    if "--scores" not in options:
        assert found.stdout == expected.stdout
        return
    # C++ takes the logarithm of the sum over a vocabulary in the fused engine, in float32.
    for mine, theirs in zip(found.stdout.splitlines(), expected.stdout.splitlines(), strict=True):
        one, other = json.loads(mine), json.loads(theirs)
        assert one.pop("scores") == pytest.approx(other.pop("scores"), abs=3e-6)
        np.testing.assert_allclose(one.pop("attention", []), other.pop("attention", []), atol=3e-6)
        assert one == other
