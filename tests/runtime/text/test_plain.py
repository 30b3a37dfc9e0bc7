"""What is recognised as another format than lines of text, and what is not."""

from pathlib import Path

import pytest
from other_formats import contents
from txport.runtime.errors import InputError
from txport.runtime.text.lines import open_text
from txport.runtime.text.plain import check_content, check_name


def test_files_of_other_formats(tmp_path: Path) -> None:
    for words, content in contents(tmp_path).items():
        file = tmp_path / "file.txt"
        file.write_bytes(content)
        with (
            pytest.raises(InputError, match=f"file.txt is {words}, not lines of text: (unpack|convert) it"),
            open_text(file),
        ):
            pass


@pytest.mark.parametrize(
    "text",
    ["", "a", "BZh is a word", "PKZIP", "a\0b and more than ten bytes", "%PDF", "\ufeffone", "\xfe\xff"],
)
def test_text(text: str) -> None:
    check_content("file", text.encode())


@pytest.mark.parametrize("name", ["a", "a.txt", "a.en", "v1.2", ".json", "json", "a.json/b", "a.csv.txt", "a.", "a.md"])
def test_names_of_text(name: str) -> None:
    check_name(name)


@pytest.mark.parametrize("name", ["a.json", "a.CSV", "b/a.b.Srt", "..json"])
def test_names_of_other_formats(name: str) -> None:
    with pytest.raises(InputError, match="not lines of text: convert it, or give its lines by standard input"):
        check_name(name)


@pytest.mark.parametrize("name", ["a.jsonl", "a.TXT.GZ", "a.parquet", "a.zst"])
def test_names_of_corpora(name: str) -> None:
    with pytest.raises(InputError, match="tx-translate-corpus reads it"):
        check_name(name)
