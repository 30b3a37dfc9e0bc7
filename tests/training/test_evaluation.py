"""Figures: sacreBLEU's, exact match, and translating with the loop that ships."""

import dataclasses
from pathlib import Path

import pytest
import sacrebleu
from txport.models.checkpoint import save_checkpoint
from txport.models.transformer import Transformer
from txport.runtime.calls.requests import Call
from txport.runtime.errors import CheckpointError, InputError
from txport.runtime.search.decoding import decode_all
from txport.runtime.search.settings import Search
from txport.runtime.text.affixes import Affixes
from txport.training.quality.evaluation import PlainTranslation, answers, open_model, score, translate
from txport.training.torch_engine import TorchEngine


class Letters:
    """One id a letter, from 4 on."""

    def encode(self, text: str) -> list[int]:
        ids, around = self.encode_source(text)
        return around.wrap(ids)

    def encode_source(
        self, text: str, source_language: str | None = None, target_language: str | None = None
    ) -> tuple[list[int], Affixes]:
        return self.encode_prefix(text), Affixes([], [3], [])

    def affixes(self, source_language: str | None = None, target_language: str | None = None) -> Affixes:
        return Affixes([], [3], [])

    def encode_prefix(self, text: str) -> list[int]:
        return [ord(letter) - 93 for letter in text]

    def decode(self, ids: list[int]) -> str:
        return "".join(chr(number + 93) for number in ids if number > 3)


def test_scores_are_those_of_sacrebleu() -> None:
    made = ["the cat sat on the mat", "a dog", "hello there my friend"]
    wanted = ["the cat sat on a mat", "a dog", "hello there, friend"]
    scores = score(made, wanted)
    assert scores.sentences == 3 and scores.exact == pytest.approx(1 / 3)
    assert scores.bleu == pytest.approx(sacrebleu.corpus_bleu(made, [wanted]).score)
    assert scores.chrf == pytest.approx(sacrebleu.corpus_chrf(made, [wanted]).score)
    assert "tok:13a" in scores.bleu_signature and "nc:6" in scores.chrf_signature


def test_perfect_scores() -> None:
    scores = score(["one two three four five"], ["one two three four five"])
    assert scores.exact == 1 and scores.bleu == pytest.approx(100) and scores.chrf == pytest.approx(100)


def test_order_empty_and_long_sentences(copying_model: Transformer) -> None:
    """Each translation alone is what it is among others; an empty line stays empty; a long one is cut, not refused."""
    engine, tokenizer = TorchEngine(copying_model), Letters()
    sentences = ["abc", "", "hello", "a", "tsrqponm", "k" * 100]
    together = translate(engine, tokenizer, sentences)
    assert together == [translate(engine, tokenizer, [sentence])[0] for sentence in sentences]
    assert together[1] == "" and together[5] == translate(engine, tokenizer, ["k" * 39])[0]


def endless(model: Transformer) -> TorchEngine:
    """Waits for an end that the model never makes of the letters of these tests."""
    engine = TorchEngine(model)
    engine.tokens = dataclasses.replace(engine.tokens, eos=23)
    return engine


def test_answers_without_an_end_are_limited_by_their_source(copying_model: Transformer) -> None:
    engine, tokens = endless(copying_model), []
    letters = Letters()
    letters.decode = lambda ids: str(len(ids))  # type: ignore[method-assign]
    for source in ("abc", "a", "abcdefghij"):
        tokens += answers(engine, letters, [source])
    # Twice the source with its end, and 20; the model has 40 positions.
    assert tokens == [
        PlainTranslation("28", finished=False),
        PlainTranslation("24", finished=False),
        PlainTranslation("40", finished=False),
    ]
    assert answers(engine, letters, ["abc"], max_length=5) == [PlainTranslation("5", finished=False)]
    with pytest.raises(InputError, match="the maximum length 41 is not between 1 and 40, the maximum of this model"):
        answers(engine, letters, ["abc"], max_length=41)


def test_what_ended_and_what_was_read(copying_model: Transformer) -> None:
    done: list[int] = []
    sentences = ["abc", "", "k" * 100, *["defg"] * 300]
    made = answers(TorchEngine(copying_model), Letters(), sentences, watch=done.append)
    assert [answer.complete_source for answer in made[:3]] == [True, True, False]
    assert made[0].finished and made[1] == PlainTranslation("") and sum(done) == 303 and len(done) == 2
    assert [answer.text for answer in made] == translate(TorchEngine(copying_model), Letters(), sentences)


def test_beams_are_those_of_the_search(copying_model: Transformer) -> None:
    engine, sentences = TorchEngine(copying_model), ["abc", "hello", "tsrqponm"]
    search = Search(beam=3)
    call = Call.of(Letters(), engine.limits)
    found = [call.sentence(text, "it") for text in sentences]
    requests = [dataclasses.replace(each.request, search=search) for each in found if each is not None]
    expected = [Letters().decode(result.ids) for result in decode_all(engine, requests)]
    assert [answer.text for answer in answers(engine, Letters(), sentences, beam=3)] == expected
    with pytest.raises(InputError, match="beam 65 is too large: this bundle supports at most 64 rows"):
        answers(engine, Letters(), sentences, beam=65)


def test_a_directory_that_is_neither(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is neither a bundle .* nor a checkpoint"):
        open_model(tmp_path)


def test_a_checkpoint_without_tokenizer(copying_model: Transformer, tmp_path: Path) -> None:
    save_checkpoint(tmp_path / "checkpoint", copying_model, None, [], {})
    with pytest.raises(CheckpointError, match="has no tokenizer"):
        open_model(tmp_path / "checkpoint")
