"""Check the language of pages and code, as far as a script can: `python .ci/pages.py [FILE...]`, part of `make lint`.

In pages (.md) it finds sentences of more than 25 words, and words that a reader has to read twice. In Python it checks
docstrings, help texts, messages and comments for the same words, and the form of docstrings: a summary that is a noun
phrase or an imperative, and ends with a full stop. In C++ it checks comments and messages for the words.
It also counts packed assignments (`a, b = 1, 2`) and conditional expressions of the packages.
Exit code 1 if anything is found.
"""

import ast
import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterable, Iterator
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
    r"the most (?:tokens|rows|sentences|bytes|lines|characters|requests|texts)": "the maximum number",
}
# Files, or folders that end with "/", that are not checked, and the reason.
EXCEPTIONS = {
    "CHANGELOG.md": "history",
    ".ci/pages.py": "contains the words",
    "tests/": "docstrings of tests state a fact, not a command",
    "training/spoken/": "is about spoken words, which are said",
}
# First words of a summary that is neither a noun phrase nor an imperative.
FIRST = r"(?:What|Where|Which|Who|Whose|How|Why|Whether|Of|If|When|So|As|That|It|There|Says?|Takes|Told|Those|Such)\b"
# Maximum in 1,000 lines of the packages together.
MAXIMUM_PACKED = 2.0
MAXIMUM_CONDITIONAL = 8
PACKAGES = ("benchmarks", "exporter", "models", "runtime", "training")

FENCE = re.compile(r"^( *)```.*?^\1```", re.MULTILINE | re.DOTALL)
COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
# Abbreviations and numbers whose full stops end no sentence are joined by this.
DOT = "\N{MIDDLE DOT}"


def blank(match: re.Match[str]) -> str:
    """Return the same number of lines, without text."""
    return "\n" * match[0].count("\n")


def paragraphs(text: str) -> Iterator[tuple[int, str, bool]]:
    """Line, text and whether it is a cell of a table, for each paragraph, item, heading and cell."""
    text = COMMENT.sub(blank, FENCE.sub(blank, text))
    start = 0
    lines = []
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


def docstrings(tree: ast.Module) -> Iterator[tuple[ast.Constant, str]]:
    """Yield the node and the text of each docstring."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            text = ast.get_docstring(node)
            if text:
                first = node.body[0]
                assert isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
                yield first.value, text


def messages(tree: ast.Module, skipped: set[int]) -> Iterator[tuple[int, str]]:
    """Yield line and text of strings of several words, such as help texts and messages, except the nodes `skipped`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            skipped |= {id(part) for part in node.values}
            yield node.lineno, "".join(part.value if isinstance(part, ast.Constant) else "X" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in skipped:
            yield node.lineno, node.value


def python_faults(text: str) -> Iterator[tuple[int, str]]:
    """Line and message of each fault of Python code."""
    tree = ast.parse(text)
    found = list(docstrings(tree))
    for node, docstring in found:
        summary = docstring.partition("\n\n")[0]
        if re.match(FIRST, summary):
            yield node.lineno, f"{summary.split()[0]!r}: begin with a noun or an imperative"
        if not summary.rstrip("`\"')").endswith((".", ":", "?", "...")):
            yield node.lineno, "the summary does not end with a full stop"
        yield from ((node.lineno + line - 1, message) for line, message in words_of(docstring))
    strings = [
        (line, string) for line, string in messages(tree, {id(node) for node, _ in found}) if string.count(" ") > 2
    ]
    comments = [
        (token.start[0], token.string.lstrip("# "))
        for token in tokenize.generate_tokens(io.StringIO(text).readline)
        if token.type == tokenize.COMMENT
    ]
    for start, string in [*strings, *comments]:
        yield from ((start + line - 1, message) for line, message in words_of(string))


def cpp_faults(text: str) -> Iterator[tuple[int, str]]:
    """Line and message of each fault of C or C++ code."""
    for number, line in enumerate(text.splitlines(), 1):
        comment = re.search(r"(?://|/\*|^ \*)(.*)", line)
        strings = [string for string in re.findall(r'"([^"]*)"', line) if string.count(" ") > 2]
        for string in [*strings, *([comment[1]] if comment else [])]:
            yield from ((number, message) for _, message in words_of(string))


def words_of(text: str) -> Iterator[tuple[int, str]]:
    """Faults of single words, without the length of sentences, which lists and formulas exceed."""
    return ((line, message) for line, message in faults(text) if not re.match(r"\d+ words: ", message))


CHECKS = {".md": faults, ".py": python_faults, **dict.fromkeys((".cpp", ".hpp", ".h", ".inc"), cpp_faults)}


def is_packed(node: ast.AST) -> bool:
    """Return whether a node is `a, b = 1, 2`: several values that could be several lines."""
    return (
        isinstance(node, ast.Assign)
        and isinstance(node.value, ast.Tuple)
        and any(isinstance(target, ast.Tuple) for target in node.targets)
    )


def density(names: Iterable[str]) -> Iterator[str]:
    """Yield a message if the packages have too many packed assignments or conditional expressions."""
    lines = packed = conditional = 0
    for path in map(Path, names):
        if path.parts[0] in PACKAGES and path.suffix == ".py" and path.exists():
            text = path.read_text(encoding="utf-8")
            nodes = list(ast.walk(ast.parse(text)))
            lines += text.count("\n")
            packed += sum(map(is_packed, nodes))
            conditional += sum(isinstance(node, ast.IfExp) for node in nodes)
    for what, count, maximum in (
        ("packed assignments", packed, MAXIMUM_PACKED),
        ("conditional expressions", conditional, MAXIMUM_CONDITIONAL),
    ):
        if 1000 * count > maximum * lines:
            yield f"{1000 * count / lines:.1f} {what} in 1,000 lines: at most {maximum:g}, write statements instead"


def is_checked(name: str) -> bool:
    """Return whether a file is checked."""
    excepted = any(name == each or (each.endswith("/") and name.startswith(each)) for each in EXCEPTIONS)
    pages = name.endswith(".md") and not name.startswith("tests/data/") and name not in EXCEPTIONS
    return Path(name).exists() and Path(name).suffix in CHECKS and (pages or not excepted)


def main(names: list[str]) -> int:
    """Check these files, or all pages and code of the repository."""
    listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    every = subprocess.run(listed, check=True, capture_output=True, text=True).stdout.splitlines()
    found = [] if names else list(density(every))
    for name in filter(is_checked, names or every):
        text = Path(name).read_text(encoding="utf-8")
        found += [f"{name}:{line}: {message}" for line, message in CHECKS[Path(name).suffix](text)]
    print("\n".join(found), end="\n" if found else "")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
