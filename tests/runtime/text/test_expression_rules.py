"""Regular expressions of a tokenizer.json: those that models have are read, those that take minutes are refused."""

import base64
import json
import math
import time
from pathlib import Path
from typing import Any

import pytest
from make_hostile_pieces import chain, table
from txport.runtime.errors import BundleError
from txport.runtime.text.expression_rules import MAX_BITS, bits_of
from txport.runtime.text.sides import TokenizersSide

# Of GPT-2, Llama 3, GPT-4o, Nougat, Galactica and DeepSeek.
GOOD = (
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}",
    r"[\(\)\[\]\{\}]|([!\"#\$%\&'\*\+,\-\./:;<=>\?\\\^_`\|\~])\1*",
    r"(?=(\d{3})+(?!\d))",
    r"\p{N}{1,3}(?=(?:\p{N}{3})*(?:\P{N}|$))",
    " {2,}",
)
BAD = (
    "a{1,99}a{1,99}a{1,99}b",
    "a+a+[bc]",
    "(a+a+)+b",
    "(a|a){1,22}[bc]",
    "(?:a?){25}a{25}b",
    "a?" * 25 + "[bc]",
    "(?:a|b)*c",
    "(?:a+a+)?b",
    "(?:a+){1,20}b",
)


def of_expression(file: Path, pattern: str) -> Path:
    split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    model = {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": ["a b"]}
    file.write_text(json.dumps({"version": "1.0", "added_tokens": [], "pre_tokenizer": split, "model": model}))
    return file


@pytest.mark.parametrize("pattern", GOOD)
def test_expressions_of_models_are_read_and_fast(pattern: str, tmp_path: Path) -> None:
    pytest.importorskip("tokenizers", reason="needs tokenizers: pip install 'txport[tokenizers]'")
    side = TokenizersSide(of_expression(tmp_path / "tokenizer.json", pattern))
    start = time.thread_time()
    for text in ("a" * 5000, " " * 5000, "1" * 5000, "\n" * 5000):
        side.encode(text)
    assert time.thread_time() - start < 10


@pytest.mark.parametrize("pattern", BAD)
def test_expressions_that_take_minutes_are_refused(pattern: str, tmp_path: Path) -> None:
    """The first took 7 seconds for 1,000 characters, in which no other thread of Python ran."""
    pytest.importorskip("tokenizers", reason="needs tokenizers: pip install 'txport[tokenizers]'")
    assert bits_of(pattern) > MAX_BITS
    file = of_expression(tmp_path / "tokenizer.json", pattern)
    with pytest.raises(BundleError, match=r"tokenizer\.json contains the regular expression .* may take minutes"):
        TokenizersSide(file)
    file.write_text(file.read_text().replace("Regex", "Re\\u0067ex"))
    with pytest.raises(BundleError, match="may take minutes"):
        TokenizersSide(file)


@pytest.mark.parametrize("pattern", [r"(?<n>a)\g<n>", "(?~a)", "(?#x)a", "(", "[a", "a)", "(" * 5000])
def test_syntax_that_is_not_understood_counts_as_slow(pattern: str) -> None:
    assert math.isinf(bits_of(pattern))


def replacement(content: str, **pattern: str) -> dict[str, object]:
    return {"type": "Replace", "pattern": pattern, "content": content}


def charsmap(text: bytes) -> dict[str, str]:
    return {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(table(chain(1), text)).decode()}


NORMALIZERS: dict[str, tuple[list[dict[str, Any]], str]] = {
    "usual": ([replacement(" ", Regex=" {2,}"), replacement("\u2581", String=" "), charsmap(b"b\0")], ""),
    "256": ([replacement("a" * 16, String="a")] * 2, ""),
    "257": ([replacement("a" * 257, String="a")], "more than 256 times as long"),
    "three": ([replacement("a" * 16, String="a")] * 3, "more than 256 times as long"),
    "empty text": ([replacement("a", String="")] * 9, "more than 256 times as long"),
    "expressions": ([replacement("a", Regex="a?")] * 9, "more than 256 times as long"),
    "two tables": ([charsmap(b"b\0")] * 2, "more than 256 times as long"),
    "table": ([charsmap(b"b" * 257 + b"\0")], "a rule that writes more than 256 bytes"),
}


@pytest.mark.parametrize("name", NORMALIZERS)
def test_replacements_that_fill_the_memory_are_refused(name: str, tmp_path: Path) -> None:
    pytest.importorskip("tokenizers", reason="needs tokenizers: pip install 'txport[tokenizers]'")
    normalizers, words = NORMALIZERS[name]
    model = {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": ["a b"]}
    sequence = {"type": "Sequence", "normalizers": normalizers}
    file = tmp_path / "tokenizer.json"
    file.write_text(json.dumps({"version": "1.0", "added_tokens": [], "normalizer": sequence, "model": model}))
    if not words:
        TokenizersSide(file)
        return
    with pytest.raises(BundleError, match=words):
        TokenizersSide(file)
