"""Comparison of several models on one test set: is a difference in BLEU more than chance?

Paired bootstrap resampling (Koehn, "Statistical Significance Tests for Machine Translation Evaluation", 2004), as
sacreBLEU has it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sacrebleu.metrics.bleu import BLEU
from sacrebleu.significance import PairedTest

SAMPLES = 1000


@dataclass(frozen=True)
class Standing:
    """One model among others.

    Attributes:
        bleu: of the whole set, 0 to 100.
        interval: half of the width of the 95% confidence interval around the mean of the samples.
        p_value: how often chance alone gives such a difference from the first model; None for that one.
    """

    bleu: float
    interval: float
    p_value: float | None


def compare(translations: Mapping[str, Sequence[str]], references: Sequence[str]) -> dict[str, Standing]:
    """Return the standing of each model, by its name.

    Args:
        translations: at least two models' translations of the same sentences; the others are compared with the first.
        references: one for each sentence.
    """
    systems: list[tuple[str, Sequence[str]]] = [(name, list(texts)) for name, texts in translations.items()]
    metric = BLEU(references=[list(references)])
    test = PairedTest(systems, {"BLEU": metric}, references=None, test_type="bs", n_samples=SAMPLES)
    results: list[Any] = test()[1]["BLEU"]
    # sacreBLEU counts larger differences only, and so gives equal models the least p.
    values = [1.0 if each.p_value is not None and each.score == results[0].score else each.p_value for each in results]
    standings = [Standing(each.score, each.ci, p_value) for each, p_value in zip(results, values, strict=True)]
    return dict(zip(translations, standings, strict=True))
