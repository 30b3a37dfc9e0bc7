"""The Python and the C++ tool refuse the same files that are not lines of text."""

import os
import subprocess
from pathlib import Path

import commands
import pytest
from other_formats import contents
from toy import BUNDLE
from txport.runtime import entry
from txport.runtime.corpus.formats import COMPRESSIONS
from txport.runtime.text.plain import FOREIGN

TOOL = Path(os.environ.get("TXPORT_CPP_BUILD", "/nowhere")) / "txport-translate"

pytestmark = pytest.mark.skipif("TXPORT_CPP_BUILD" not in os.environ, reason="needs the C++ build: make cpp")


def assert_same_refusal(file: Path) -> None:
    expected = commands.run_bytes(entry, "tx-translate", BUNDLE, file)
    found = subprocess.run([TOOL, BUNDLE, file], capture_output=True, timeout=60)
    assert expected.returncode == found.returncode == 2
    assert found.stdout == expected.stdout == b""
    assert found.stderr.replace(b"txport-translate", b"tx-translate") == expected.stderr


def test_contents_of_other_formats(tmp_path: Path) -> None:
    file = tmp_path / "file.txt"
    for content in contents(tmp_path).values():
        file.write_bytes(content)
        assert_same_refusal(file)


def test_names_of_other_formats(tmp_path: Path) -> None:
    endings = [*FOREIGN, ".jsonl", ".ndjson", ".parquet", *(f".{name}" for name in COMPRESSIONS[1:])]
    for ending in endings:
        file = tmp_path / f"file{ending.title()}"
        file.write_text("one\n")
        assert_same_refusal(file)


@pytest.mark.parametrize("name", [".json", "file", "file.", "file.csv.txt", "file.md"])
def test_names_of_text(tmp_path: Path, name: str) -> None:
    file = tmp_path / name
    file.write_text("one\n")
    expected = commands.run_bytes(entry, "tx-translate", BUNDLE, file)
    found = subprocess.run([TOOL, BUNDLE, file], capture_output=True, timeout=60)
    assert expected.returncode == found.returncode == 0
    assert found.stdout == expected.stdout
