"""Compare the C++ runtime with the Python one: the same bytes for the same lines.

python tests/helpers/parity.py BUNDLE LINES TOOL translates a file of lines in batches of 1 and 32 with each lowering
that both can run, by the Python runtime and by TOOL (txport-translate), and prints how many lines are identical.
"""

import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from txport.runtime.errors import BundleError
from txport.runtime.options import Options
from txport.runtime.text.lines import FIRST_LINES, open_lines, text_windows
from txport.runtime.translate_command import as_json_line
from txport.runtime.translator import Translator


def by_python(bundle: Path, lines: Sequence[str], lowering: str, batch: int) -> list[bytes]:
    """What `tx-translate --json --scores` writes, a line each."""
    translator = Translator(bundle, "cpu", lowering, batch=batch, workers=0)  # as the tools
    with tempfile.NamedTemporaryFile() as file, open_lines(_filled(file, lines), first=FIRST_LINES) as windows:
        results = translator.translate_windows(text_windows(windows), Options(scores=True))
        return [as_json_line(result) for window in results for result in window]


def by_cpp(tool: Path, bundle: Path, lines: Sequence[str], lowering: str, batch: int) -> list[bytes]:
    """What `txport-translate --json --scores` writes, a line each."""
    with tempfile.NamedTemporaryFile() as file:  # not a pipe: its windows would depend on who is faster
        arguments = [tool, bundle, _filled(file, lines), "--json", "--scores", "--lowering", lowering]
        done = subprocess.run([*arguments, "--batch", str(batch)], capture_output=True, check=True)
    return done.stdout.splitlines(keepends=True)


def _filled(file: Any, lines: Sequence[str]) -> Path:
    file.write("".join(f"{line}\n" for line in lines).encode())
    file.flush()
    return Path(file.name)


def main() -> int:
    bundle, file, tool = map(Path, sys.argv[1:])
    lines = file.read_text(encoding="utf-8").split("\n")
    lines = lines[:-1] if lines[-1] == "" else lines
    differing = 0
    for lowering in ("ort", "scatter", "tensorscatter"):
        try:
            Translator(bundle, "cpu", lowering)
        except BundleError as error:
            print(f"{lowering}: not compared: {error}")
            continue
        for batch in (1, 32):
            expected, found = by_python(bundle, lines, lowering, batch), by_cpp(tool, bundle, lines, lowering, batch)
            same = sum(a == b for a, b in zip(expected, found, strict=True))
            differing += len(lines) - same
            print(f"{lowering}, batch {batch}: {same} of {len(lines)} lines have the same text, ids and scores")
    return int(differing > 0)


if __name__ == "__main__":
    sys.exit(main())
