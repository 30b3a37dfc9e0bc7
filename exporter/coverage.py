"""Ends of PyTorch's answers, and notes on them for the reader of a report."""

from collections.abc import Sequence

from txport.exporter.sample import Sample
from txport.runtime.calls.requests import LIMIT
from txport.runtime.console.words import plural


class Coverage:
    """Counts of the sentences that were compared and of PyTorch's answers to them that were cut."""

    def __init__(self, sample: Sample) -> None:
        self._real = sample.real
        self.sentences = self.cut = 0

    def add(self, targets: Sequence[Sequence[int]], eos: int) -> None:
        """Count PyTorch's answers, without bos."""
        self.sentences += len(targets)
        if self._real:
            self.cut += sum(target[-1] != eos for target in targets)

    def endless(self, name: str) -> str | None:
        """Return a warning that names the model, if most of its answers do not end."""
        if 2 * self.cut <= self.sentences:
            return None
        return (
            f"most translations of {name} do not end and are truncated: it has hardly learnt anything yet, or the "
            "sentences are not of its kind; train it longer, or give sentences with --text"
        )

    @property
    def notes(self) -> list[str]:
        """Notes for a reader of the report, a sentence each."""
        if not self._real:
            return [
                "the sentences were random and may not represent real ones: give real sentences with --text or --ids"
            ]
        if not self.cut:
            return []
        verb = "was" if self.cut == 1 else "were"
        notes = [f"{self.cut:,} of {plural(self.sentences, 'answer')} did not end and {verb} truncated at {LIMIT}"]
        return notes + [warning for warning in [self.endless("the model")] if warning]
