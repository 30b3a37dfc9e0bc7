"""House rules of prose that no linter knows: error messages and the entries of docstrings."""

import ast
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FOLDERS = ["benchmarks", "exporter", "models", "runtime", "training"]
SOURCES = [
    path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py") if "cpp" not in path.relative_to(ROOT).parts
]

SAYS = re.compile(r"(Error|MissingLibrary|CheckFailed|BadParameter)$")
LOGS = ("warning", "error")
# What begins with a capital in the middle of a sentence too.
NAMES = {"Lightning", "Marian", "Hugging", "Python", "Linux", "Unicode", "Pharaoh", "Jetson"}


def messages(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Line and end of each message that is raised or logged, as far as it stands where it is raised."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or not node.args:
            continue
        name = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
        if not (SAYS.search(name) or (isinstance(node.func, ast.Attribute) and name in LOGS)):
            continue
        message = node.args[0]
        end = message.values[-1] if isinstance(message, ast.JoinedStr) and message.values else message
        if isinstance(end, ast.Constant) and isinstance(end.value, str):
            yield node.lineno, end.value


def entries(docstring: str) -> Iterator[str]:
    """The texts of a docstring's `name: text` entries, each in one line."""
    section = None
    found: list[str] = []
    for line in docstring.splitlines():
        if re.fullmatch(r"(Args|Attributes|Raises):", line.strip()):
            section = len(line) - len(line.lstrip())
        elif section is not None and line.strip() and len(line) - len(line.lstrip()) <= section:
            section = None
        elif section is not None and re.match(rf" {{{section + 4}}}\S", line):
            found.append(line.strip())
        elif section is not None and line.strip():
            found[-1] += " " + line.strip()
    for entry in found:
        _name, colon, text = entry.partition(": ")
        yield text if colon else entry


# A docstring's first line has a noun or a verb as its head: none of these begins one.
NO_HEADS = set(
    "Also And As At By From How In Likewise Of See Same So That Those To What Where Which With Without".split()
)


def heads(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Line and first word of each docstring."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and (text := ast.get_docstring(node)):
            yield getattr(node, "lineno", 1), text.split()[0].strip("`,.:")


def places(
    paths: Iterable[Path], texts: Callable[[ast.AST], Iterator[tuple[int, str]]], wrong: Callable[[str], bool]
) -> list[str]:
    """File, line and end of each text in these files that is wrong."""
    return [
        f"{path.relative_to(ROOT)}:{line}: ...{text[-40:]}"
        for path in paths
        for line, text in texts(ast.parse(path.read_text()))
        if wrong(text)
    ]


def of(folder: str) -> list[Path]:
    return [path for path in SOURCES if path.relative_to(ROOT).parts[0] == folder]


def test_docstrings_begin_with_a_noun_or_a_verb() -> None:
    sources = [*SOURCES, *ROOT.glob("*.py"), *(ROOT / ".ci").glob("*.py")]
    assert places(sources, heads, NO_HEADS.__contains__) == []
    assert list(heads(ast.parse('"""What this is."""'))) == [(1, "What")]


def test_there_is_something_to_look_at() -> None:
    assert len(SOURCES) > 100
    assert sum(len(list(messages(ast.parse(path.read_text())))) for path in SOURCES) > 200


@pytest.mark.parametrize("folder", FOLDERS)
def test_messages_end_without_a_period(folder: str) -> None:
    """They are printed after the program's name and a colon."""
    assert places(of(folder), messages, lambda end: end.endswith(".") and not end.endswith("...")) == []


@pytest.mark.parametrize("folder", FOLDERS)
def test_entries_of_docstrings_begin_small_and_end_with_a_period(folder: str) -> None:
    wrong = []
    for path in of(folder):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
                for text in entries(ast.get_docstring(node) or ""):
                    first = text.split()[0]
                    capital = re.fullmatch(r"[A-Z]([a-z']*)", first) and first not in NAMES
                    if capital or not text.endswith((".", ".)", "?")):
                        wrong.append(f"{path.relative_to(ROOT)}:{node.name if hasattr(node, 'name') else ''}: {text}")
    assert not wrong


def test_no_string_stands_alone() -> None:
    """Such a string is lost: the end of a message that was broken over two lines without parentheses."""
    lost = []
    for path in SOURCES:
        tree = ast.parse(path.read_text())
        docstrings = {
            id(node.body[0]) for node in ast.walk(tree) if isinstance(getattr(node, "body", None), list) and node.body
        }
        lost += [
            f"{path.relative_to(ROOT)}:{node.lineno}"
            for node in ast.walk(tree)
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
            if id(node) not in docstrings
        ]
    assert lost == []
