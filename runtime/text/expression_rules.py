"""Rules for expressions and replacements of a tokenizer.json, checked before the library `tokenizers` reads them.

The engine of this library backtracks, and holds Python's global lock meanwhile. An expression with several ambiguous
quantifiers before a part that must match stops a server for minutes. Replacements by long texts, or several in a row,
fill the memory.
"""

import json
import math
import re
from base64 import b64decode
from dataclasses import dataclass
from typing import Any

from txport.runtime.text.sentencepiece_rules import check_table

# Logarithm (base 2) of the number of ways in which an expression may match at one place of a text.
MAX_BITS = 17.0
# The same for a quantifier without a maximum, in a text of the length that tx-serve accepts.
_UNBOUNDED = 15.0
# Maximum factor by which all replacements of a file together can lengthen a text. Usual files have 1 to 4.
MAX_GROWTH = 256
# Words of files that are parsed for the checks; others are not, since that takes a tenth of the library's own time.
_PARSED = (b'"Regex"', b'"Replace"', b'"Precompiled"', rb"\u")
_ATOM = re.compile(r"\\[pPx]\{[^}]*\}|\\[^gk]|[^\\\[\](){}*+?|]|[\]}]", re.DOTALL)
_GROUP = re.compile(r"\((?:\?(?:<?[=!]|:|>|<\w+>|[imx-]*:|(?=[imx-]+\))))?")
_COUNT = re.compile(r"([*+?]|\{(\d*)(,?)(\d*)\})[?+]?")


@dataclass
class _Ambiguity:
    """Ambiguity of a part, in bits: of the whole part, and before the last of its elements that must match."""

    total: float = 0.0
    failing: float = 0.0


class SlowExpression(ValueError):
    """An expression that may take minutes, or replacements that fill the memory."""


def check_expressions(tokenizer: bytes) -> None:
    """Refuse a tokenizer.json with an expression that may take minutes, or with replacements that fill the memory.

    Raises:
        SlowExpression: the reason, as the rest of a sentence that begins with the file's name.
        ValueError: it is not JSON.
    """
    if not any(word in tokenizer for word in _PARSED):
        return
    patterns: list[str] = []
    tables: list[str] = []
    growth = 1

    def collect(pairs: list[tuple[str, Any]]) -> Any:
        nonlocal growth
        members = dict(pairs)
        patterns.extend(value for key, value in pairs if key == "Regex" and isinstance(value, str))
        tables.extend(value for key, value in pairs if key == "precompiled_charsmap" and isinstance(value, str))
        if "pattern" in members and isinstance(members.get("content"), str):
            # Expressions and empty texts may match between all characters.
            growth *= max(1, len(members["content"]) + (not members["pattern"]))
        return members.get("String")

    json.loads(tokenizer, object_pairs_hook=collect)
    _check_replacements(growth, tables)
    for pattern in patterns:
        if bits_of(pattern) > MAX_BITS:
            raise SlowExpression(
                f"contains the regular expression {pattern[:80]!r}, which may take minutes for some texts"
            )


def _check_replacements(growth: int, tables: list[str]) -> None:
    if growth > MAX_GROWTH or len(tables) > 1:
        raise SlowExpression(f"contains replacements that make a text more than {MAX_GROWTH} times as long")
    for table in tables:
        try:
            check_table(b64decode(table))
        except ValueError as error:
            raise SlowExpression(str(error)) from error


def bits_of(pattern: str) -> float:
    """Return the ambiguity of an expression, in bits; infinite if it is not understood."""
    try:
        ambiguity, end = _alternatives(pattern, 0)
    except (_Unknown, RecursionError):
        return math.inf
    return math.inf if end < len(pattern) else ambiguity.failing


class _Unknown(Exception):
    """Syntax that is not understood."""


def _alternatives(pattern: str, position: int) -> tuple[_Ambiguity, int]:
    """Return the ambiguity of alternatives up to the end of their group, and that end."""
    alternatives = [_Ambiguity()]
    while position < len(pattern) and pattern[position] != ")":
        if pattern[position] == "|":
            alternatives.append(_Ambiguity())
            position += 1
        else:
            position = _element(pattern, position, alternatives[-1])
    choice = math.log2(len(alternatives))
    return _Ambiguity(
        choice + max(each.total for each in alternatives), max(each.failing for each in alternatives)
    ), position


def _element(pattern: str, position: int, before: _Ambiguity) -> int:
    """Add an element and its quantifier to the ambiguity of what is before it, and return its end."""
    inner, position = _atom(pattern, position)
    low, high = 1, 1.0
    if count := _COUNT.match(pattern, position):
        low, high = _bounds(count)
        position = count.end()
    if low:
        before.failing = max(before.failing, before.total + inner.failing)
    before.failing = max(before.failing, inner.failing)
    if math.isinf(high):
        before.total += _UNBOUNDED if not inner.total else math.inf
    else:
        before.total += min(_UNBOUNDED, math.log2(high - low + 1)) + inner.total * high
    if high > 1 and inner.total:  # a repetition fails after others
        before.failing = max(before.failing, before.total)
    return position


def _bounds(count: re.Match[str]) -> tuple[int, float]:
    if count[1] in "*+?":
        return int(count[1] == "+"), 1.0 if count[1] == "?" else math.inf
    low = int(count[2] or 0)
    if not count[3]:
        return low, float(low)
    return low, float(count[4]) if count[4] else math.inf


def _atom(pattern: str, position: int) -> tuple[_Ambiguity, int]:
    if pattern[position] == "[":
        return _Ambiguity(), _end_of_class(pattern, position)
    if pattern[position] == "(":
        group = _GROUP.match(pattern, position)
        if group is None or pattern[group.end() : group.end() + 1] in ("?", "*"):
            raise _Unknown
        ambiguity, end = _alternatives(pattern, group.end())
        if end == len(pattern):
            raise _Unknown
        return ambiguity, end + 1
    atom = _ATOM.match(pattern, position)
    if atom is None:
        raise _Unknown
    return _Ambiguity(), atom.end()


def _end_of_class(pattern: str, position: int) -> int:
    """Return the end of a character class, which may contain others."""
    depth = 0
    while position < len(pattern):
        if pattern[position] == "\\":
            position += 1
        elif pattern[position] == "[":
            depth += 1
        elif pattern[position] == "]":
            depth -= 1
            if not depth:
                return position + 1
        position += 1
    raise _Unknown
