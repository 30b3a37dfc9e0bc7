"""Counts of truncated output in a comparison, and notes on them for the report."""

from collections.abc import Sequence

from txport.exporter.sample import Sample
from txport.runtime.calls.requests import LIMIT
from txport.runtime.console.words import plural


class Coverage:
    """Counts of compared sentences, and of PyTorch's outputs that were truncated at the maximum length."""

    def __init__(self, sample: Sample) -> None:
        self._is_text = sample.is_real
        self.sentences = self.cut = 0

    def add(self, targets: Sequence[Sequence[int]], eos: int) -> None:
        """Add PyTorch's outputs, without bos, to the counts."""
        self.sentences += len(targets)
        if self._is_text:
            self.cut += sum(target[-1] != eos for target in targets)

    def endless(self, name: str) -> str | None:
        """Return a warning that names the model, if most outputs do not end with eos."""
        if 2 * self.cut <= self.sentences:
            return None
        return (
            f"most translations of {name} do not end and are truncated: the sentences are not of its kind, or it has "
            "hardly learnt anything; give others with --text, or a model with more training"
        )

    @property
    def notes(self) -> list[str]:
        """Notes for the report, one sentence each."""
        if not self._is_text:
            return [
                "the sentences were random and may not represent real ones: give real sentences with --text or "
                "--ids, or real vectors with --features"
            ]
        if not self.cut:
            return []
        verb = "was" if self.cut == 1 else "were"
        notes = [f"{self.cut:,} of {plural(self.sentences, 'answer')} did not end and {verb} truncated at {LIMIT}"]
        return notes + [warning for warning in [self.endless("the model")] if warning]
