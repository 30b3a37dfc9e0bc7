"""Cost of rounding in translation quality, measured on the translations.

Every format chooses other tokens where PyTorch is nearly undecided, int8 in one sentence of six, most of them as good.
With references the loss in BLEU (Papineni et al. 2002, in sacreBLEU) decides, where it is more than chance by
approximate randomization (Riezler and Maxwell 2005): of 200 sentences one more or less in place is 0.1 BLEU. Without
references, how often another token is chosen: BLEU against PyTorch's own text would fall by each of those.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from sacrebleu.metrics.bleu import BLEU
from sacrebleu.significance import PairedTest
from txport.runtime.text.tokenizer import Tokenizer

# BLEU that a bundle may lose against PyTorch, on the same sentences and references.
MOST_LOST = 0.1
# A loss that chance gives more often is none.
CHANCE = 0.05
# Share of tokens that may change where there are no references.
MOST_CHANGED = 0.02


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
            return f"it costs {self.lost:.2f} BLEU, at most {MOST_LOST} is allowed (p = {self.chance:.3f})"
        if self.changed > MOST_CHANGED:
            return f"it changes {self.changed:.2%} of the tokens, at most {MOST_CHANGED:.0%} is allowed"
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
        self._metric = BLEU(references=[self._references]) if references else None

    def quality(self, targets: Sequence[Sequence[int]], changed: float) -> Quality:
        """Judge a bundle's target ids of the same sentences, of which it changes this share of the tokens."""
        if self._metric is None:
            return Quality(len(targets), changed)
        texts = self._texts(targets)
        ours, pytorch = self._bleu(texts), self._bleu(self._pytorch)
        chance = self._chance(texts) if pytorch - ours > MOST_LOST else None
        return Quality(len(targets), changed, ours, pytorch, chance)

    @cached_property
    def _pytorch(self) -> list[str]:
        return self._texts(self._ids)

    def _texts(self, targets: Sequence[Sequence[int]]) -> list[str]:
        return [self._tokenizer.decode(list(ids)) for ids in targets]

    def _bleu(self, texts: Sequence[str]) -> float:
        """Corpus BLEU against the references, from 0 to 100."""
        return float(BLEU().corpus_score(texts, [self._references]).score)

    def _chance(self, texts: Sequence[str]) -> float:
        """The p-value of the difference from PyTorch's translations."""
        assert self._metric is not None
        systems: list[tuple[str, Sequence[str]]] = [("PyTorch", self._pytorch), ("bundle", texts)]
        test = PairedTest(systems, {"BLEU": self._metric}, references=None, test_type="ar", n_samples=1000)
        result: Any = test()[1]["BLEU"][1]
        return float(result.p_value)
