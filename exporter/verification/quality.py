"""Loss of translation quality by rounding, measured on translations.

Each format chooses other tokens if PyTorch's choice is nearly a tie: int8 in one sentence of six. Most of these
translations are equally good. With references, a bundle fails if its loss in BLEU (Papineni et al. 2002, computed by
sacreBLEU) is significantly larger than allowed. The test is paired bootstrap resampling (Koehn 2004). Without
references, the share of changed tokens is limited, since each of them would lower BLEU against PyTorch's output.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
from sacrebleu.metrics.bleu import BLEU
from txport.runtime.text.tokenizer import Tokenizer

# Allowed loss of BLEU against PyTorch, on the same sentences and references.
MAX_LOST = 0.1
# Level of significance. It is small because each export makes several comparisons. At 0.05, int8 bundles of three of
# eleven correct models failed on 200 or on 1,000 sentences, and passed on the other number.
SIGNIFICANCE = 0.001
# Number of bootstrap samples, and number of samples drawn at once.
SAMPLES = 5000
SAMPLES_AT_ONCE = 250
# Maximum share of changed tokens without references.
MAX_CHANGED = 0.02

Counts = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Quality:
    """Quality of a bundle and of PyTorch in float32.

    Attributes:
        sentences: number of translated sentences.
        changed: share of tokens of PyTorch for which the bundle chooses another token after the same beginning.
        bleu: BLEU of the bundle's translations; None without references.
        bleu_pytorch: BLEU of PyTorch's translations; None without references.
        p_value: p-value of the hypothesis that the loss is allowed; None without a test.
    """

    sentences: int
    changed: float
    bleu: float | None = None
    bleu_pytorch: float | None = None
    p_value: float | None = None

    @property
    def loss(self) -> float | None:
        """Loss of BLEU by the format; negative if the bundle is better by chance."""
        if self.bleu_pytorch is None or self.bleu is None:
            return None
        return self.bleu_pytorch - self.bleu

    @property
    def summary(self) -> str:
        """Figures in one sentence."""
        changed = f"{self.changed:.2%} of the tokens differ from PyTorch's"
        if self.loss is None:
            return changed
        return f"BLEU {self.bleu:.2f}, {self.bleu_pytorch:.2f} in PyTorch, on {self.sentences} sentences; {changed}"

    @property
    def failure(self) -> str | None:
        """Failure as a sentence, or None."""
        if self.loss is not None:
            if self.p_value is None or self.p_value >= SIGNIFICANCE:
                return None
            return f"the format costs {self.loss:.2f} BLEU, at most {MAX_LOST} is allowed (p = {self.p_value:.4f})"
        if self.changed > MAX_CHANGED:
            return f"the format changes {self.changed:.2%} of the tokens, at most {MAX_CHANGED:.0%} is allowed"
        return None


class References:
    """Reference translations, and PyTorch's own translations of the same sentences.

    Args:
        tokenizer: decodes target ids to text.
        references: one for each sentence, or empty.
        pytorch: PyTorch's target ids of each sentence.
    """

    def __init__(self, tokenizer: Tokenizer, references: Sequence[str], pytorch: Sequence[Sequence[int]]) -> None:
        self._tokenizer = tokenizer
        self._references = list(references)
        self._ids = pytorch

    def quality(self, targets: Sequence[Sequence[int]], changed: float) -> Quality:
        """Measure the quality of a bundle's target ids for the same sentences; `changed`: share of changed tokens."""
        if not self._references:
            return Quality(len(targets), changed)
        counts = self.counts(self._texts(targets))
        ours = bleu_of(counts.sum(0))
        pytorch = bleu_of(self._pytorch.sum(0))
        if pytorch - ours > MAX_LOST:
            p_value = p_value_of(counts, self._pytorch)
        else:
            p_value = None
        return Quality(len(targets), changed, ours, pytorch, p_value)

    def counts(self, texts: Sequence[str]) -> Counts:
        """Return the counts for computing BLEU, int64 `[texts, 10]`.

        Columns: length, length of the reference, common n-grams of 1 to 4 words, n-grams of 1 to 4 words.
        """
        metric = BLEU(effective_order=True)
        pairs = zip(texts, self._references, strict=True)
        scores = [metric.sentence_score(text, [reference]) for text, reference in pairs]
        return np.array([[score.sys_len, score.ref_len, *score.counts, *score.totals] for score in scores])

    @cached_property
    def _pytorch(self) -> Counts:
        return self.counts(self._texts(self._ids))

    def _texts(self, targets: Sequence[Sequence[int]]) -> list[str]:
        return [self._tokenizer.decode(list(ids)) for ids in targets]


def bleu_of(counts: Counts) -> float:
    """Return corpus BLEU from 0 to 100, for the sum `[10]` of the counts of sentences."""
    length, reference, *ngrams = counts.tolist()
    half = len(ngrams) // 2
    return float(BLEU.compute_bleu(ngrams[:half], ngrams[half:], length, reference, smooth_method="exp").score)


def p_value_of(ours: Counts, pytorch: Counts) -> float:
    """Return the p-value of the hypothesis that the loss in BLEU is at most `MAX_LOST`.

    Paired bootstrap resampling (Koehn, "Statistical Significance Tests for Machine Translation Evaluation", 2004):
    return the share of samples of the sentences, drawn with replacement, in which the loss is at most `MAX_LOST`. As
    usual for resampling, the p-value is never 0 (Phipson and Smyth 2010).

    Args:
        ours, pytorch: counts `[n, 10]` of the same sentences, see `References.counts`.
    """
    random = np.random.default_rng(0)
    count = len(ours)
    within_limit = 0
    for _ in range(SAMPLES // SAMPLES_AT_ONCE):
        counts_of_samples = random.multinomial(count, np.full(count, 1 / count), SAMPLES_AT_ONCE)
        pairs = zip(counts_of_samples @ pytorch, counts_of_samples @ ours, strict=True)
        within_limit += sum(bleu_of(theirs) - bleu_of(ours_drawn) <= MAX_LOST for theirs, ours_drawn in pairs)
    return (within_limit + 1) / (SAMPLES + 1)
