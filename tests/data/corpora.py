"""Corpora for tests: rows for the toy bundle, files of each format with them, and what a run has made of them."""

import gzip
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from click.testing import CliRunner
from toy import BUNDLE
from txport.runtime.corpus.command import main
from txport.runtime.corpus.formats import form_of, packed, unpacked

WORDS = "one two three four five six seven eight nine ten".split()
LIMIT = 4  # tokens of an answer: enough to tell them apart


def sentences(count: int) -> list[str]:
    """So many different texts of one to five words, with an empty one now and then."""
    return [" ".join(WORDS[(n * k + n // 7) % 10] for k in range(1, 1 + n % 6)) for n in range(count)]


def write(path: Path, rows: Sequence[Any]) -> Path:
    """A file of rows by its name; each is a text, or an object where the format has such."""
    form = form_of(path.name)
    if form.format == "parquet":
        import pyarrow
        import pyarrow.parquet

        table = pyarrow.table({"n": range(len(rows)), "text": rows})
        pyarrow.parquet.write_table(table, path, row_group_size=7)
        return path
    lines = rows if form.format == "text" else [json.dumps({"n": n, "text": row}) for n, row in enumerate(rows)]
    with path.open("wb") as file, packed(file, form.compression) as plain:
        plain.write("".join(f"{line}\n" for line in lines).encode())
    return path


def rows_of(path: Path) -> list[Any]:
    """All rows of a file: texts, or objects."""
    form = form_of(path.name)
    if form.format == "parquet":
        import pyarrow.parquet

        return list(pyarrow.parquet.read_table(path).to_pylist())
    with path.open("rb") as file, unpacked(file, form.compression) as plain:
        lines = plain.read().decode().split("\n")[:-1]
    return lines if form.format == "text" else [json.loads(line) for line in lines]


def parts_of(directory: Path) -> list[Path]:
    """The files of all parts, in order."""
    return sorted(path for path in directory.iterdir() if path.is_file())


def all_rows(directory: Path) -> list[Any]:
    """The rows of all parts, in order."""
    return [row for part in parts_of(directory) for row in rows_of(part)]


def content(directory: Path) -> dict[str, bytes]:
    """Every file below a directory."""
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def run(files: Iterable[object] | Path, output: object, *arguments: object, bundle: Path = BUNDLE) -> str:
    """Run the command in this process; what it prints."""
    listed = [files] if isinstance(files, Path) else list(files)
    fixed = ["--max-length", LIMIT, "--threads", 1, "--workers", 1]
    line = [bundle, *listed, "-o", output, *fixed, *arguments]
    done = CliRunner().invoke(main, list(map(str, line)), catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


def gzipped(text: str) -> bytes:
    """A text, compressed."""
    return gzip.compress(text.encode())
