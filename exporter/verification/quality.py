"""What rounding costs in translation quality, measured on the translations.

Int8 changes some tokens of any model, most of them for others as good, so identical ids prove nothing about it. With
references, the loss in BLEU (Papineni et al. 2002, in sacreBLEU) decides; without, how often another token is chosen.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from sacrebleu.metrics.bleu import BLEU
from txport.runtime.text.tokenizer import Tokenizer

# BLEU that a bundle may lose against float32, on the same sentences and references.
MOST_LOST = 0.3
# Share of tokens that may change where there are no references.
MOST_CHANGED = 0.02


@dataclass(frozen=True)
class Quality:
    """The quality of int8 and that of float32.

    Attributes:
        sentences: how many were translated.
        changed: share of tokens for which int8 chooses another one after the same beginning.
        bleu_float32: of the float32 translations against the references; None without references.
        bleu_int8: likewise.
    """

    sentences: int
    changed: float
    bleu_float32: float | None
    bleu_int8: float | None

    @property
    def lost(self) -> float | None:
        """BLEU that int8 costs; negative if it is better by chance."""
        if self.bleu_float32 is None or self.bleu_int8 is None:
            return None
        return self.bleu_float32 - self.bleu_int8

    @property
    def summary(self) -> str:
        """The figures, as a sentence."""
        changed = f"int8 changes {self.changed:.2%} of the tokens"
        if self.lost is None:
            return changed
        return (
            f"BLEU {self.bleu_int8:.2f}, {self.bleu_float32:.2f} in float32, on {self.sentences} sentences; {changed}"
        )

    @property
    def failure(self) -> str | None:
        """What is wrong, as a sentence; None if nothing is."""
        if self.lost is not None:
            return f"int8 costs {self.lost:.2f} BLEU, at most {MOST_LOST} is allowed" if self.lost > MOST_LOST else None
        if self.changed > MOST_CHANGED:
            return f"int8 changes {self.changed:.2%} of the tokens, at most {MOST_CHANGED:.0%} is allowed"
        return None


def bleu(tokenizer: Tokenizer, targets: Sequence[Sequence[int]], references: Sequence[str]) -> float:
    """Corpus BLEU of target ids against one reference each, from 0 to 100."""
    translations = [tokenizer.decode(list(ids)) for ids in targets]
    return float(BLEU().corpus_score(translations, [list(references)]).score)
