"""Compare what two processors make of the same lines with the same bundle, such as aarch64 with x86.

python tests/helpers/processors.py BUNDLE LINES TOOL [CPU ...] translates a file of lines here by the Python runtime and
by TOOL, a txport-translate for another processor, and prints how many lines have the same ids. It exits with 1 if one
differs by more than a tie. Each CPU is a model of qemu's, by the variable QEMU_CPU.

Sums of floats depend on their order, which belongs to a processor's kernels, so logits differ in their last digits, and
by more in int8, where an activation may be rounded to the other neighbour. Where two tokens are as good as each other,
the other one may then win, and what follows has another beginning.
"""

import json
import math
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from parity import by_cpp, by_python
from txport.runtime.bundle.manifest import Manifest

# Largest difference of two log-probabilities that counts as a tie, by the type of the weights.
TIE = {"float32": 1e-3, "int8": 0.25}
BATCH = 32


@dataclass(frozen=True)
class Difference:
    """Where a line first has another id.

    Attributes:
        line: counted from 0.
        position: of the id in the answer.
        margin: between the log-probabilities of the two ids, each by the processor that chose it; infinite if one answer
            has ended there.
    """

    line: int
    position: int
    margin: float


@dataclass(frozen=True)
class Comparison:
    """What `compare` found.

    Attributes:
        lines: how many were compared.
        deviation: the largest difference of the log-probabilities of one id, over all ids before a difference.
        differences: one for each line with other ids.
    """

    lines: int
    deviation: float
    differences: tuple[Difference, ...]

    def beyond(self, tie: float) -> list[Difference]:
        """The differences that a tie does not explain."""
        return [difference for difference in self.differences if difference.margin > tie]

    def __str__(self) -> str:
        same = self.lines - len(self.differences)
        margin = max((difference.margin for difference in self.differences), default=0.0)
        ties = f", the others from a tie on (within {margin:.2g})" if self.differences else ""
        return (
            f"{same} of {self.lines} lines have the same ids{ties}; log-probabilities of equal ids differ by at most "
            f"{self.deviation:.2g}"
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


def main() -> int:
    bundle, file, tool = map(Path, sys.argv[1:4])
    lines = file.read_text(encoding="utf-8").splitlines()
    weights = Manifest.load(bundle).precision.weights
    expected, unexplained = by_python(bundle, lines, "ort", BATCH), 0
    for cpu in sys.argv[4:] or ["the processor of the program"]:
        os.environ["QEMU_CPU"] = cpu
        found = compare(expected, by_cpp(tool, bundle, lines, "ort", BATCH))
        print(f"{weights}, {cpu}: {found}", flush=True)
        for difference in found.beyond(TIE[weights]):
            print(f"  not a tie: line {difference.line + 1}, token {difference.position}, {difference.margin:.3g}")
        unexplained += len(found.beyond(TIE[weights]))
    return int(unexplained > 0)


if __name__ == "__main__":
    sys.exit(main())
