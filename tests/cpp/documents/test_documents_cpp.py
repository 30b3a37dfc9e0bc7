"""Documents in C++ against Python: segments, parts and what they are joined to, by many texts."""

import json
import os
import random
import re
import subprocess
import sys
import unicodedata
from pathlib import Path

import pytest
from document_texts import KINDS, random_text
from make_lower_case import FILE as LOWER
from txport.runtime.documents.abbreviations import LANGUAGES, abbreviations_of
from txport.runtime.documents.cuts import split_long_sentence
from txport.runtime.documents.layout import join, split

BUILD = Path(os.environ.get("TXPORT_CPP_BUILD", "/nowhere"))
DOOR = BUILD / "tests" / "txport_document_door"
# Texts of each kind; TXPORT_DOCUMENTS asks for more.
COUNT = int(os.environ.get("TXPORT_DOCUMENTS", "300"))

LOOKED = 1000  # characters for a part, as the door has it
needs_door = pytest.mark.skipif(not DOOR.exists(), reason="needs the C++ build: make cpp")
Asked = tuple[str, str, int]


def by_cpp(asked: list[Asked]) -> list[object]:
    lines = "".join(json.dumps(each) + "\n" for each in asked)
    done = subprocess.run([DOOR], input=lines, capture_output=True, text=True, check=True)
    return [json.loads(line) for line in done.stdout.rstrip("\n").split("\n")]


def by_python(text: str, language: str, most: int) -> object:
    segments = []
    for segment in split(text, language or None):
        whole = len(segment.text) <= most
        segments += (
            [segment] if whole else split_long_sentence(text, segment, lambda part: min(most, len(part)), LOOKED)
        )
    joined, spans = join(text, segments, [segment.text[::-1] for segment in segments])
    listed = [[each.start, each.end, each.text, [list(pair) for pair in each.breaks], each.cut] for each in segments]
    return [listed, joined, [list(span) for span in spans]]


def check(asked: list[Asked]) -> None:
    for each, found in zip(asked, by_cpp(asked), strict=True):
        assert found == by_python(*each), ascii(each)


@needs_door
@pytest.mark.parametrize("kind", KINDS)
def test_the_same_segments_of_any_text(kind: object) -> None:
    draw = random.Random(0)
    names = ["", "en", "deu_Latn", "xx", *LANGUAGES]
    asked = [(kind(draw), draw.choice(names), draw.choice((3, 10, 1000))) for _ in range(COUNT)]  # type: ignore[operator]
    assert sum(len(set(text)) > 3 for text, _, _ in asked) > COUNT / 2
    check(asked)


@needs_door
def test_each_character_of_unicode_counts_the_same() -> None:
    """As a letter, a number, white space, lower case, a terminator, a quote, a bracket, or the mark of a line."""
    skipped = ("Cn", "Cs", "Co")
    known = [c for c in map(chr, range(sys.maxunicode + 1)) if unicodedata.category(c) not in skipped]
    known = [c for c in known if unicodedata.category(c) != "Lo" or ord(c) % 31 == 0 or ord(c) < 0x3000]  # of Han, some
    texts = ["".join(f"A.{c}A. {c}b\n{c} A{c}. A\n" for c in known[i : i + 400]) for i in range(0, len(known), 400)]
    check([(text, "en", 1000) for text in texts])


def words_of(language: str | None) -> frozenset[str]:
    tables = abbreviations_of(language)
    return tables.never | tables.before_numbers | tables.starters


@needs_door
def test_each_abbreviation_counts_the_same() -> None:
    draw = random.Random(1)
    every = sorted(words_of(None))
    asked = []
    for language in ["", "deu_Latn", *LANGUAGES]:
        some = sorted(words_of(language or None)) + draw.sample(every, 150)
        asked.append((" ".join(f"A {word}. B {word}. 3 {word}. {word} 3. {word}" for word in some), language, 10_000))
    check(asked)


@needs_door
def test_long_sentences_are_cut_the_same() -> None:
    draw = random.Random(2)
    check([(" ".join(random_text(draw) for _ in range(40)), "en", draw.randrange(1, 60)) for _ in range(20)])
    check([("word " * 8000, "en", 20_000), ("x" * 40_000, "", 20_000)])


def test_lower_case_of_cpp_is_that_of_python() -> None:
    """The file says what Python says, whose Unicode may be another one."""
    ranges = re.findall("0x([0-9A-F]+), 0x([0-9A-F]+)", LOWER.read_text())
    lower = {code for first, last in ranges for code in range(int(first, 16), int(last, 16) + 1)}
    for code in range(sys.maxunicode + 1):
        if unicodedata.category(chr(code)) != "Cn":  # perhaps assigned since
            assert code not in lower or chr(code).islower(), hex(code)
            # Unicode 15, with which Python 3.12 came, has more small letters, even among older characters.
            assert code in lower or not chr(code).islower() or unicodedata.unidata_version >= "15", hex(code)
