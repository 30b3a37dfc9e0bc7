"""Rules for regular expressions of a tokenizer.json, checked before the library `tokenizers` reads them.

The engine of this library backtracks, and holds Python's global lock meanwhile. An expression with several ambiguous
quantifiers before a part that must match stops a server for minutes.
"""

import json
import math
import re
from dataclasses import dataclass
from typing import Any

# Logarithm (base 2) of the number of ways in which an expression may match at one place of a text.
MAX_BITS = 17.0
# The same for a quantifier without a maximum, in a text of the length that tx-serve accepts.
_UNBOUNDED = 15.0
_ATOM = re.compile(r"\\[pPx]\{[^}]*\}|\\[^gk]|[^\\\[\](){}*+?|]|[\]}]", re.DOTALL)
_GROUP = re.compile(r"\((?:\?(?:<?[=!]|:|>|<\w+>|[imx-]*:|(?=[imx-]+\))))?")
_COUNT = re.compile(r"([*+?]|\{(\d*)(,?)(\d*)\})[?+]?")


@dataclass
class _Ways:
    """Ambiguity of a part, in bits: of the whole part, and before the last of its elements that must match."""

    all: float = 0.0
    failing: float = 0.0


class SlowExpression(ValueError):
    """An expression that may take minutes."""


def check_expressions(tokenizer: bytes) -> None:
    """Refuse a tokenizer.json with a regular expression that may take minutes.

    Raises:
        SlowExpression: the reason, as the rest of a sentence that begins with the file's name.
        ValueError: it is not JSON.
    """
    if b'"Regex"' not in tokenizer and rb"\u" not in tokenizer:
        return
    patterns: list[str] = []

    def collect(pairs: list[tuple[str, Any]]) -> None:
        patterns.extend(value for key, value in pairs if key == "Regex" and isinstance(value, str))

    json.loads(tokenizer, object_pairs_hook=collect)
    for pattern in patterns:
        if bits_of(pattern) > MAX_BITS:
            raise SlowExpression(
                f"contains the regular expression {pattern[:80]!r}, which may take minutes for some texts"
            )


def bits_of(pattern: str) -> float:
    """Return the ambiguity of an expression, in bits; infinite if it is not understood."""
    try:
        ways, end = _alternatives(pattern, 0)
    except (_Unknown, RecursionError):
        return math.inf
    return math.inf if end < len(pattern) else ways.failing


class _Unknown(Exception):
    """Syntax that is not understood."""


def _alternatives(pattern: str, at: int) -> tuple[_Ways, int]:
    """Return the ambiguity of alternatives up to the end of their group, and that end."""
    found = [_Ways()]
    while at < len(pattern) and pattern[at] != ")":
        if pattern[at] == "|":
            found.append(_Ways())
            at += 1
        else:
            at = _element(pattern, at, found[-1])
    choice = math.log2(len(found))
    return _Ways(choice + max(each.all for each in found), max(each.failing for each in found)), at


def _element(pattern: str, at: int, before: _Ways) -> int:
    """Add an element and its quantifier to the ambiguity of what is before it, and return its end."""
    inner, at = _atom(pattern, at)
    low, high = 1, 1.0
    if count := _COUNT.match(pattern, at):
        low, high = _bounds(count)
        at = count.end()
    if low:
        before.failing = max(before.failing, before.all + inner.failing)
    before.failing = max(before.failing, inner.failing)
    if math.isinf(high):
        before.all += _UNBOUNDED if not inner.all else math.inf
    else:
        before.all += min(_UNBOUNDED, math.log2(high - low + 1)) + inner.all * high
    if high > 1 and inner.all:  # a repetition fails after others
        before.failing = max(before.failing, before.all)
    return at


def _bounds(count: re.Match[str]) -> tuple[int, float]:
    if count[1] in "*+?":
        return int(count[1] == "+"), 1.0 if count[1] == "?" else math.inf
    low = int(count[2] or 0)
    if not count[3]:
        return low, float(low)
    return low, float(count[4]) if count[4] else math.inf


def _atom(pattern: str, at: int) -> tuple[_Ways, int]:
    if pattern[at] == "[":
        return _Ways(), _end_of_class(pattern, at)
    if pattern[at] == "(":
        group = _GROUP.match(pattern, at)
        if group is None or pattern[group.end() : group.end() + 1] in ("?", "*"):
            raise _Unknown
        ways, end = _alternatives(pattern, group.end())
        if end == len(pattern):
            raise _Unknown
        return ways, end + 1
    atom = _ATOM.match(pattern, at)
    if atom is None:
        raise _Unknown
    return _Ways(), atom.end()


def _end_of_class(pattern: str, at: int) -> int:
    """Return the end of a character class, which may contain others."""
    depth = 0
    while at < len(pattern):
        if pattern[at] == "\\":
            at += 1
        elif pattern[at] == "[":
            depth += 1
        elif pattern[at] == "]":
            depth -= 1
            if not depth:
                return at + 1
        at += 1
    raise _Unknown
