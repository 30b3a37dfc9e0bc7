"""Files that are not lines of text, written by other libraries, and what a message calls each."""

import bz2
import gzip
import io
import lzma
import sqlite3
import zipfile
from pathlib import Path


def _zip() -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("one.txt", "one")
    return file.getvalue()


def _sqlite(folder: Path) -> bytes:
    file = folder / "database"
    connection = sqlite3.connect(file)
    connection.execute("CREATE TABLE one (two TEXT)")
    connection.commit()
    connection.close()
    return file.read_bytes()


def contents(folder: Path) -> dict[str, bytes]:
    """Return the bytes of a file of each format, by the words of the refusal. `folder` is for temporary files."""
    text = b"one\ntwo\n"
    return {
        "packed by gz": gzip.compress(text),
        "packed by bz2": bz2.compress(text),
        "packed by xz": lzma.compress(text),
        "packed by zst": b"\x28\xb5\x2f\xfd\x20\x08\x41\x00\x00" + text,  # RFC 8878: a frame of one raw block
        "a zip archive": _zip(),
        "SQLite": _sqlite(folder),
        "UTF-16": text.decode().encode("utf-16"),
        "PDF": b"%PDF-1.7\n",
        "a binary file": bytes(range(8)) + bytes(8),
    }
