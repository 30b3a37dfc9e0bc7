"""Alignments by hand: averages, words, characters, and what has none."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from toy import BUNDLE
from txport.runtime.bundle.manifest import Manifest
from txport.runtime.bundle.tokenizer_schema import Languages, ids_only
from txport.runtime.text.alignment import Alignment, align_tokens, align_words, average_heads, strip_span, words_of
from txport.runtime.text.sides import Bytes
from txport.runtime.text.tokenizer import TextTokenizer, open_tokenizer
from txport.runtime.text.unknown import restore_spans

# Cases by hand; those of tests/cpp/text/test_alignment.cpp.
CASES = json.loads((Path(__file__).parents[2] / "data" / "alignments.json").read_text())


@pytest.mark.parametrize("case", CASES["words"], ids=lambda case: case["name"])
def test_words_of_the_shared_cases(case: dict[str, Any]) -> None:
    texts = case["source"], case["target"]
    sources, targets = (
        [strip_span((start, end), text) for start, end in spans]
        for text, spans in zip(texts, (case["source_spans"], case["target_spans"]), strict=True)
    )
    words = words_of(texts[0]), words_of(texts[1])
    assert [list(span) for span in sources] == case["stripped_source"]
    assert [list(span) for span in targets] == case["stripped_target"]
    assert [[list(word) for word in side] for side in words] == [case["source_words"], case["target_words"]]
    pairs = align_words(case["tokens"], sources, targets, *words)
    assert Alignment(case["tokens"], sources, targets, *words, pairs).pharaoh == case["pharaoh"]


def test_tokens_and_averages_of_the_shared_cases() -> None:
    for case in CASES["tokens"]:
        attention = np.array(case["attention"], np.float32)
        assert align_tokens(attention, case["candidates"], case["aligned"]) == case["expected"]
    for case in CASES["averages"]:
        assert average_heads(np.array(case["cross"], np.float32), case["heads"]).tolist() == case["expected"]


def test_the_average_is_of_the_chosen_heads_or_of_the_last_two_layers() -> None:
    cross = np.random.default_rng(0).random((4, 3, 5, 6), np.float32)
    np.testing.assert_allclose(average_heads(cross, ()), cross[2:].mean((0, 1)), rtol=1e-6)
    np.testing.assert_allclose(average_heads(cross[:1], ()), cross[0].mean(0), rtol=1e-6)
    heads = ((0, 2), (3, 1))
    np.testing.assert_allclose(average_heads(cross, heads), (cross[0, 2] + cross[3, 1]) / 2, rtol=1e-6)


def test_a_token_goes_to_the_first_of_the_best_candidates() -> None:
    weights = np.array([[0.9, 0.05, 0.05], [0.1, 0.4, 0.5], [0.2, 0.4, 0.4]], np.float32)
    assert align_tokens(weights, [0, 1, 2], {0, 1, 2}) == [0, 2, 1]
    assert align_tokens(weights, [1, 2], {0, 2}) == [1, None, 1]
    assert align_tokens(weights, [], {0, 1, 2}) == [None] * 3


@given(st.text(alphabet="ab \t\u3000\u00a0é漢", max_size=20))
def test_words_are_what_split_gives(text: str) -> None:
    words = words_of(text)
    assert [text[start:end] for start, end in words] == text.split()


def test_words_are_aligned_if_any_of_their_tokens_are() -> None:
    """The text "a  bc" of the tokens "a", " ", " b", "c" to "xy z" of "x", "y", " z" and eos."""
    source, target = "a  bc", "xy z"
    sources = [strip_span(span, source) for span in ((0, 1), (1, 2), (2, 4), (4, 5))]
    targets = [strip_span(span, target) for span in ((0, 1), (1, 2), (2, 4), (4, 4))]
    assert sources == [(0, 1), (2, 2), (3, 4), (4, 5)] and targets == [(0, 1), (1, 2), (3, 4), (4, 4)]
    words = words_of(source), words_of(target)
    assert align_words([0, 3, 2, None], sources, targets, *words) == [(0, 0), (1, 0), (1, 1)]
    assert align_words([1, None, None, None], sources, targets, *words) == [(1, 0)], "a space begins the next word"
    assert align_words([0, 0, 0, 0], sources, targets, *words) == [(0, 0), (0, 1)], "eos is of no word"
    alignment = Alignment([0], sources, targets, *words, [(0, 0), (1, 2)])
    assert alignment.pharaoh == "0-0 1-2"


def test_each_byte_has_its_character() -> None:
    ids, spans = Bytes().locate("aé🙂z")
    assert [token - 3 for token in ids] == [*"aé🙂z".encode()]
    assert spans == [(0, 1), *[(1, 2)] * 2, *[(2, 3)] * 4, (3, 4)]


def test_characters_are_counted_from_the_marker_of_a_language() -> None:
    languages = Languages({}, {"de": 300}, None, None, True)
    description = replace(ids_only(1), source_prefix=("target_language",), languages=languages)
    ids, spans, around = TextTokenizer(Bytes(), Bytes(), description, 2).locate_source(">>de<< no")
    assert ids == [byte + 3 for byte in b" no"] and around.source_prefix == [300]
    assert spans == [(6, 7), (7, 8), (8, 9)]


def test_a_gap_is_between_the_pieces_before_and_after_it() -> None:
    """Of "abc", ten characters that were left out, and "de"."""
    assert restore_spans([(0, 2), (2, 3), (3, 5)], [(3, 10)]) == [(0, 2), (2, 3), (13, 15)]
    assert restore_spans([(0, 5)], [(3, 10)]) == [(0, 15)], "one piece of all of it"


@pytest.fixture(scope="module")
def tokenizer() -> TextTokenizer:
    manifest = Manifest.load(BUNDLE)
    found = open_tokenizer(BUNDLE, manifest.tokenizer, manifest.vocabularies)
    assert isinstance(found, TextTokenizer)
    return found


@given(st.text(max_size=30))
def test_each_source_id_has_its_characters(tokenizer: TextTokenizer, text: str) -> None:
    """In order, inside the text, and none that can be seen is left out."""
    ids, spans, around = tokenizer.locate_source(text)
    assert (ids, around) == tokenizer.encode_source(text) and len(spans) == len(ids)
    assert all(0 <= start <= end <= len(text) for start, end in spans)
    assert spans == sorted(spans)


@given(st.lists(st.integers(0, 95), max_size=12))
def test_each_target_id_has_its_characters(tokenizer: TextTokenizer, ids: list[int]) -> None:
    spans, text = tokenizer.target_spans(ids), tokenizer.decode(ids)
    assert len(spans) == len(ids) and "".join(text[start:end] for start, end in spans) == text
