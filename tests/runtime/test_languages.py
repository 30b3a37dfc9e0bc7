"""Bundles with several languages: which tokens each choice puts around a text, and what is refused."""

from pathlib import Path

import pytest
from toy import SOURCE, TOKENS, answer
from txport.runtime.bundle.manifest import Manifest
from txport.runtime.bundle.tokenizer_schema import Languages, TokenizerDescription
from txport.runtime.errors import InputError
from txport.runtime.options import Options
from txport.runtime.translator import Translator


def multilingual(directory: Path, **changes: object) -> Translator:
    """The toy bundle with languages: a source token before each text, a forced target token before each answer."""
    manifest = Manifest.load(directory)
    languages = Languages({"eng": 90, "deu": 91}, {"fra": 40, "ita": 41}, "eng", None, False)
    description = TokenizerDescription(
        **{
            **vars(manifest.tokenizer),
            "source_prefix": ("source_language",),
            "source_suffix": (TOKENS.eos, 5),
            "target_prefix": (7, "target_language"),
            "languages": languages,
            **changes,
        }
    )
    Manifest(**{**vars(manifest), "tokenizer": description}).write(directory)
    return Translator(directory, threads=1)


def test_languages(damaged: Path, toy: Translator) -> None:
    translator = multilingual(damaged)
    text = toy.tokenizer.encode("one")[:-1]
    for source, target, first, forced in (
        (None, "fra", 90, [7, 40]),
        ("deu", "ita", 91, [7, 41]),
    ):
        languages = {"source_language": source, "target_language": target}
        made, scores = answer([first, *text, TOKENS.eos, 5], 9, prefix=forced)
        (result,) = translator.translate(["one"], max_length=9, scores=True, **languages)
        assert result.ids == made and result.scores == pytest.approx(scores, rel=1e-4)
        assert [piece.id for piece in translator.stream("one", max_length=9, **languages)] == made
        (result,) = translator.translate_ids([[first, *text, TOKENS.eos, 5]], max_length=9, **languages)
        assert result.ids == made
    after = toy.tokenizer.encode_prefix("the cat")
    (result,) = translator.translate(["one"], max_length=9, prefix="the cat", target_language="fra")
    assert result.ids == answer([90, *text, TOKENS.eos, 5], 9, prefix=[7, 40, *after])[0]


def test_languages_reach_files_and_cuts_keep_affixes(damaged: Path, toy: Translator, tmp_path: Path) -> None:
    translator = multilingual(damaged)
    long = "one two " * 40
    (tmp_path / "in").write_text(f"one\n\n{long}\n")
    translator.translate_file(tmp_path / "in", tmp_path / "out", Options(target_language="ita", source_language="deu"))
    expected_text = []
    for text in ("one", long):
        ids = [91, *toy.tokenizer.encode(text)[:-1][: SOURCE - 3], TOKENS.eos, 5]
        expected_text.append(toy.tokenizer.decode(answer(ids, prefix=[7, 41])[0]))
    found = (tmp_path / "out").read_text().split("\n")
    assert found == [expected_text[0], "", expected_text[1], ""]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "--target-language: fra, ita"),
        ({"target_language": "fr"}, "'fr' is unknown to this bundle: use fra, ita"),
        ({"target_language": "fra", "source_language": "fra"}, "'fra' is unknown to this bundle: use eng, deu"),
        ({"target_language": "fra", "max_length": 2}, "a prefix of 2 tokens leaves no room"),
    ],
)
def test_languages_that_cannot_be(damaged: Path, options: dict[str, object], words: str) -> None:
    translator = multilingual(damaged)
    with pytest.raises(InputError, match=words):
        translator.translate([], **options)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=words):
        translator.translate_ids([[5, 3]], **options)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=words):
        list(translator.stream("one", **options))  # type: ignore[arg-type]


def test_a_bundle_without_languages_has_none_to_choose(toy: Translator) -> None:
    with pytest.raises(InputError, match="no target language to choose"):
        toy.translate(["one"], target_language="fra")
    with pytest.raises(InputError, match="no source language to choose"):
        toy.translate_ids([[5, 3]], source_language="fra")


def test_many_languages_are_not_all_listed(damaged: Path) -> None:
    many = Languages({"eng": 90}, {f"l{i}": 10 + i for i in range(20)}, "eng", None, False)
    translator = multilingual(damaged, languages=many)
    with pytest.raises(InputError, match=r"use l0, l1, l2, l3, l4, l5, l6, l7 or one of 12 more") as caught:
        translator.translate(["one"], target_language="fra")
    assert "l8" not in str(caught.value)


def test_a_text_chooses_its_language(damaged: Path, toy: Translator) -> None:
    chosen = Languages({}, {"fra": 40, "ita": 41}, None, None, True)
    marian = {"source_prefix": ("target_language",), "source_suffix": (3,), "target_prefix": (), "languages": chosen}
    translator = multilingual(damaged, **marian)
    text = toy.tokenizer.encode("one")
    sources = {">>fra<< one": [40, *text], ">>xx<<one": [TOKENS.unk, *text], "one": text, ">>ita<< ": []}
    found = translator.translate(list(sources), max_length=9)
    assert [result.ids for result in found] == [answer(ids, 9)[0] if ids else [] for ids in sources.values()]
    document = translator.translate_document(">>fra<<\n one.\n\n two", max_length=9)
    alone = translator.translate([">>fra<<one.", ">>fra<<two"], max_length=9)
    assert [part.translation for part in document.parts] == alone
    assert [part.source for part in document.parts] == [(9, 13), (16, 19)]
    assert document.text == f"\n {alone[0].text}\n\n {alone[1].text}"
    found = translator.translate(["one", ">>fra<<one"], max_length=9, target_language="ita")
    assert [result.ids for result in found] == [answer([first, *text], 9)[0] for first in (41, 40)]
