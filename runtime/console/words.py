"""Words in messages."""

import sys
from pathlib import Path


def plural(count: int, noun: str) -> str:
    """Return a count with its noun, as in "1 sentence", "1,000 sentences"."""
    if count == 1:
        return f"{count:,} {noun}"
    return f"{count:,} {noun}s"


def program() -> str:
    """Return the name of the running command."""
    return Path(sys.argv[0]).name
