"""Compare what two processors make of the same lines with the same bundle, such as arm64 with x86.

Sums of floats depend on their order, which belongs to the processor's kernels: logits differ in their last digits. In
int8 that may round an activation to its other neighbour, and logits differ by more. Where two tokens are nearly as good
as each other, the other one may then win, and all that follows has another beginning.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Difference:
    """Where an answer first has another id.

    Attributes:
        line: counted from 0.
        position: of the id in the answer.
        margin: between the log-probabilities of the two ids, each by the processor that chose it; infinite if one
            answer has ended there.
    """

    line: int
    position: int
    margin: float


@dataclass(frozen=True)
class Comparison:
    """What `compare` found.

    Attributes:
        lines: how many were compared.
        deviation: the largest difference of the log-probabilities of an id, over all ids before a difference.
        differences: one for each line with other ids.
    """

    lines: int
    deviation: float
    differences: tuple[Difference, ...]

    def beyond(self, tie: float) -> list[Difference]:
        """The differences that are no tie: two ids whose log-probabilities are more than `tie` apart."""
        return [difference for difference in self.differences if difference.margin > tie]

    def __str__(self) -> str:
        same = self.lines - len(self.differences)
        margin = max((difference.margin for difference in self.differences), default=0.0)
        others = f", the others up to two ids that are {margin:.2g} apart or less" if self.differences else ""
        return (
            f"{same} of {self.lines} lines have the same ids{others}; "
            f"the log-probabilities of equal ids differ by {self.deviation:.1g} at most"
        )


def compare(expected: Sequence[bytes], found: Sequence[bytes]) -> Comparison:
    """Compare answers line by line.

    Args:
        expected: of one processor, as `tx-translate --json --scores` writes them.
        found: of the other.
    """
    deviation, differences = 0.0, []
    for line, (one, other) in enumerate(zip(map(json.loads, expected), map(json.loads, found), strict=True)):
        pairs = list(zip(one["ids"], other["ids"], strict=False))
        same = next((i for i, (a, b) in enumerate(pairs) if a != b), len(pairs))
        apart = [abs(a - b) for a, b in zip(one["scores"], other["scores"], strict=False)]
        deviation = max([deviation, *apart[:same]])
        if one["ids"] != other["ids"]:
            differences.append(Difference(line, same, apart[same] if same < len(pairs) else math.inf))
    return Comparison(len(expected), deviation, tuple(differences))
