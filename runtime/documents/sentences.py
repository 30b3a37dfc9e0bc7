"""Rule-based sentence splitter. The C++ version (`cpp/src/documents/sentences.cpp`) implements the same rules.

A sentence ends after a terminator and the closing quotes and brackets that follow it. Terminators of scripts without
capitals (such as Chinese, Japanese and Hindi) always end a sentence. Latin, Greek and Cyrillic terminators end it
before white space, unless the next word is in lower case. A single full stop is ambiguous. The rules check, in this
order: the character after it (decimals, addresses), the form of the word before it (initials, ordinals), and the
abbreviation list of the language (`txport.runtime.documents.abbreviations`).
"""

import re

from txport.runtime.documents.abbreviations import Abbreviations, abbreviations_of
from txport.runtime.text.alignment import Span

# Terminators that need white space after them, and terminators that do not.
WEAK = ".!?…‼‽⁇⁈⁉"
STRONG = "。！？｡．।॥؟۔։።፧፨\u104b\u17d4\u17d5᠃᠉꓿"
# Characters that end a sentence only after a Greek (;) or an Armenian (:) letter, with the range of these letters.
AFTER_LETTERS = {";": ("\u0370", "\u03ff"), ":": ("\u0530", "\u058f")}
BRACKETS = ("([{（［｛「『【〈《〔｢", ")]}）］｝」』】〉》〕｣")
_PLAIN_QUOTES = "\"'`´"  # the same character opens and closes
_OPENING_QUOTES = "“‘„‟‚‛«‹"  # some of them close in another language, as the German “ does
_CLOSING_QUOTES = "”’»›"
QUOTES = _PLAIN_QUOTES + _OPENING_QUOTES + _CLOSING_QUOTES
OPENING = BRACKETS[0] + "¿¡" + QUOTES
CLOSING = BRACKETS[1] + QUOTES
# Characters that never begin a sentence, and characters that may precede its first word.
_FOLLOWING = ",;:)]}!?.…&%=+/、，；：" + BRACKETS[1][3:]
_BEFORE_WORDS = OPENING + "-–—"
# Brackets with at most this number of characters stay in one sentence.
_BRACKETED = 100
_TERMINATOR = f"[{re.escape(WEAK + STRONG + ''.join(AFTER_LETTERS))}]"
_RUN = re.compile(f"{_TERMINATOR}{_TERMINATOR}*")  # not "+": `re` searches for the first of two sets much faster
_BRACKET = re.compile(f"[{re.escape(BRACKETS[0] + BRACKETS[1])}]")
_DIGITS = "0123456789"


def sentences(text: str, start: int, end: int, language: str | None = None) -> list[Span]:
    """Return the characters of each sentence between `start` and `end`, without white space around them.

    Args:
        text: whose line breaks count as white space.
        start, end: the range of `text` to split.
        language: as a bundle names it ("en", "deu_Latn", "fr_XX"); None for an unknown one.
    """
    first = _RUN.search(text, start, end)
    if first is None or first.end() == end:  # as in most lines: nothing follows that could be another sentence
        start, end = _stripped(text, start, end)
        if start < end:
            return [(start, end)]
        return []
    rules = abbreviations_of(language)
    spans = []
    last = scanned = start
    depth = 0  # of brackets
    bracketed = _BRACKET.search(text, start, end) is not None
    for run in _RUN.finditer(text, first.start(), end):
        mark, stop = run.span()
        if mark < last:  # already part of the previous boundary
            continue
        for bracket in _BRACKET.findall(text, scanned, mark) if bracketed else ():
            depth = max(0, depth + (1 if bracket in BRACKETS[0] else -1))
        scanned = mark
        if depth and _in_short_bracket(text, stop, end):
            continue
        if boundary := _boundary(text, last, mark, stop, end, rules):
            spans.append((last, boundary))
            last = scanned = boundary
            depth = 0
    spans.append((last, end))
    return [span for each in spans if (span := _stripped(text, *each))[0] < span[1]]


def _in_short_bracket(text: str, start: int, end: int) -> bool:
    """Return whether a bracket closes within `_BRACKETED` characters, but not directly after the terminator."""
    bracket = _BRACKET.search(text, start + 1, min(end, start + _BRACKETED))
    return bracket is not None and bracket[0] in BRACKETS[1] and text[start] not in CLOSING


