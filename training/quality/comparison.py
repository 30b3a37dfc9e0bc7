"""Comparison of several models on one test set: tests whether a difference in BLEU is significant.

Paired bootstrap resampling (Koehn, "Statistical Significance Tests for Machine Translation Evaluation", 2004), as
implemented by sacreBLEU.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sacrebleu.metrics.bleu import BLEU
from sacrebleu.significance import PairedTest

SAMPLES = 1000


@dataclass(frozen=True)
class Standing:
    """Result of one model in a comparison.

    Attributes:
        bleu: of the whole set, 0 to 100.
        interval: half width of the 95% confidence interval around the mean of the samples.
        p_value: probability of such a difference from the first model by chance; None for the first model.
    """

    bleu: float
    interval: float
    p_value: float | None


def compare(translations: Mapping[str, Sequence[str]], references: Sequence[str]) -> dict[str, Standing]:
    """Return the result of each model, by name.

    Args:
        translations: translations of the same sentences by two or more models. The first model is the baseline.
        references: one for each sentence.
    """
    systems: list[tuple[str, Sequence[str]]] = [(name, list(texts)) for name, texts in translations.items()]
    metric = BLEU(references=[list(references)])
    test = PairedTest(systems, {"BLEU": metric}, references=None, test_type="bs", n_samples=SAMPLES)
    results: list[Any] = test()[1]["BLEU"]
    # sacreBLEU counts only larger differences, and so returns the smallest p-value for equal models. Here it is 1.
    values = [1.0 if each.p_value is not None and each.score == results[0].score else each.p_value for each in results]
    standings = [Standing(each.score, each.ci, p_value) for each, p_value in zip(results, values, strict=True)]
    return dict(zip(translations, standings, strict=True))
