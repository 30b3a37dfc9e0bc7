"""Check the language of the pages, as far as a script can: `python .ci/pages.py [FILE...]`, part of `make lint`.

It finds sentences of more than 25 words, and words that a reader has to read twice. Code, the changelog
and the length of cells of tables are left out. Exit code 1 if anything is found.
"""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

MAXIMUM = 25
# Pattern and replacement.
WORDS = {
    r"anew": "again",
    r"but for": "except",
    r"so many": "the number, or N",
    r"in (?:the )?place of": "instead of",
    r"as (?:it is|they are)(?=[.,;:)])": "unchanged",
    r"(?<!there )is no(?= (?!longer|more)\w)": "is not a",
    r", too(?=[.,;:)])": "also, or nothing",
    r"(?:says|say|said|tells?|told|knows?)": "contains, specifies, sets, supports",
    r"(?:yardstick|lookout|outlook|parting|partings)": "the term of the field",
    r"(?:goes|go|went) on(?: with)?": "continues",
    r"(?:who asks|who ask|whoever)": "callers, users",
    r"those (?:that|who|which)": "a noun",
    r"what (?:is|was) (?:cut|kept|given|taken|made|found|missing|left|said|there|here)": "a noun",
    r"which of them": "which one",
    r"(?:nobody|somebody|anybody)": "no one, users, or passive voice",
    r"(?:wants?|asks?) (?:for )?(?:a|an|the|no|another)": "needs",
    r"(?:are|is) there anyway": "exists",
}
EXCEPTIONS = {"CHANGELOG.md": "history"}

FENCE = re.compile(r"^( *)```.*?^\1```", re.MULTILINE | re.DOTALL)
COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
# Abbreviations and numbers whose full stops end no sentence are joined by this.
DOT = "\N{MIDDLE DOT}"


def blank(match: re.Match[str]) -> str:
    """The same number of lines, without text."""
    return "\n" * match[0].count("\n")


def paragraphs(text: str) -> Iterator[tuple[int, str, bool]]:
    """Line, text and whether it is a cell of a table, for each paragraph, item, heading and cell."""
    text = COMMENT.sub(blank, FENCE.sub(blank, text))
    start, lines = 0, []
    for number, line in enumerate([*text.splitlines(), ""], 1):
        begins = re.match(r" *([-*] |\d+\. |#+ |\||>|!\[|\[)", line)
        if lines and (begins or not line.strip()):
            yield start, " ".join(lines), False
            lines = []
        if line.lstrip().startswith("|"):
            for cell in line.strip().strip("|").split(" | "):
                yield number, cell, True
        elif line.strip():
            start = start if lines else number
            lines.append(re.sub(r"^ *([-*]|\d+\.|#+|>) +", "", line).strip())


def plain(text: str) -> str:
    """Text without markup: a piece of code is one word, a link its text."""
    text = re.sub(r"`[^`]*`", "code", text)
    text = re.sub(r"!?\[([^\[\]]*)\]\([^)]*\)", r"\1", text)
    text = re.sub(r"\b(e\.g|i\.e|etc|vs|cf|No|al)\.", lambda match: match[0].replace(".", DOT), text)
    return re.sub(r"(?<=\d)\.(?=\d)", DOT, text)


def faults(text: str) -> Iterator[tuple[int, str]]:
    """Line and message of each fault."""
    for line, paragraph, is_cell in paragraphs(text):
        words = plain(paragraph)
        for sentence in re.split(r"(?<=[.!?:])[*_\")]*\s+", words):
            count = len(re.findall(r"[^\W_][\w'·-]*", sentence))
            if count > MAXIMUM and not is_cell:
                yield line, f"{count} words: {sentence[:60]}..."
        for pattern, better in WORDS.items():
            before = "" if pattern.startswith(",") else r"(?<![\w-])"
            for match in re.finditer(rf"{before}{pattern}(?![\w-])", words, re.IGNORECASE):
                yield line, f"{match[0].strip(' ,')!r}: write {better}"


def main(names: list[str]) -> int:
    """Check these files, or all pages of the repository."""
    listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.md"]
    names = names or subprocess.run(listed, check=True, capture_output=True, text=True).stdout.split()
    found = 0
    for name in names:
        if name in EXCEPTIONS or name.startswith("tests/data/") or not Path(name).exists():
            continue
        for line, message in faults(Path(name).read_text(encoding="utf-8")):
            print(f"{name}:{line}: {message}")
            found += 1
    return int(found > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
