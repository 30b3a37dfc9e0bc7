"""The shared cases of `tests/data/tokenizer`, whose answers Hugging Face's MarianTokenizer gave."""

import json
from pathlib import Path
from typing import Any

import make_tokenizer_cases
import pytest
from hypothesis import given
from hypothesis import strategies as st
from txport.runtime.bundle.strict_json import decode
from txport.runtime.bundle.tokenizer_schema import TokenizerDescription, Vocabularies
from txport.runtime.errors import BundleError, InputError
from txport.runtime.text.affixes import Affixes
from txport.runtime.text.tokenizer import TextTokenizer, open_tokenizer
from txport.runtime.text.vocabulary import Vocabulary, load_vocabulary

DIRECTORY = make_tokenizer_cases.DIRECTORY
INDEX: dict[str, Any] = json.loads((DIRECTORY / "index.json").read_text(encoding="utf-8"))
VOCABULARIES = Vocabularies(INDEX["vocabulary"], INDEX["vocabulary"], INDEX["unk"])


@pytest.fixture(scope="module")
def tokenizers() -> dict[str, TextTokenizer]:
    opened = {}
    for name, value in INDEX["tokenizers"].items():
        description = decode(TokenizerDescription, value, "index.json")
        tokenizer = open_tokenizer(DIRECTORY, description, VOCABULARIES)
        assert isinstance(tokenizer, TextTokenizer)
        opened[name] = tokenizer
    return opened


def test_encode(tokenizers: dict[str, TextTokenizer]) -> None:
    cases = [case for case in INDEX["encode"] if "ids" in case]
    assert len(cases) > 100
    for case in cases:
        languages = case["source_language"], case["target_language"]
        ids, around = tokenizers[case["tokenizer"]].encode_source(case["text"], *languages)
        assert (around.wrap(ids), around.target_prefix) == (case["ids"], case["target_prefix"]), case


@pytest.mark.parametrize("case", [case for case in INDEX["encode"] if "error" in case], ids=lambda case: case["error"])
def test_languages_that_cannot_be(tokenizers: dict[str, TextTokenizer], case: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=case["error"]):
        tokenizers[case["tokenizer"]].encode_source(case["text"], case["source_language"], case["target_language"])


def test_prefix_and_decode(tokenizers: dict[str, TextTokenizer]) -> None:
    for case in INDEX["prefix"]:
        assert tokenizers[case["tokenizer"]].encode_prefix(case["text"]) == case["ids"]
    assert len({case["text"] for case in INDEX["decode"]}) > 50
    for case in INDEX["decode"]:
        assert tokenizers[case["tokenizer"]].decode(case["ids"]) == case["text"], case


def test_the_files_are_those_of_the_script(tmp_path: Path) -> None:
    pytest.importorskip("transformers", reason="needs transformers: pip install 'txport[dev]'")
    make_tokenizer_cases.write(tmp_path)
    for name in ("index.json", "vocabulary.json"):
        assert (tmp_path / name).read_bytes() == (DIRECTORY / name).read_bytes()


@given(st.lists(st.integers(0, 9), max_size=4), st.lists(st.integers(), max_size=30), st.integers(0, 12))
def test_cutting_keeps_what_stands_around(affix: list[int], ids: list[int], most: int) -> None:
    around = Affixes(affix, affix[::-1], [])
    found = around.wrap(ids, most)
    inner = found[len(affix) : len(found) - len(affix)]
    assert found == [*affix, *inner, *affix[::-1]] and inner == ids[: len(inner)]
    assert len(inner) == min(len(ids), max(0, most - 2 * len(affix)))
    assert around.wrap(ids) == [*affix, *ids, *affix[::-1]]


@given(st.lists(st.none() | st.text(max_size=3), max_size=20, unique_by=lambda piece: piece or object()))
def test_pieces_there_and_back(pieces: list[str | None]) -> None:
    vocabulary = Vocabulary(pieces, unk=-5)
    known = [piece for piece in pieces if piece is not None]
    assert vocabulary.pieces(vocabulary.ids(known)) == known
    assert vocabulary.ids(["not a piece"]) == [-5]


def written(path: Path, pieces: object, version: object = 1) -> Path:
    path.write_text(json.dumps({"format_version": version, "pieces": pieces}))
    return path


def test_a_vocabulary_that_is_whole(tmp_path: Path) -> None:
    vocabulary = load_vocabulary(written(tmp_path / "v.json", ["a", None, "b", None]), 4, unk=1)
    assert vocabulary.ids(["b", "a", "c", ""]) == [2, 0, 1, 1]
    assert vocabulary.pieces([-1, 0, 1, 2, 3, 4, 10**9]) == ["a", "b"]


@pytest.mark.parametrize(
    ("pieces", "version", "words"),
    [
        (["a", "b", "a"], 1, "the piece 'a' twice"),
        (["a"] + [None] * 4, 1, "more than the vocabulary of 4"),
        (["a", 1], 1, "must be a string"),
        ("ab", 1, "must be an array"),
        (["a"], 2, "format_version 2"),
        (["a"], True, "format_version True"),
    ],
)
def test_vocabularies_that_are_not(tmp_path: Path, pieces: object, version: object, words: str) -> None:
    file = written(tmp_path / "v.json", pieces, version)
    with pytest.raises(BundleError, match=words) as caught:
        load_vocabulary(file, 4, unk=1)
    assert str(caught.value).startswith(str(file))


def test_vocabularies_that_are_damaged(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="is missing"):
        load_vocabulary(tmp_path / "v.json", 4, unk=1)
    (tmp_path / "v.json").write_text('{"format_version": 1, "pieces": [], "pieces": []}')
    with pytest.raises(BundleError, match="twice"):
        load_vocabulary(tmp_path / "v.json", 4, unk=1)
