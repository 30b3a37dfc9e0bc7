"""What a contributor relies on: one definition of continuous integration, and the check of the pages."""

import importlib.util
import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parent.parent
PAGES = ROOT / ".ci" / "pages.py"


def targets_of(words: str) -> set[str]:
    """Names of make's targets in words that follow `make`, without variables."""
    return {word for word in words.split() if re.fullmatch(r"[a-z][a-z-]*", word)}


def prerequisites() -> dict[str, set[str]]:
    """The targets that each target of the Makefile needs."""
    rules = re.findall(r"^([a-z][a-z-]*):(?!=)([^\n=]*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    found: dict[str, set[str]] = {}
    for name, words in rules:
        found.setdefault(name, set()).update(targets_of(words))
    return found


def reached(lines: Iterable[str]) -> set[str]:
    """The targets that calls of make reach, given by the words after `make`."""
    found, left = set(), set().union(*map(targets_of, lines))
    needs = prerequisites()
    while left:
        found.add(target := left.pop())
        left |= needs.get(target, set()) - found
    return found


def test_the_workflow_runs_every_target_of_the_script() -> None:
    """`.ci/run` is for one machine, the workflow for several: neither may check less than the other."""
    yaml = pytest.importorskip("yaml", reason="needs PyYAML: pip install 'txport[dev]'")
    script = re.sub(r"(^|\s)#.*", "", (ROOT / ".ci/run").read_text())
    called = set().union(*(targets_of(words) for words in re.findall(r"\bmake ([^>&|#\n]*)", script)))
    jobs = yaml.safe_load((ROOT / ".github/workflows/checks.yml").read_text())["jobs"]
    matrix = jobs["make"]["strategy"]["matrix"]
    lines = [*matrix["target"], *(each["target"] for each in matrix["include"])]
    lines += [step["run"].removeprefix("make ") for step in jobs["make"]["steps"] if "run" in step]
    assert called >= {"test", "cpp-build", "cpp-ctest"} and called - reached(lines) == set()
    assert {each["python"] for each in matrix["include"]} == {f"3.{minor}" for minor in range(10, 15)}
    long = reached([*lines, *jobs["long"]["strategy"]["matrix"]["target"]])
    assert len(prerequisites()["test-all"]) > 8 and prerequisites()["test-all"] - long == set()


def script(file: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None and spec.loader is not None
    module = sys.modules[file.stem] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("A short sentence. " + "word " * 31 + "end.", 1, "32 words"),
        ("One.\n\n* Two says\n  three.", 3, "says"),
        ("Draw so many of them.", 1, "so many"),
        ("| a | b |\n|---|---|\n| x | in place of y |", 3, "in place of"),
        ("It is there, too.", 1, "too"),
        ("This is no bundle.", 1, "is no"),
    ],
)
def test_the_check_of_the_pages_finds_a_fault(text: str, line: int, message: str) -> None:
    found = list(script(PAGES).faults(text))
    assert [number for number, _ in found] == [line] and message in found[0][1]


@pytest.mark.parametrize(
    "text",
    [
        "```bash\necho says so many, too. anew\n```",
        "Use `says` and version 1.2.3, e.g. here. There is no limit. It is no longer used.",
        "| " + "word " * 40 + "| b |",
        "* " + "word " * 20 + ".\n* " + "word " * 20 + ".",
    ],
)
def test_the_check_of_the_pages_accepts_the_rest(text: str) -> None:
    assert list(script(PAGES).faults(text)) == []


CODE = '''
def f(n: int) -> int:
    """{}"""
    return n{}
'''


@pytest.mark.parametrize(
    ("code", "line", "message"),
    [
        (CODE.format("What a number is.", ""), 3, "begin with a noun"),
        (CODE.format("Return a number", ""), 3, "full stop"),
        (CODE.format("Return a number.\n\n    Args:\n        n: as the file says.\n    ", ""), 5, "says"),
        (CODE.format("Return a number.", "  # as the file says"), 4, "says"),
        (CODE.format("Return a number.", " or print(f'{n} is no bundle at all')"), 4, "is no"),
    ],
)
def test_the_check_of_python_finds_a_fault(code: str, line: int, message: str) -> None:
    found = list(script(PAGES).python_faults(code))
    assert [number for number, _ in found] == [line] and message in found[0][1]


def test_the_check_of_python_accepts_plain_code() -> None:
    code = CODE.format("Return `n`, the number of rows; see `f`.", " + len('so many')  # rows of a batch")
    assert list(script(PAGES).python_faults(code)) == []


def test_the_check_of_cpp_finds_comments_and_messages() -> None:
    code = 'int n;  // so many rows\nthrow Error(name + " is no bundle of tx-export");\nint says = 1;\n'
    assert [line for line, _ in script(PAGES).cpp_faults(code)] == [1, 2]


def test_the_check_counts_packed_assignments_and_conditional_expressions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("runtime").mkdir()
    source = Path("runtime/module.py")
    source.write_text("a, b = 1, 2\nc = a if b else 0\n" + "d, e = pair\n" * 48)
    packed, conditional = script(PAGES).density(["runtime/module.py"])
    assert packed.startswith("20.0 packed assignments") and conditional.startswith("20.0 conditional expressions")
    source.write_text("d, e = pair\n" * 48)
    assert list(script(PAGES).density(["runtime/module.py"])) == []


def test_a_faulty_page_fails(tmp_path: Path) -> None:
    (tmp_path / "page.md").write_text("The file says so.\n")
    done = subprocess.run([sys.executable, PAGES, tmp_path / "page.md"], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 1 and "page.md:1: 'says'" in done.stdout
    (tmp_path / "page.md").write_text("The file contains it.\n")
    assert subprocess.run([sys.executable, PAGES, tmp_path / "page.md"], cwd=ROOT).returncode == 0


def test_each_mutant_can_be_planted() -> None:
    """A change of such a line must update the list: tests/data/mutants.toml."""
    mutants = script(ROOT / "tests" / "helpers" / "mutants.py").read_mutants()
    assert len(mutants) >= 80 and len({(mutant.area, mutant.name) for mutant in mutants}) == len(mutants)
    for mutant in mutants:
        text = mutant.changed((ROOT / mutant.file).read_text(encoding="utf-8"))
        assert mutant.compiled or compile(text, mutant.file, "exec")
        for test in mutant.tests:
            assert (ROOT / test.partition("::")[0]).exists(), test
