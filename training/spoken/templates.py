"""The sentence templates of the built-in corpus, from templates.txt; `txport.training.spoken.words` explains them."""

from pathlib import Path


def _sections(text: str) -> dict[str, tuple[str, ...]]:
    """The lines below each `[name]`, without empty ones and comments."""
    sections: dict[str, tuple[str, ...]] = {}
    name = ""
    for line in text.splitlines():
        if line.startswith("["):
            name = line.strip("[]")
        elif line and not line.startswith("#"):
            sections[name] = (*sections.get(name, ()), line)
    return sections


_SECTIONS = _sections(Path(__file__).with_suffix(".txt").read_text(encoding="utf-8"))
CLAUSES, OPENERS, TAILS = (_SECTIONS[name] for name in ("clauses", "openers", "tails"))
