"""Figures: sacreBLEU's, exact match, and translating with the loop that ships."""

from pathlib import Path

import pytest
import sacrebleu
from txport.models.checkpoint import save_checkpoint
from txport.models.transformer import Transformer
from txport.runtime.errors import CheckpointError, InputError
from txport.runtime.text.affixes import Affixes
from txport.training.evaluation import score, translate, translate_with
from txport.training.torch_engine import TorchEngine


class Letters:
    """One id a letter, from 4 on."""

    def encode(self, text: str) -> list[int]:
        ids, around = self.encode_source(text)
        return around.around(ids)

    def encode_source(
        self, text: str, source_language: str | None = None, target_language: str | None = None
    ) -> tuple[list[int], Affixes]:
        return self.encode_prefix(text), Affixes([], [3], [])

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


def test_a_directory_that_is_neither(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is neither a bundle .* nor a checkpoint"):
        translate_with(tmp_path, ["x"])


def test_a_checkpoint_without_tokenizer(copying_model: Transformer, tmp_path: Path) -> None:
    save_checkpoint(tmp_path / "checkpoint", copying_model, None, [], {})
    with pytest.raises(CheckpointError, match="has no tokenizer"):
        translate_with(tmp_path / "checkpoint", ["x"])
