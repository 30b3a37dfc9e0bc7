"""Numbers in sentences."""


def plural(count: int, noun: str) -> str:
    """A count with its noun, as in "1 sentence", "1,000 sentences"."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