def _boundary(text: str, sentence_start: int, start: int, stop: int, end: int, rules: Abbreviations) -> int:
    """Return the end of the sentence that began at `sentence_start`, for a run of terminators, or 0 if it continues.

    Args:
        sentence_start: start of the sentence.
        start, stop: the run of terminators.
        end: end of the range to split.
    """
    mark = text[stop - 1]
    after = _after_closing(text, stop, end, "" if mark in STRONG else _OPENING_QUOTES)
    if after == end:
        return 0
    if mark in AFTER_LETTERS:
        first, last = AFTER_LETTERS[mark]
        if not first <= text[start - 1 : start] <= last:
            return 0
    if mark in STRONG:
        decimal = mark == "．" and text[stop].isalnum()
        ends = (after == stop and not decimal) or text[after].isspace() or text[after] in OPENING
        if ends:
            return _after_footnotes(text, after, end)
        return 0
    after = _after_footnotes(text, after, end)
    if after == end or not text[after].isspace():
        return 0
    following = after
    while following < end and text[following].isspace():
        following += 1
    word = following
    while word < end and (text[word] in _BEFORE_WORDS or text[word].isspace()):
        word += 1
    if word == end or text[following] in _FOLLOWING:
        return 0
    if text[word].islower() and not (mark == "?" and after == stop and word == following):
        return 0
    full_stop = stop - start == 1 and mark == "."
    if full_stop and not _full_stop(text, sentence_start, start, word, end, rules):
        return 0
    return after


def _full_stop(text: str, sentence_start: int, stop: int, following: int, end: int, rules: Abbreviations) -> bool:
    """Return whether a full stop at `stop`, with no lower case after it, ends the sentence from `sentence_start`."""
    word = _word_before(text, sentence_start, stop)
    number = 0 < len(word) <= 3 and all(each in _DIGITS for each in word)
    if word in rules.never or (
        number and _is_first(text, sentence_start, stop - len(word))
    ):  # it marks an item of a list
        return False
    if word in rules.before_numbers and text[following] in _DIGITS:
        return False
    dotted = "." in word and all(0 < len(each) <= 2 and each.isalpha() for each in word.split("."))
    ordinal = rules.ordinals and number and len(word) < 3
    if dotted or ordinal or (len(word) == 1 and word.isalpha()):
        return _is_starter(text, following, end, rules)
    return True


def _after_closing(text: str, place: int, end: int, quotes: str) -> int:
    """Return the place after closing quotes and brackets. A character that only closes may have spaces around it.

    Args:
        quotes: opening quotes that may close here.
    """
    while place < end:
        if text[place] in CLOSING and (text[place] in quotes or text[place] not in _OPENING_QUOTES):
            place += 1
            continue
        after = place
        while after < end and text[after] in " \u00a0\u202f":
            after += 1
        alone = place < after < end and text[after] in CLOSING and text[after] not in _PLAIN_QUOTES + _OPENING_QUOTES
        if not alone or not (after + 1 == end or text[after + 1].isspace()):
            break
        place = after + 1
    return place


def _after_footnotes(text: str, place: int, end: int) -> int:
    """Return the place after footnote markers, as in "known.[1] [2]"."""
    while True:
        bracket = place + (place < end and text[place] == " ")
        if bracket == end or text[bracket] != "[":
            return place
        close = bracket + 1
        while close < end and text[close] in _DIGITS:
            close += 1
        if close == bracket + 1 or close == end or text[close] != "]":
            return place
        place = close + 1


def _word_before(text: str, sentence_start: int, end: int) -> str:
    start = end
    while start > sentence_start and ((each := text[start - 1]).isalnum() or not (each.isspace() or each in OPENING)):
        start -= 1
    return text[start:end]


def _is_first(text: str, sentence_start: int, word: int) -> bool:
    while word > sentence_start and text[word - 1].isspace():
        word -= 1
    return word == sentence_start


def _is_starter(text: str, start: int, end: int, rules: Abbreviations) -> bool:
    """Return whether the word is in the list of typical sentence starters and is not an initial."""
    stop = start
    while stop < end and text[stop].isalpha():
        stop += 1
    return text[start:stop] in rules.starters and not (stop < end and text[stop] == ".")


def _stripped(text: str, start: int, end: int) -> Span:
    while start < end and text[start].isspace():
        start += 1
    while start < end and text[end - 1].isspace():
        end -= 1
    return start, end
