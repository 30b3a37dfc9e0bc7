"""The loss in BLEU that is significantly larger than the allowed loss."""

import itertools
from collections.abc import Collection, Sequence
from typing import cast

import numpy as np
import pytest
from sacrebleu.metrics.bleu import BLEU
from txport.exporter.verification.quality import MAX_LOST, SIGNIFICANCE, Quality, References, bleu_of, p_value_of
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
def test_a_loss_from_few_sentences_is_not_significant(count: int) -> None:
    quality = judged(range(count))
    assert quality.loss is not None and quality.loss > 0.1 and quality.failure is None


def test_a_sample_without_the_only_changed_sentence_has_no_loss() -> None:
    """A sample of n sentences lacks one of them with the probability (1 - 1/n)^n."""
    p_value = judged([17]).p_value
    assert p_value is not None and p_value > (1 - 1 / len(TEXTS)) ** len(TEXTS) - 0.03


def test_more_wrong_sentences_are_refused() -> None:
    assert "BLEU" in (judged(range(10)).failure or "")


def test_a_loss_in_every_sample_has_the_smallest_p_value() -> None:
    """Which is not 0 (Phipson and Smyth 2010, "Permutation p-values should never be zero")."""
    assert judged(range(len(TEXTS) // 2)).p_value == pytest.approx(1 / 5001)


def test_as_many_wrong_ones_elsewhere_cost_nothing() -> None:
    assert judged(range(10), pytorch=range(50, 60)).failure is None


def test_the_p_value_is_the_share_of_all_samples() -> None:
    """Of five sentences all 3,125 samples can be tried."""
    texts = TEXTS[:5]
    references = References(cast(Tokenizer, Lines()), texts, [])
    ours = references.counts([wrong(text) if number in (0, 1) else text for number, text in enumerate(texts)])
    pytorch = references.counts([wrong(text) if number in (1, 2) else text for number, text in enumerate(texts)])
    samples = [list(sample) for sample in itertools.product(range(5), repeat=5)]
    allowed = sum(bleu_of(pytorch[drawn].sum(0)) - bleu_of(ours[drawn].sum(0)) <= MAX_LOST for drawn in samples)
    assert 0.2 < allowed / len(samples) < 0.8
    assert p_value_of(ours, pytorch) == pytest.approx(allowed / len(samples), abs=0.03)


def test_a_bundle_as_good_as_pytorch_is_hardly_ever_refused() -> None:
    """Both are wrong in a random tenth of the sentences: 60 pairs of equal quality."""
    random = np.random.default_rng(7)
    references = References(cast(Tokenizer, Lines()), TEXTS, [])
    right, other = references.counts(TEXTS), references.counts([wrong(text) for text in TEXTS])
    refused = losses = 0
    for _ in range(60):
        worse = random.random((2, len(TEXTS), 1)) < 0.1
        ours, pytorch = (np.where(each, other, right) for each in worse)
        if bleu_of(pytorch.sum(0)) - bleu_of(ours.sum(0)) > MAX_LOST:
            losses += 1
            refused += p_value_of(ours, pytorch) < SIGNIFICANCE
    assert losses > 15 and refused == 0
