"""Compare the C++ runtime with the Python one: the same bytes for the same lines.

python tests/helpers/parity.py BUNDLE LINES TOOL translates a file of lines in batches of 1 and 32 with each lowering
that both can run, by the Python runtime and by TOOL (txport-translate), and prints how many lines are identical.

`compare` is for results of another processor, such as ARM64. The order of floating-point sums depends on the kernels of
a processor, so the last digits of logits differ. In int8, an activation may also be rounded in the other direction,
and logits differ by more. If two tokens are nearly equal, the other one may be chosen, and the rest of the answer
changes.
"""

import json
import math
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from txport.runtime.errors import BundleError
from txport.runtime.options import Options
from txport.runtime.text.lines import FIRST_LINES, open_lines, text_windows
from txport.runtime.translate_command import as_json_line
from txport.runtime.translator import Translator


def by_python(bundle: Path, lines: Sequence[str], where: Mapping[str, str], batch: int) -> list[bytes]:
    """Return the output lines of `tx-translate --json --scores` with this engine or lowering."""
    translator = Translator(bundle, "cpu", **where, batch=batch, workers=0)  # the default of the commands
    with tempfile.NamedTemporaryFile() as file, open_lines(_filled(file, lines), first=FIRST_LINES) as windows:
        results = translator.translate_windows(text_windows(windows), Options(scores=True))
        return [as_json_line(result) for window in results for result in window]


def by_cpp(tool: Path, bundle: Path, lines: Sequence[str], where: Mapping[str, str], batch: int) -> list[bytes]:
    """Return the output lines of `txport-translate --json --scores`."""
    with tempfile.NamedTemporaryFile() as file:  # not a pipe, whose windows would depend on timing
        options = [f"--{name}={value}" for name, value in where.items()]
        arguments = [tool, bundle, _filled(file, lines), "--json", "--scores", *options]
        done = subprocess.run([*arguments, "--batch", str(batch)], capture_output=True, check=True)
    return done.stdout.splitlines(keepends=True)


def _filled(file: Any, lines: Sequence[str]) -> Path:
    file.write("".join(f"{line}\n" for line in lines).encode())
    file.flush()
    return Path(file.name)


@dataclass(frozen=True)
class Difference:
    """The first different id of two answers.

    Attributes:
        line: number of the line, from 0.
        position: position of the id in the answer.
        margin: difference of the log-probabilities of the two ids, each by the processor that chose it; infinite if
            one answer has ended.
    """

    line: int
    position: int
    margin: float


@dataclass(frozen=True)
class Comparison:
    """The result of `compare`.

    Attributes:
        lines: number of compared lines.
        deviation: maximum difference of the log-probabilities of an id, over all ids before a difference.
        differences: one for each line with different ids.
    """

    lines: int
    deviation: float
    differences: tuple[Difference, ...]

    def beyond(self, tie: float) -> list[Difference]:
        """Return the differences that are not ties: the log-probabilities of both ids differ by more than `tie`."""
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
        expected: answers of one processor, in the format of `tx-translate --json --scores`.
        found: answers of the other processor.
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
    bundle, file, tool = map(Path, sys.argv[1:])
    lines = file.read_text(encoding="utf-8").split("\n")
    lines = lines[:-1] if lines[-1] == "" else lines
    differing = 0
    for lowering in ("ort", "scatter", "tensorscatter"):
        try:
            Translator(bundle, "cpu", lowering=lowering)
        except BundleError as error:
            print(f"{lowering}: not compared: {error}")
            continue
        for batch in (1, 32):
            where = {"lowering": lowering}
            expected, found = by_python(bundle, lines, where, batch), by_cpp(tool, bundle, lines, where, batch)
            same = sum(a == b for a, b in zip(expected, found, strict=True))
            differing += len(lines) - same
            print(f"{lowering}, batch {batch}: {same} of {len(lines)} lines have the same text, ids and scores")
    return int(differing > 0)


if __name__ == "__main__":
    sys.exit(main())
