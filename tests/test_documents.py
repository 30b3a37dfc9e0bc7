"""What the documents promise: commands, options, files, recipes and code that they show."""

import contextlib
import functools
import io
import os
import re
import runpy
import subprocess
import sys
import warnings
from importlib.metadata import entry_points
from pathlib import Path
from unittest.mock import patch

import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parent.parent
FOLDERS = ["benchmarks", "exporter", "models", "runtime", "training"]
FOUND = [*ROOT.glob("*.md"), *(file for folder in [*FOLDERS, "tests"] for file in (ROOT / folder).rglob("*.md"))]
DOCUMENTS = sorted(str(file.relative_to(ROOT)) for file in FOUND if "data" not in file.parts)
# Explanations and rules that need no command.
WITHOUT_COMMANDS = {"CHANGELOG.md", "SECURITY.md"}
SUBCOMMANDS = ("compare",)  # of tx-bench


def blocks(document: str, *languages: str) -> list[str]:
    """The code blocks of a document in these languages."""
    text = (ROOT / document).read_text()
    return re.findall(rf"^```(?:{'|'.join(languages)})\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def commands_in(document: str) -> list[list[str]]:
    """The commands in the code blocks, in words; continued lines joined, pipes taken apart."""
    lines = "\n".join(blocks(document, "bash", "sh", "console")).replace("\\\n", " ").splitlines()
    parts = [part for line in lines for part in re.split(r"\|\|?|&&|;", re.sub(r"(^|\s)#.*", "", line))]
    return [part.removeprefix("build/venv/bin/").split() for part in map(str.strip, parts) if part]


@functools.cache
def help_of(name: str, *subcommand: str) -> str:
    """Return the help of a command or of a module, which runs in this process; `test_layout.py` starts processes."""
    output = io.StringIO()
    arguments = patch.object(sys, "argv", [name, *subcommand, "--help"])
    with arguments, contextlib.redirect_stdout(output), pytest.raises(SystemExit) as ended:
        if name.startswith("txport."):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", RuntimeWarning)  # another test may have imported the module
                runpy.run_module(name, run_name="__main__")
        else:
            (script,) = entry_points(group="console_scripts", name=name)
            script.load()()
    assert not ended.value.code
    return output.getvalue()


def documented_help(words: list[str]) -> str | None:
    """The help of a command that is ours, or None."""
    if words[:2] == ["python", "-m"] and words[2].startswith("txport."):
        return help_of(words[2])
    if not words[0].startswith("tx-"):
        return None
    script = Path(sys.executable).parent / words[0]
    assert script.exists(), f"there is no command {words[0]}"
    return help_of(words[0], *(word for word in words[1:2] if word in SUBCOMMANDS))


def test_these_are_the_documents() -> None:
    assert {"README.md", "CONTRIBUTING.md", "CHANGELOG.md", "runtime/cpp/README.md"} < set(DOCUMENTS)
    assert {f"{folder}/README.md" for folder in FOLDERS} < set(DOCUMENTS)


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 120


def test_the_readme_starts_with_a_clone_and_builds_a_wheel() -> None:
    """There is no wheel on PyPI: whoever pastes the first block must have all that it names."""
    assert commands_in("README.md")[:2] == [["apt", "install", "make", "python3-venv"], ["make", "demo"]]
    assert ["make", "wheels", 'MACHINES="$(uname', '-m)"'] in commands_in("README.md")


def test_the_readme_and_the_citation_name_the_version() -> None:
    version = (ROOT / "runtime/cpp/VERSION").read_text().strip()
    assert f"version-{version}-blue" in (ROOT / "README.md").read_text()
    assert f"\nversion: {version}\n" in (ROOT / "CITATION.cff").read_text()


def test_the_python_of_the_readme_runs_in_a_clean_folder(tmp_path: Path) -> None:
    """As pasted, in a folder that holds only the bundle that it names, here the toy bundle."""
    (block,) = blocks("README.md", "python")
    (tmp_path / "build/demo").mkdir(parents=True)
    (tmp_path / "build/demo/bundle").symlink_to(ROOT / "tests/data/toy_bundle")
    done = subprocess.run([sys.executable, "-c", block], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 2


def test_the_python_of_the_runtime_page_runs_in_a_clean_folder(
    bundle: Path, attention_bundle: Path, tmp_path: Path
) -> None:
    """Each block by itself, with the bundles that the page names."""
    (tmp_path / "build/demo").mkdir(parents=True)
    (tmp_path / "build/demo/bundle").symlink_to(bundle)
    (tmp_path / "build/mine-bundle").symlink_to(attention_bundle)
    found = blocks("runtime/README.md", "python")
    assert len(found) >= 5
    for block in found:
        done = subprocess.run([sys.executable, "-c", block], cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, f"{block}\n{done.stderr}"
        assert done.stdout


@pytest.mark.parametrize(
    ("document", "command"),
    [
        ("runtime/README.md", "tx-inspect build/demo/bundle --check"),
        ("runtime/README.md", "tx-pack build/demo/bundle"),
        ("runtime/troubleshooting.md", "tx-inspect"),
        ("runtime/search/README.md", "tx-translate"),
        ("runtime/documents/README.md", "tx-translate"),
        ("benchmarks/examples/README.md", "subtitles.py"),
    ],
)
def test_commands_run_in_a_clean_folder(document: str, command: str, tmp_path: Path) -> None:
    """The block as pasted, in a clone with the demo's bundle, here the toy bundle, and with some text."""
    (block,) = [block for block in blocks(document, "bash") if command in block]
    (tmp_path / "build/demo").mkdir(parents=True)
    (tmp_path / "build/demo/bundle").symlink_to(ROOT / "tests/data/toy_bundle")
    (tmp_path / "benchmarks").symlink_to(ROOT / "benchmarks")
    for name in ("input.txt", "letter.txt"):
        (tmp_path / name).write_text("the cat sees a bird\n")
    block = re.sub(r"^pip install .*$", "", block, flags=re.MULTILINE).replace("build/venv/bin/", "")
    path = f"{Path(sys.executable).parent}:/usr/bin:/bin"
    done = subprocess.run(["bash", "-ec", block], cwd=tmp_path, env={**os.environ, "PATH": path}, capture_output=True)
    assert done.returncode == 0, done.stderr.decode()


def test_the_ways_of_new_users_paste_blocks_of_the_pages() -> None:
    """What `make bare-machine` runs is found on the page, without a bare machine."""
    found = []
    for way in sorted((ROOT / "tests/bare_machines").glob("*.sh")):
        script = way.read_text()
        page = re.search(r"^page=(\S+)", script, re.MULTILINE)
        script = script.replace("$page", page[1]) if page else script
        pattern = r"(paste|paste_line|block|line|paste_python \S+) (\S+\.md) '([^']+)'"
        found += [(way.name, *each) for each in re.findall(pattern, script)]
    assert len(found) > 30 and len({way for way, *_ in found}) == 4
    for way, kind, document, text in found:
        code = blocks(document, *(("python",) if "python" in kind else ("bash", "toml")))
        lines = [line for block in code for line in block.splitlines()]
        wanted = any(line.startswith(text) for line in lines) if "line" in kind else any(text in each for each in code)
        assert wanted, f"{way}: {document} has no {kind} {text}"


def test_tables_have_at_most_four_columns() -> None:
    for document in DOCUMENTS:
        text = re.sub(r"^```.*?^```", "", (ROOT / document).read_text(), flags=re.MULTILINE | re.DOTALL)
        for rule in re.findall(r"^\|(?:-+\|)+$", text, re.MULTILINE):
            assert rule.count("|") <= 5, document


@pytest.mark.parametrize("document", DOCUMENTS)
def test_documented_commands_and_options_exist(document: str) -> None:
    pytest.importorskip("torch", reason="needs PyTorch: pip install 'txport[dev]'")
    found = commands_in(document)
    assert found or document in WITHOUT_COMMANDS, f"{document} shows no command"
    for words in found:
        text = documented_help(words)
        options = [word.partition("=")[0] for word in words[1:] if re.match(r"--?[a-z]", word) and word != "-m"]
        for option in options if text is not None else []:
            assert re.search(rf"(?<![\w-]){option}(?![\w-])", text), f"{' '.join(words)}: no option {option}"


@pytest.mark.parametrize("document", DOCUMENTS)
def test_documented_make_targets_and_options_of_cmake_exist(document: str) -> None:
    targets = re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    folder = ROOT / "runtime" / "cpp"
    cmake = "".join(file.read_text() for file in [folder / "CMakeLists.txt", *(folder / "cmake").glob("*.cmake")])
    for words in commands_in(document):
        if words[0] == "make":
            assert words[1] in targets, " ".join(words)
        if words[0] == "cmake":
            for option in re.findall(r"-D(\w+)", " ".join(words)):
                assert option in cmake, " ".join(words)


def anchors(document: Path) -> set[str]:
    """What GitHub makes of a document's headings."""
    headings = re.findall(r"^#+ +(.*)", document.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("document", DOCUMENTS)
def test_documented_files_and_sections_exist(document: str) -> None:
    text = re.sub(r"^```.*?^```", "", (ROOT / document).read_text(), flags=re.MULTILINE | re.DOTALL)
    for link in re.findall(r"\]\((?!https?:|\.\./\.\./actions/)([^)]+)\)", text):
        file, _, section = link.partition("#")
        target = (ROOT / document).parent / file if file else ROOT / document
        assert target.exists(), link
        assert not section or section in anchors(target), link


@pytest.mark.parametrize("document", [document for document in DOCUMENTS if blocks(document, "toml")])
def test_documented_recipes_can_be_read(document: str, tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="needs PyTorch: pip install 'txport[dev]'")
    from txport.training.recipe import read

    for block in blocks(document, "toml"):
        (tmp_path / "recipe.toml").write_text(block)
        recipe = read(str(tmp_path / "recipe.toml")).to_json()
        for name, section in tomllib.loads(block).items():
            assert section.items() <= recipe[name].items()


@pytest.mark.parametrize("document", [document for document in DOCUMENTS if blocks(document, "python")])
def test_documented_python_compiles_and_its_names_exist(document: str) -> None:
    imports = []
    for block in blocks(document, "python"):
        compile(block, document, "exec")
        imports += [line for line in block.splitlines() if re.match(r"(from|import) ", line)]
    assert imports
    subprocess.run([sys.executable, "-I", "-c", "\n".join(imports)], check=True)


def test_there_are_recipes_and_code_to_read() -> None:
    assert blocks("training/README.md", "toml") and blocks("README.md", "python")


def test_what_the_readme_translates_is_what_the_demo_checks() -> None:
    """`make demo` warns if its model gets one of them wrong."""
    from txport.benchmarks.demo import SENTENCES
    from txport.benchmarks.demo_summary import MAX_LISTED

    checked = {line.split("\t")[0] for line in SENTENCES.read_text(encoding="utf-8").splitlines()[:MAX_LISTED]}
    code = "".join(blocks("README.md", "bash", "python"))
    examples = set(re.findall(r'"([A-Z][^"]*\.)"', code))
    assert len(examples) == 3 and examples <= checked


def test_the_tour_is_as_long_as_it_says() -> None:
    """Its files, and together at most the lines that it promises."""
    tour = re.search(
        r"^## A tour in (\d+) files\n.*?^## ", (ROOT / "CONTRIBUTING.md").read_text(), re.MULTILINE | re.DOTALL
    )
    assert tour is not None
    listed = tour[0].partition("\nThen read")[0]
    files = re.findall(r"\]\((\S+\.py)\)", listed)
    lines = re.search(r"under ([\d,]+) lines", listed)
    assert lines is not None and len(files) == int(tour[1])
    assert sum(len((ROOT / file).read_text().splitlines()) for file in files) < int(lines[1].replace(",", ""))


def test_the_page_of_environment_variables_is_complete() -> None:
    page = (ROOT / "runtime/environment.md").read_text()
    sources = [file for folder in FOLDERS for ending in ("py", "cpp") for file in (ROOT / folder).rglob(f"*.{ending}")]
    named = {name for file in sources for name in re.findall(r'"(TXPORT_[A-Z_]+)"', file.read_text())}
    assert len(named) >= 6 and {name for name in named if f"`{name}`" not in page} == set()
