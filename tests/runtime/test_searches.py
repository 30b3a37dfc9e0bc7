"""Searches through the doors of the runtime: hypotheses of a `Translator`, and lines of JSON of the command."""

import asyncio
import gc
import json
import time
import weakref
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from txport.runtime.bundle.manifest import Manifest
from txport.runtime.bundle.schema import Generation
from txport.runtime.errors import InputError
from txport.runtime.options import Options
from txport.runtime.results import Piece, Translation, looped
from txport.runtime.translate_command import main
from txport.runtime.translator import Translator

WORD = st.integers(0, 2)
TEXTS = ["the cat sees a bird", "", "one", "not two or three", "a big red dog"]


def test_hypotheses_are_distinct_and_the_best_first(bundle: Path) -> None:
    plain = Translator(bundle).translate(TEXTS, beam=4)
    for result, alone in zip(Translator(bundle).translate(TEXTS, beam=4, n_best=3, scores=True), plain, strict=True):
        if not result.text:
            assert result.hypotheses == ()
            continue
        assert len({tuple(each.ids) for each in result.hypotheses}) == 3
        scores = [each.score or 0.0 for each in result.hypotheses]
        assert scores == sorted(scores, reverse=True)
        assert (result.text, result.ids, result.score) == (alone.text, alone.ids, alone.score)
        for each in result.hypotheses:
            assert each.scores is not None and each.score is not None
            assert each.score == pytest.approx(sum(each.scores) / len(each.ids), abs=1e-5)


def test_a_beam_of_one_is_greedy(bundle: Path) -> None:
    translator = Translator(bundle)
    assert translator.translate(TEXTS, beam=1) == translator.translate(TEXTS)


def test_a_wider_beam_finds_no_worse(bundle: Path) -> None:
    """With sums of log-probabilities as scores, most answers are at least as probable as the greedy one's."""
    translator = Translator(bundle)
    greedy = translator.translate(TEXTS, scores=True)
    better = 0
    beams = translator.translate(TEXTS, beam=6, length_penalty=0.0, early_stopping="never")
    for one, other in zip(greedy, beams, strict=True):
        if one.text:
            assert one.scores is not None and other.score is not None
            better += other.score >= sum(one.scores) - 1e-4
    assert better >= 3


def test_every_hypothesis_has_its_alignment(bundle: Path) -> None:
    translator = Translator(bundle)
    if translator.manifest.optional_graph("decoder") is None:
        pytest.skip("the bundle was exported without attention")
    (result,) = translator.translate(TEXTS[:1], beam=3, n_best=3, alignments=True)
    for each in result.hypotheses:
        (alone,) = translator.translate(TEXTS[:1], prefix=each.ids[:-1], alignments=True, max_length=len(each.ids))
        assert alone.ids == each.ids and each.alignment == alone.alignment


def test_samples_follow_from_the_seed_and_the_line(bundle: Path) -> None:
    translator = Translator(bundle)
    drawn = translator.translate(TEXTS, sample=True, n_best=2, seed=3, temperature=2.0)
    assert drawn == translator.translate(TEXTS, sample=True, n_best=2, seed=3, temperature=2.0)
    assert drawn != translator.translate(TEXTS, sample=True, n_best=2, seed=4, temperature=2.0)
    windows = translator.translate_windows([TEXTS[:2], TEXTS[2:]], sample=True, n_best=2, seed=3, temperature=2.0)
    assert [result for window in windows for result in window] == drawn
    assert translator.translate(TEXTS, sample=True, top_k=1) == translator.translate(TEXTS)


def test_lines_of_json(bundle: Path, tmp_path: Path) -> None:
    (tmp_path / "text").write_text("\n".join(TEXTS) + "\n")
    options = ["--beam", "3", "--n-best", "2", "--early-stopping", "true", "--bad-words", "the", "--json"]
    arguments = [str(bundle), str(tmp_path / "text"), *options, "-o", str(tmp_path / "out")]
    main(arguments, standalone_mode=False)
    lines = [json.loads(line) for line in (tmp_path / "out").read_bytes().splitlines()]
    wanted = Options(beam=3, n_best=2, early_stopping=True, bad_words=["the"])
    for line, result in zip(lines, Translator(bundle).translate(TEXTS, wanted), strict=True):
        assert (line["text"], line["ids"], line["looped"]) == (result.text, result.ids, result.looped)
        assert [each["ids"] for each in line.get("hypotheses", [])] == [each.ids for each in result.hypotheses]
        assert line.get("score", 0) == pytest.approx(result.score or 0, abs=1e-6)


