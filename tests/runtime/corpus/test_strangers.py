"""Corpora and manifests of parts that somebody else made."""

from pathlib import Path
from typing import Any

import pytest
from txport.runtime.corpus.locations import check_remote, list_files
from txport.runtime.corpus.parts import FOLDER, read
from txport.runtime.errors import InputError


def test_a_small_parquet_file_takes_little_memory(tmp_path: Path) -> None:
    """300 bytes that are a thousand rows of one text of a mebibyte, which Arrow would write out a thousand times."""
    pyarrow = pytest.importorskip("pyarrow", reason="needs pyarrow: pip install 'txport[corpus]'")
    parquet = pytest.importorskip("pyarrow.parquet", reason="needs pyarrow: pip install 'txport[corpus]'")
    from txport.runtime.corpus.parquet import ParquetSource

    text = pyarrow.DictionaryArray.from_arrays(pyarrow.array([0] * 1000), pyarrow.array(["x" * (1 << 20)]))
    file = tmp_path / "x.parquet"
    table = pyarrow.table({"text": text})
    parquet.write_table(table, file, compression="zstd", store_schema=False)
    assert file.stat().st_size < 10_000
    before = pyarrow.total_allocated_bytes()
    with file.open("rb") as opened:
        source = ParquetSource(opened, "x.parquet", "text", None, [])
        rows = most = 0
        while taken := source.take(8192).num_rows:
            rows += taken
            most = max(most, pyarrow.total_allocated_bytes() - before)
    assert rows == 1000 and most < 300 << 20, f"{most >> 20} MiB"


def test_small_rows_come_in_large_windows(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow", reason="needs pyarrow: pip install 'txport[corpus]'")
    parquet = pytest.importorskip("pyarrow.parquet", reason="needs pyarrow: pip install 'txport[corpus]'")
    from txport.runtime.corpus.parquet import ParquetSource

    file = tmp_path / "x.parquet"
    parquet.write_table(pyarrow.table({"text": [f"row {i}" for i in range(20_000)]}), file)
    with file.open("rb") as opened:
        source = ParquetSource(opened, "x.parquet", "text", None, [])
        taken: list[Any] = []
        while (table := source.take(5000)).num_rows:
            taken.append(table)
    assert [each.num_rows for each in taken] == [5000] * 4
    assert [text for each in taken for text in each.column("text").to_pylist()] == [f"row {i}" for i in range(20_000)]


@pytest.mark.parametrize("url", ["simplecache::file:///etc/passwd", "zip://x::file:///tmp/a.zip"])
def test_chained_urls_are_refused(url: str) -> None:
    pytest.importorskip("fsspec", reason="needs fsspec: pip install 'txport[corpus]'")
    with pytest.raises(InputError, match="chains several URLs"):
        list_files([url])


def test_recipes_name_remote_stores_only() -> None:
    for url in ("s3://bucket/x.jsonl", "hf://datasets/a/b/x.parquet"):
        check_remote(url)
    for url in ("file:///etc/passwd", "http://169.254.169.254/latest", "ftp://10.0.0.1/x", "memory://x", "S3x://a"):
        with pytest.raises(InputError, match="is not of one of the stores s3, gs"):
            check_remote(url)


class Stored:
    """A store with one manifest."""

    def __init__(self, data: bytes) -> None:
        self.data = data

    def read(self, name: str) -> bytes:
        assert name == f"{FOLDER}/part.jsonl.json"
        return self.data

    def path(self, name: str) -> str:
        return name


@pytest.mark.parametrize("data", [b"[" * 100_000, b'{"version": 1, "version": 1}', b'{"version": NaN}', b"\xff", b"{"])
def test_manifests_that_are_no_strict_json_do_not_count(data: bytes) -> None:
    store: Any = Stored(data)
    assert read(store, "part.jsonl") is None
