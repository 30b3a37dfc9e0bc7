"""The loss in BLEU that is more than chance."""

import itertools
from collections.abc import Collection, Sequence
from typing import cast

import numpy as np
import pytest
from sacrebleu.metrics.bleu import BLEU
from txport.exporter.verification.quality import Quality, References, bleu_of, chance_of
from txport.runtime.text.tokenizer import Tokenizer
from txport.training.spoken import corpus

TEXTS = [said for _, said in itertools.islice(corpus.sentences(5, "test"), 1000) if len(said.split()) >= 8][:200]


def wrong(text: str) -> str:
    """The text with another end."""
    return " ".join([*text.split()[:-3], "quite", "another", "end"])


class Lines:
    """A tokenizer whose ids are numbers of texts, of right ones and then of wrong ones."""

    def decode(self, ids: Sequence[int]) -> str:
        return [*TEXTS, *map(wrong, TEXTS)][ids[0]]


def judged(ours: Collection[int], pytorch: Collection[int] = ()) -> Quality:
    """The quality of a bundle with these sentences wrong, beside a PyTorch with those wrong."""

    def ids(errors: Collection[int]) -> list[list[int]]:
        return [[number + len(TEXTS) * (number in errors)] for number in range(len(TEXTS))]

    return References(cast(Tokenizer, Lines()), TEXTS, ids(pytorch)).quality(ids(ours), 0.0)


def test_bleu_is_that_of_sacrebleu() -> None:
    texts = [wrong(text) if number % 3 else text for number, text in enumerate(TEXTS)]
    counts = References(cast(Tokenizer, Lines()), TEXTS, []).counts(texts)
    assert bleu_of(counts.sum(0)) == pytest.approx(BLEU().corpus_score(texts, [TEXTS]).score, abs=1e-9)


@pytest.mark.parametrize("count", [1, 2, 4])
def test_few_changed_sentences_are_chance(count: int) -> None:
    quality = judged(range(count))
    assert quality.lost is not None and quality.lost > 0.1 and quality.failure is None


def test_one_changed_sentence_differs_as_much_however_it_is_exchanged() -> None:
    assert judged([17]).chance == 1


def test_more_wrong_sentences_are_refused() -> None:
    assert "BLEU" in (judged(range(10)).failure or "")


def test_what_no_exchange_gives_is_rare_and_not_impossible() -> None:
    """The difference itself is one of the exchanges (Phipson and Smyth 2010, "Permutation p-values")."""
    assert judged(range(len(TEXTS) // 2)).chance == pytest.approx(1 / 1001)


def test_as_many_wrong_ones_elsewhere_cost_nothing() -> None:
    assert judged(range(10), pytorch=range(50, 60)).failure is None


def test_chance_is_the_share_of_all_exchanges() -> None:
    """Of six sentences all 64 exchanges can be tried."""
    random = np.random.default_rng(2)
    texts = TEXTS[:6]
    references = References(cast(Tokenizer, Lines()), texts, [])
    ours = references.counts([wrong(text) for text in texts])
    theirs = references.counts([wrong(text) if random.random() < 0.3 else text for text in texts])
    found = abs(bleu_of(ours.sum(0)) - bleu_of(theirs.sum(0)))
    as_large = 0
    for exchange in itertools.product((0, 1), repeat=6):
        step = np.array(exchange) @ (theirs - ours)
        as_large += abs(bleu_of(ours.sum(0) + step) - bleu_of(theirs.sum(0) - step)) >= found - 1e-9
    assert chance_of(ours, theirs) == pytest.approx(as_large / 64, abs=0.05)
