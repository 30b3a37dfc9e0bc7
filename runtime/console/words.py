"""Words in messages."""

import re
import sys
from pathlib import Path

# Control characters except line ends and tabs, and controls of the direction of text. Terminals obey them.
_CONTROLS = re.compile("[\0-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def plural(count: int, noun: str) -> str:
    """Return a count with its noun, as in "1 sentence", "1,000 sentences"."""
    if count == 1:
        return f"{count:,} {noun}"
    return f"{count:,} {noun}s"


def printable(text: object) -> str:
    """Return a text with escapes such as \\x1b instead of characters by which a file's author controls a terminal."""
    return _CONTROLS.sub(lambda match: ascii(match[0])[1:-1], str(text))


def program() -> str:
    """Return the name of the running command."""
    return Path(sys.argv[0]).name
