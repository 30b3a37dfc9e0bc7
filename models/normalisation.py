"""Texts of words: lower case or not, and a space before each punctuation mark, so that words are what spaces part.

Written twice, because SentencePiece applies it at run time in any language: as a function of Python, for corpora and
references, and as the rules that a SentencePiece model carries.
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
_HANGUL = range(0xAC00, 0xD7A4)  # composed by arithmetic, 11,172 of them; rules for all would be most of the model


def spaced(text: str, *, lower_case: bool) -> str:
    """A text in NFKC, with a space before each of `MARKS`, and one space wherever there are several.

    Args:
        text: any.
        lower_case: fold case.
    """
    return " ".join(_BEFORE_MARK.sub(" ", _folded(text, lower_case)).split())


def spacing_rules(*, lower_case: bool) -> str:
    """`spaced` as a table for SentencePiece's `normalization_rule_tsv`, which itself removes spaces that are too many.

    Sequences of more than one character that NFKC composes are those of a letter and what Unicode decomposes it to.
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
    """Yield a file of `spacing_rules`, for the time that SentencePiece trains a model."""
    with tempfile.TemporaryDirectory() as scratch:
        rules = Path(scratch) / "rules.tsv"
        rules.write_text(spacing_rules(lower_case=lower_case), encoding="ascii")
        yield rules


def _folded(text: str, lower_case: bool) -> str:
    composed = unicodedata.normalize("NFKC", text)
    # By character, as SentencePiece: Greek's final sigma would depend on what follows.
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
