"""Words in messages."""

import sys
from pathlib import Path


def plural(count: int, noun: str) -> str:
    """Return a count with its noun, as in "1 sentence", "1,000 sentences"."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def program() -> str:
    """Return the name of the command that runs."""
    return Path(sys.argv[0]).name
