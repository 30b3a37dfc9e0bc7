"""The words and units of the built-in corpus, from words.txt.

In a template, `{slot}` is filled from `txport.training.spoken.slots.SLOTS` and `{list}` from WORDS. Other words are
spoken as written. Words with another spoken form are listed as `written|spoken`.
"""

from txport.training.spoken.templates import sections

_UNITS = "units."


def _unit(entry: str) -> tuple[str, str, str]:
    """Parse `written|singular|plural`. A missing plural is the singular plus "s"."""
    written, singular, *plurals = entry.split("|")
    plural, *_ = [*plurals, f"{singular}s"]
    return written, singular, plural


# Entries are separated by commas, and lines may break anywhere.
_LISTS = {name: tuple(" ".join(lines).split(", ")) for name, lines in sections("words.txt").items()}
# Whether people put a space before a unit varies, so the corpus does both.
UNITS = {name.removeprefix(_UNITS): tuple(map(_unit, _LISTS[name])) for name in _LISTS if name.startswith(_UNITS)}
WORDS = {name: entries for name, entries in _LISTS.items() if not name.startswith(_UNITS)}
