"""Scores of single translations, for listing the worst."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from sacrebleu.metrics.chrf import CHRF
from txport.training.corpora import Pair


@dataclass(frozen=True)
class Scored:
    """Translation with scores.

    Attributes:
        source, reference, translation: the texts.
        bleu: `sentence_bleu`, 0 to 1.
        chrf: sacreBLEU's, 0 to 100 (Popović 2015).
    """

    source: str
    reference: str
    translation: str
    bleu: float
    chrf: float


def sentence_bleu(translation: str, reference: str, order: int = 2) -> float:
    """Return the BLEU of one sentence, 0 to 1, in words between spaces (Zhang et al. 2023, section 10.7.6).

    It is exp(min(0, 1 - r/t)) times the product of p_n ** (1/2)**n for n from 1 to `order`. t and r are the numbers of
    words in translation and reference, p_n is the share of the translation's n-grams that are in the reference. n-grams
    longer than the translation do not count. An empty translation has 0.

    Args:
        translation: the translation.
        reference: reference translation.
        order: maximum n.
    """
    hypothesis_words = translation.split()
    reference_words = reference.split()
    if not hypothesis_words:
        return 0.0
    score = math.exp(min(0.0, 1 - len(reference_words) / len(hypothesis_words)))
    for n in range(1, min(order, len(hypothesis_words)) + 1):
        ours = _ngrams(hypothesis_words, n)
        theirs = _ngrams(reference_words, n)
        score *= ((ours & theirs).total() / ours.total()) ** 0.5**n
    return score


def _ngrams(words: Sequence[str], n: int) -> Counter[tuple[str, ...]]:
    return Counter(tuple(words[start : start + n]) for start in range(len(words) - n + 1))


def worst(pairs: Sequence[Pair], translations: Sequence[str], count: int, order: int = 2) -> list[Scored]:
    """Return the `count` worst translations by BLEU of `order`, then by chrF, starting with the worst.

    Args:
        pairs: sources and references.
        translations: of the sources, in order.
        count: maximum number of translations.
        order: see `sentence_bleu`.
    """
    chrf = CHRF()
    scored = [
        Scored(
            source,
            reference,
            translation,
            sentence_bleu(translation, reference, order),
            chrf.sentence_score(translation, [reference]).score,
        )
        for (source, reference), translation in zip(pairs, translations, strict=True)
    ]
    return sorted(scored, key=lambda each: (each.bleu, each.chrf))[:count]
