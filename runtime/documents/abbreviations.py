"""Abbreviations whose full stop does not end a sentence, for some languages.

The tables are in `runtime/cpp/src/documents/abbreviations.inc`, which C++ includes too. Words belong to the last name
with a colon before them:

* `never.LANGUAGE`: abbreviations that never end a sentence, spelled as inside one. Without a language: for all.
* `before_numbers.LANGUAGE`: abbreviations that do not end a sentence before a number.
* `starters.LANGUAGE`: first words that end the sentence before them, after an initial ("the U.S. It") or an ordinal
  ("am 3. Es").
* `ordinals`: languages that write ordinals with a full stop ("am 3. Oktober").
* `codes`: other codes of these languages.

Abbreviations that usually precede lower-case words are not listed, since such words never begin a sentence.
"""

import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

_FILE = Path(__file__).parents[1] / "cpp" / "src" / "documents" / "abbreviations.inc"


def _read() -> dict[str, list[str]]:
    """Return the words of each name."""
    tables: dict[str, list[str]] = {}
    for word in _FILE.read_text(encoding="utf-8").split()[1:-1]:  # a raw string of C++
        if word.endswith(":"):
            words = tables.setdefault(word[:-1], [])
        else:
            words.append(word)
    return tables


_TABLES = _read()
# Codes of three letters, and others.
CODES = dict(pair.split("=") for pair in _TABLES["codes"])
# Languages with tables; "" is the table for all languages.
LANGUAGES = sorted({*_TABLES["ordinals"], *(name.partition(".")[2] for name in _TABLES if name.startswith("never."))})


@dataclass(frozen=True)
class Abbreviations:
    """Abbreviations of a language, and other words that decide whether a full stop ends a sentence.

    Attributes:
        never: words before a full stop that never end a sentence.
        before_numbers: abbreviations that do not end a sentence before a number.
        starters: words that begin a sentence after an initial or an ordinal.
        ordinals: whether a number of at most two digits may be an ordinal.
    """

    never: frozenset[str]
    before_numbers: frozenset[str]
    starters: frozenset[str]
    ordinals: bool


def code_of(language: str | None) -> str | None:
    """Return the two-letter code of a language, such as "de" for "deu_Latn" and "de_DE"; None if unknown."""
    if language is None:
        return None
    letters = re.search("[A-Za-z]+", language)
    if letters:
        code = letters[0].lower()
    else:
        code = ""
    return CODES.get(code, code)


@lru_cache(64)
def abbreviations_of(language: str | None) -> Abbreviations:
    """Return the tables of a language: empty if it has none, and those of all languages if it is unknown."""
    code = code_of(language)

    def words(kind: str) -> frozenset[str]:
        tables = (name.partition(".") for name in _TABLES)
        names = [f"{kind}.{each}" for name, _, each in tables if name == kind and (code is None or each in ("", code))]
        return frozenset(word for name in names for word in _TABLES[name])

    def forms(kind: str) -> frozenset[str]:
        """Return the words in lower case, capitalised, and in upper case."""
        return frozenset(form for each in words(kind) for form in (each, each[0].upper() + each[1:], each.upper()))

    return Abbreviations(forms("never"), forms("before_numbers"), words("starters"), code in _TABLES["ordinals"])
