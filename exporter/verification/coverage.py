"""Which sentences a verification covered, and what a reader of its report must know of them."""

from collections.abc import Sequence

from txport.exporter.trial import CUT, Trial
from txport.exporter.words import plural


class Coverage:
    """Which of the sentences that were asked for were compared, and to what end.

    Args:
        trial: the sentences.
        minutes: the time that they had, for the words; None for any.
    """

    def __init__(self, trial: Trial, minutes: float | None) -> None:
        self.origin, self.asked, self._real, self._minutes = trial.origin, len(trial.sources), trial.real, minutes
        self.sentences = self.cut = 0

    def add(self, targets: Sequence[Sequence[int]], eos: int) -> None:
        """Count PyTorch's answers, without bos."""
        self.sentences += len(targets)
        if self._real:
            self.cut += sum(target[-1] != eos for target in targets)

    def endless(self, name: str) -> str | None:
        """A warning that names the model, if most of its answers do not end."""
        if 2 * self.cut <= self.sentences:
            return None
        return (
            f"most answers of {name} do not end and are cut: it has hardly learnt anything yet, so that its choices "
            "are near ties, which FP16 and int8 decide otherwise; train it longer"
        )

    @property
    def notes(self) -> list[str]:
        """What a reader of the report must know, a sentence each."""
        found = []
        if self.sentences < self.asked:
            limit = f"{self._minutes:g} minutes" if self._minutes != 1 else "1 minute"
            few = f"{self.sentences:,} of {plural(self.asked, 'sentence')} were compared, as many as fit into {limit}"
            found.append(f"{few}: --verify-minutes gives more time, --sentences compares any number")
        if self.cut:
            answers = plural(self.cut, "answer")
            found.append(f"{answers} of {plural(self.sentences, 'sentence')} did not end and were cut at {CUT}")
        if warning := self.endless("the model"):
            found.append(warning)
        return found