@settings(max_examples=200, deadline=None)
@given(st.lists(WORD, max_size=10), st.lists(WORD, min_size=1, max_size=6), st.integers(0, 14))
def test_loops(begin: list[int], block: list[int], times: int) -> None:
    ids = [*begin, *block * times]
    ends = [ids[len(ids) - length :] for length in range(12, len(ids) + 1)]
    periods = [(end, period) for end in ends for period in range(1, len(end) // 3 + 1)]
    assert looped(ids) == any(end[period:] == end[:-period] for end, period in periods)


def test_submitted_sentences_are_translated_as_in_a_call(bundle: Path) -> None:
    with Translator(bundle) as translator:
        expected = translator.translate(TEXTS, scores=True)
        pieces: list[Piece] = []
        futures = [translator.submit(text, scores=True, on_piece=pieces.append) for text in TEXTS[:1]]
        futures += [translator.submit(text, scores=True) for text in TEXTS[1:]]
        beams = translator.submit(TEXTS[0], beam=3, n_best=2)
        for future, result in zip(futures, expected, strict=True):
            assert (future.result(60).text, future.result(60).ids) == (result.text, result.ids)
        assert "".join(piece.text for piece in pieces) == expected[0].text
        assert beams.result(60) == translator.translate(TEXTS[:1], beam=3, n_best=2)[0]

        async def awaited() -> list[Translation]:
            return list(await asyncio.gather(*map(translator.submit, TEXTS)))

        assert [result.ids for result in asyncio.run(awaited())] == [result.ids for result in expected]
        with pytest.raises(InputError, match="a stream is greedy"):
            translator.submit(TEXTS[0], beam=2, on_piece=pieces.append)
    with pytest.raises(InputError, match="was closed"):
        translator.submit("one")


def test_a_translator_that_is_dropped_ends_its_queue(bundle: Path) -> None:
    translator = Translator(bundle)
    engine = weakref.ref(translator.engine)
    translator.submit(TEXTS[0]).result(60)
    del translator
    begin = time.monotonic()
    while gc.collect() or engine() is not None:  # the queue's thread may still put its last request away
        assert time.monotonic() < begin + 60
        time.sleep(0.001)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"top_p": 0.9}, "top_p has no effect without sample"),
        ({"top_k": 5, "beam": 2}, "top_k has no effect without sample"),
        ({"temperature": 0.5, "alternatives": 2}, "temperature has no effect without sample"),
        ({"min_p": 0.1}, "min_p has no effect without sample"),
        ({"seed": 7}, "seed has no effect without sample"),
        ({"length_penalty": 0.6}, "length_penalty has no effect without a beam of 2 or more"),
        ({"early_stopping": "never", "beam": 1}, "early_stopping has no effect without a beam of 2 or more"),
        ({"renormalize": True, "sample": True}, "renormalize has no effect without a beam of 2 or more"),
        ({"beam": 2, "patience": 2.0}, "patience has no effect without early_stopping true"),
        ({"beam": 2, "early_stopping": "never", "patience": 2.0}, "patience has no effect without early_stopping"),
        ({"max_length": 5, "full_length": True}, "full_length has no effect with max_length"),
    ],
)
def test_options_without_effect_are_refused(toy: Translator, options: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        toy.translate(["the cat"], **options)


def test_options_of_no_effect_by_their_value_are_not_refused(toy: Translator) -> None:
    """As callers give them who always name all."""
    neutral = {"top_k": 0, "top_p": 1.0, "temperature": 1.0, "seed": 0, "length_penalty": 1.0, "early_stopping": False}
    assert toy.translate(["the cat"], **neutral) == toy.translate(["the cat"])


def test_options_have_their_effect_by_the_models_own_settings(damaged: Path) -> None:
    manifest = Manifest.load(damaged)
    for generation, options in (
        (Generation(beam=3), {"length_penalty": -2.0}),
        (Generation(sample=True), {"top_k": 2}),
    ):
        Manifest(**{**vars(manifest), "generation": generation}).write(damaged)
        with Translator(damaged, threads=1) as translator:
            translator.translate(["the cat"], generation="model", **options)
            with pytest.raises(InputError, match="has no effect"):
                translator.translate(["the cat"], **options)
