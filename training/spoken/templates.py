"""Sentence templates of the built-in corpus, from templates.txt; explained in `txport.training.spoken.words`."""

from pathlib import Path


def sections(name: str) -> dict[str, tuple[str, ...]]:
    """Return the lines below each `[section]` of a text file in this directory, without empty lines and comments."""
    lines_by_section: dict[str, tuple[str, ...]] = {}
    section = ""
    for line in Path(__file__).with_name(name).read_text(encoding="utf-8").splitlines():
        if line.startswith("["):
            section = line.strip("[]")
        elif line and not line.startswith("#"):
            lines_by_section[section] = (*lines_by_section.get(section, ()), line)
    return lines_by_section


_SECTIONS = sections("templates.txt")
CLAUSES, OPENERS, TAILS, JOINTS, EVERYDAY, LOOSE, AMOUNTS = (
    _SECTIONS[name] for name in ("clauses", "openers", "tails", "joints", "everyday", "loose", "amounts")
)
