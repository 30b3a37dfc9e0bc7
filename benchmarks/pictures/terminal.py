"""Run commands and draw the session as SVG: `python -m txport.benchmarks.pictures.terminal -o FILE COMMAND...`.

The picture of the README, in a clone after `make demo`:

    PATH=build/venv/bin:$PATH python -m txport.benchmarks.pictures.terminal -o benchmarks/figures/terminal.svg \
        'echo "See you on 3/14/2025." | tx-translate build/demo/bundle' 'tx-inspect build/demo/bundle --check'
"""

import argparse
import subprocess
import textwrap
from collections.abc import Sequence
from pathlib import Path
from xml.sax.saxutils import escape

COLUMNS = 100
CHARACTER = 8.0
LINE = 19
MARGIN = 16
BAR = 30
FONT = "ui-monospace, 'DejaVu Sans Mono', Menlo, Consolas, monospace"
DOTS = ("#ff5f57", "#febc2e", "#28c840")


def session(commands: Sequence[str]) -> list[tuple[str, bool]]:
    """Run each command in a shell, and return the lines of the terminal and whether they are input.

    Raises:
        subprocess.CalledProcessError: a command failed.
    """
    lines: list[tuple[str, bool]] = []
    for command in commands:
        done = subprocess.run(
            command, shell=True, check=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        lines += [(line, True) for line in _wrap(f"$ {command}")]
        lines += [(part, False) for line in done.stdout.splitlines() for part in _wrap(line)]
    return lines


def _wrap(line: str) -> list[str]:
    """Split a line into parts that fit the width. The second and later parts are indented."""
    indent = " " * 13
    return textwrap.wrap(line, COLUMNS, subsequent_indent=indent, drop_whitespace=False, break_on_hyphens=False) or [""]


def draw(lines: Sequence[tuple[str, bool]]) -> str:
    """Return the session as an SVG that needs neither an embedded font nor a network."""
    width = COLUMNS * CHARACTER + 2 * MARGIN
    height = BAR + len(lines) * LINE + MARGIN
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height}" width="{width:.0f}" '
        f'font-family="{FONT}" font-size="13">',
        f'<rect width="{width:.0f}" height="{height}" rx="8" fill="#1e2228"/>',
    ]
    parts += [f'<circle cx="{MARGIN + 4 + 18 * i}" cy="16" r="5.5" fill="{color}"/>' for i, color in enumerate(DOTS)]
    for row, (line, is_input) in enumerate(lines):
        color = "#8ab4f8" if is_input else "#e8ebef"
        if line.strip():
            length = f' textLength="{len(line) * CHARACTER:.0f}" lengthAdjust="spacingAndGlyphs"'
        else:
            length = ""
        y = BAR + LINE * (row + 1) - 5
        parts.append(f'<text x="{MARGIN}" y="{y}" fill="{color}" xml:space="preserve"{length}>{escape(line)}</text>')
    return "\n".join([*parts, "</svg>", ""])


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("commands", nargs="+", metavar="COMMAND")
    parser.add_argument("-o", "--output", type=Path, required=True)
    options = parser.parse_args()
    options.output.write_text(draw(session(options.commands)), encoding="utf-8")


if __name__ == "__main__":
    main()
