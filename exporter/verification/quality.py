"""Cost of rounding in translation quality, measured on the translations.

Every format chooses other tokens where PyTorch is nearly undecided, int8 in one sentence of six, most of them as good.
With references the loss in BLEU (Papineni et al. 2002, in sacreBLEU) decides, where it is more than chance by
approximate randomization (Riezler and Maxwell 2005): of 200 sentences one more or less in place is 0.1 BLEU. Exchanges
count that make at least as large a difference, as in the paper; sacreBLEU's own test counts only larger ones, by which
one changed sentence, of which each exchange makes the same, would be no chance. Without references, how often another
token is chosen: BLEU against PyTorch's own text would fall by each of those.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
from sacrebleu.metrics.bleu import BLEU
from txport.runtime.text.tokenizer import Tokenizer

# BLEU that a bundle may lose against PyTorch, on the same sentences and references.
MAX_LOST = 0.1
# A loss that chance gives more often is none.
CHANCE = 0.05
# Share of tokens that may change where there are no references.
MAX_CHANGED = 0.02
# Random exchanges of approximate randomization.
EXCHANGES = 1000
# How close two BLEU are that differ by rounding alone.
SAME = 1e-9

Counts = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Quality:
    """The quality of a bundle and that of PyTorch in float32.

    Attributes:
        sentences: how many were translated.
        changed: share of tokens for which the bundle chooses another one after the same beginning.
        bleu: of the bundle's translations against the references; None without references.
        bleu_pytorch: of PyTorch's.
        chance: how often as large a difference would come of swapping the two at random; None if it is not too large.
    """

    sentences: int
    changed: float
    bleu: float | None = None
    bleu_pytorch: float | None = None
    chance: float | None = None

    @property
    def lost(self) -> float | None:
        """BLEU that the format costs; negative if it is better by chance."""
        if self.bleu_pytorch is None or self.bleu is None:
            return None
        return self.bleu_pytorch - self.bleu

    @property
    def summary(self) -> str:
        """The figures, as a sentence."""
        changed = f"{self.changed:.2%} of the tokens are others than PyTorch's"
        if self.lost is None:
            return changed
        return f"BLEU {self.bleu:.2f}, {self.bleu_pytorch:.2f} in PyTorch, on {self.sentences} sentences; {changed}"

    @property
    def failure(self) -> str | None:
        """Fault as a sentence; None if there is none."""
        if self.lost is not None:
            if self.chance is None or self.chance >= CHANCE:
                return None
            return f"the format costs {self.lost:.2f} BLEU, at most {MAX_LOST} is allowed (p = {self.chance:.3f})"
        if self.changed > MAX_CHANGED:
            return f"the format changes {self.changed:.2%} of the tokens, at most {MAX_CHANGED:.0%} is allowed"
        return None


class References:
    """Reference translations, and PyTorch's own translations of the same sentences.

    Args:
        tokenizer: turns target ids into text.
        references: one for each sentence; none, if there are no references.
        pytorch: PyTorch's target ids of each sentence.
    """

    def __init__(self, tokenizer: Tokenizer, references: Sequence[str], pytorch: Sequence[Sequence[int]]) -> None:
        self._tokenizer = tokenizer
        self._references = list(references)
        self._ids = pytorch

    def quality(self, targets: Sequence[Sequence[int]], changed: float) -> Quality:
        """Judge a bundle's target ids of the same sentences, of which it changes this share of the tokens."""
        if not self._references:
            return Quality(len(targets), changed)
        counts = self.counts(self._texts(targets))
        ours = bleu_of(counts.sum(0))
        pytorch = bleu_of(self._pytorch.sum(0))
        if pytorch - ours > MAX_LOST:
            chance = chance_of(counts, self._pytorch)
        else:
            chance = None
        return Quality(len(targets), changed, ours, pytorch, chance)

    def counts(self, texts: Sequence[str]) -> Counts:
        """Counts that BLEU is computed from, int64 `[texts, 10]`.

        Columns: length, the reference's length, n-grams in common of 1 to 4 words, n-grams of 1 to 4 words.
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
    """Corpus BLEU from 0 to 100, of the sum `[10]` of its sentences' counts."""
    length, reference, *ngrams = counts.tolist()
    half = len(ngrams) // 2
    return float(BLEU.compute_bleu(ngrams[:half], ngrams[half:], length, reference, smooth_method="exp").score)


def chance_of(ours: Counts, theirs: Counts) -> float:
    """The p-value of the difference in BLEU of two systems, from each one's counts `[n, 10]` of the same sentences.

    Approximate randomization, two-sided (Riezler and Maxwell 2005): how often systems whose sentences are exchanged at
    random differ as much.
    """
    difference = abs(bleu_of(ours.sum(0)) - bleu_of(theirs.sum(0)))
    exchanges = np.random.default_rng(0).integers(2, size=(EXCHANGES, len(ours)))
    pairs = ((ours.sum(0) + moved, theirs.sum(0) - moved) for moved in exchanges @ (theirs - ours))
    as_large = sum(abs(bleu_of(one) - bleu_of(other)) >= difference - SAME for one, other in pairs)
    return (as_large + 1) / (EXCHANGES + 1)
