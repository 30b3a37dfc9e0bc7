"""Normalisation of text for word vocabularies: optional lower case, and a space before each punctuation mark.

It exists twice, because SentencePiece has to apply it at run time in any language: as a Python function, for corpora
and references, and as a table of rules inside the SentencePiece model.
"""

import re
import sys
import tempfile
import unicodedata
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

MARKS = ",.!?"
_BEFORE_MARK = re.compile(rf"(?=[{re.escape(MARKS)}])")
_HANGUL = range(0xAC00, 0xD7A4)  # left out: rules for its 11,172 syllables would be most of the model


def spaced(text: str, *, lower_case: bool) -> str:
    """Return the text in NFKC, with a space before each of `MARKS`, and without repeated spaces.

    Args:
        text: any text.
        lower_case: whether to convert to lower case.
    """
    return " ".join(_BEFORE_MARK.sub(" ", _folded(text, lower_case)).split())


def spacing_rules(*, lower_case: bool) -> str:
    """Return `spaced` as a table for SentencePiece's `normalization_rule_tsv`. SentencePiece itself joins spaces.

    NFKC also composes sequences. The table contains each letter that has a decomposition as such a sequence.
    """
    lines = []
    for characters in _sequences():
        if characters.isspace():
            becomes = " "
        else:
            becomes = _BEFORE_MARK.sub(" ", _folded(characters, lower_case))
        if becomes != characters:
            lines.append(f"{_hexadecimal(characters)}\t{_hexadecimal(becomes)}\n")
    return "".join(lines)


@contextmanager
def rule_file(*, lower_case: bool) -> Iterator[Path]:
    """Yield a temporary file with `spacing_rules`, for the training of a SentencePiece model."""
    with tempfile.TemporaryDirectory() as scratch:
        rules = Path(scratch) / "rules.tsv"
        rules.write_text(spacing_rules(lower_case=lower_case), encoding="ascii")
        yield rules


def _folded(text: str, lower_case: bool) -> str:
    composed = unicodedata.normalize("NFKC", text)
    # By character, as in SentencePiece: lower-casing whole texts would make Greek's final sigma depend on its context.
    if lower_case:
        return "".join(character.lower() for character in composed)
    return composed


def _sequences() -> Iterator[str]:
    for code in range(1, sys.maxunicode + 1):
        character = chr(code)
        if unicodedata.category(character) in ("Cn", "Co", "Cs") or code in _HANGUL:
            continue
        yield character
        if len(decomposed := unicodedata.normalize("NFD", character)) > 1:
            yield decomposed


def _hexadecimal(text: str) -> str:
    return " ".join(f"{ord(character):X}" for character in text)
