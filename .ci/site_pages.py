"""Hook of mkdocs: the site's pages are the Markdown pages of this repository, plus references made from the code.

Pages keep their paths, so links between them work on the site as in the repository. A link to a file that is not a page
becomes a link to `repo_url`, or plain text without one.
"""

import importlib
import posixpath
import re
import shutil
import subprocess
import sys
from pathlib import Path

import click
from click.testing import CliRunner
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parent.parent
PACKAGES = ["benchmarks", "exporter", "models", "runtime", "training"]
LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)")
BADGE = re.compile(r"^\[!\[.*\n", re.MULTILINE)
# What an entry point runs besides its command.
SUBCOMMANDS = {"tx-bench": {"compare": "txport.benchmarks.compare_command"}}
# Options of mkdocstrings for a whole module.
INNER = "\n    options:\n      show_root_heading: false\n      heading_level: 3\n      filters: ['!^_']"
FENCE = re.compile(r"(^ *```.*?^ *```$)", re.MULTILINE | re.DOTALL)


def on_startup(command: str, dirty: bool) -> None:
    """Copy the packages to where mkdocstrings finds them as `txport`: the repository has no folder of that name."""
    sources = ROOT / "build" / "site-sources" / "txport"
    shutil.rmtree(sources, ignore_errors=True)
    for package in PACKAGES:
        shutil.copytree(ROOT / package, sources / package, ignore=_not_python)


def _not_python(folder: str, names: list[str]) -> set[str]:
    """Return names that are not copied: files other than Python's, and folders that are no packages."""
    paths = [Path(folder, name) for name in names]
    return {
        path.name
        for path in paths
        if not ((path.suffix == ".py" and path.is_file()) or (path / "__init__.py").exists())
    }


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages and figures of the repository, and the generated references."""
    listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.md", "benchmarks/figures/*"]
    names = subprocess.run(listed, cwd=ROOT, check=True, capture_output=True, text=True).stdout.split()
    for name in names:
        if not name.startswith((".", "tests/data/")) and (ROOT / name).exists():
            files.append(File.generated(config, name, abs_src_path=str(ROOT / name)))
    for name, content in references().items():
        files.append(File.generated(config, f"reference/{name}.md", content=content))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Remove badges, and rewrite links to files that are not pages. Code blocks stay unchanged."""

    def link(match: re.Match[str]) -> str:
        image, text, target = match.groups()
        path, _, anchor = target.partition("#")
        if image or not path or re.match(r"[a-z]+:", target):
            return match[0]
        name = posixpath.normpath(posixpath.join(posixpath.dirname(page.file.src_uri), path))
        if files.get_file_from_path(name):
            return match[0]
        if files.get_file_from_path(f"{name}/README.md"):
            return f"[{text}]({path.rstrip('/')}/README.md{'#' + anchor if anchor else ''})"
        return f"[{text}]({config.repo_url.rstrip('/')}/blob/main/{name})" if config.repo_url else text

    parts = FENCE.split(BADGE.sub("", markdown))
    return "".join(part if index % 2 else LINK.sub(link, part) for index, part in enumerate(parts))


def references() -> dict[str, str]:
    """Return the generated pages by name."""
    return {
        "python": _python(),
        "commands": _commands(),
        "recipes": _recipes(),
        "c": _headers(),
        "bundle": _bundle(),
    }


def _python() -> str:
    from txport import runtime

    names = sorted(runtime.__all__, key=lambda name: (name != "Translator", name.endswith("Error"), name))
    places = {name: getattr(runtime, name).__module__ for name in names}
    head = (
        "# Python API\n\nImport these names from `txport.runtime`. [Releases](../RELEASE.md) describes what may change."
    )
    objects = [f"::: {places[name]}.{name}" for name in names]
    batches = f"## Ray and Spark\n\n::: txport.runtime.corpus.batches{INNER}"
    return "\n\n".join([head, *objects, batches])


def _bundle() -> str:
    head = (
        "# Bundle format\n\nA bundle is a directory, or one file made by `tx-pack`. Its `manifest.json` contains these "
        "objects, beginning with `Manifest`. [Export](../exporter/README.md#contents-of-a-bundle) lists the files."
    )
    return "\n\n".join(
        [
            head,
            f"## Manifest\n\n::: txport.runtime.bundle.schema{INNER}",
            f"## Inputs and outputs of graphs\n\n::: txport.runtime.bundle.interface{INNER}",
        ]
    )


def _headers() -> str:
    parts = [
        "# C and C++ API\n\nThe headers are the reference. [The C++ runtime](../runtime/cpp/README.md) shows their use."
    ]
    for name, language in (("txport.h", "c"), ("txport.hpp", "cpp"), ("engine.h", "c")):
        text = (ROOT / "runtime/cpp/include/txport" / name).read_text()
        parts.append(f"## {name}\n\n```{language}\n{text}```")
    return "\n\n".join(parts)


def _recipes() -> str:
    main = importlib.import_module("txport.training.train_command").main
    text = CliRunner().invoke(main, ["--recipe-help"]).output
    head = "# Recipes\n\nThe output of `tx-train --recipe-help`. [Training](../training/README.md) explains it."
    return f"{head}\n\n```toml\n{text.rstrip()}\n```"


def _commands() -> str:
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    codes = "[Exit codes](../runtime/README.md#errors-and-exit-codes)"
    parts = [f"# Commands\n\nEvery command also has `--help` and `--version`. {codes} are the same for all."]
    for name, place in sorted(scripts.items()):
        module, extra = _command_module(place)
        command = importlib.import_module(module).main
        install = f"Install with `txport[{extra}]`." if extra else "Installed with `txport`."
        parts += _sections(name, command, install)
        for inner, module in SUBCOMMANDS.get(name, {}).items():
            parts += _sections(f"{name} {inner}", importlib.import_module(module).main, install)
    return "\n\n".join(parts)


def _command_module(place: str) -> tuple[str, str]:
    """Module and extra that an entry point passes to `run_command`."""
    name, _, function = place.partition(":")
    entry = importlib.import_module(name)
    found: list[tuple[str, str]] = []
    original = entry.run_command
    entry.run_command = lambda module, extra: found.append((module, extra))  # type: ignore[attr-defined]
    try:
        getattr(entry, function)()
    finally:
        entry.run_command = original  # type: ignore[attr-defined]
    return found[0]


def _sections(name: str, command: click.Command, install: str) -> list[str]:
    """Return a section for a command, and one for each of its subcommands."""
    context = click.Context(command, info_name=name)
    usage = f"{name} {' '.join(command.collect_usage_pieces(context))}"
    text = re.sub(r"\n(?!\n)\s*", " ", (command.help or "").replace("\b", "")).replace("\f", "")
    options = [each for each in command.params if isinstance(each, click.Option)]
    records = [record for option in options if (record := option.get_help_record(context))]
    rows = [f"| {_cell(left, code=True)} | {_cell(right)} |" for left, right in records if "--help" not in left]
    table = "\n".join(["| Option | Meaning |", "|---|---|", *rows])
    parts = [
        f"## {name}",
        re.sub(r" {2,}", "\n\n", text.strip()),
        install,
        f"```text\n{usage}\n```",
        *([table] if rows else []),
    ]
    if isinstance(command, click.Group):
        for inner, each in sorted(command.commands.items()):
            parts += _sections(f"{name} {inner}", each, "")
    return [part for part in parts if part]


def _cell(text: str, code: bool = False) -> str:
    text = " ".join(text.split())
    if code:
        return f"`{text}`".replace("|", "\\|")
    return re.sub(r"([<>|*_`\\])", r"\\\1", text)
