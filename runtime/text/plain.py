"""Files that are not lines of text, recognised by their names and first bytes. The C++ runtime recognises the same."""

import re
from pathlib import PurePath

from txport.runtime.errors import InputError

# First bytes of each compression, and of other files that are not text.
COMPRESSIONS = {"gz": rb"\x1f\x8b", "zst": rb"\x28\xb5\x2f\xfd", "bz2": rb"BZh[1-9]1AY&SY", "xz": rb"\xfd7zXZ\x00"}
_BINARY = {
    b"PAR1\x15": "Parquet", b"PK\x03\x04": "a zip archive", b"%PDF-": "PDF", b"ARROW1\x00": "Arrow",
    b"Obj\x01": "Avro", b"7z\xbc\xaf": "a 7z archive", b"Rar!\x1a": "a RAR archive", b"\x04\x22\x4d\x18": "lz4",
    b"\xff\xfe": "UTF-16", b"\xfe\xff": "UTF-16", b"SQLite format 3\x00": "SQLite",
}  # fmt: skip
# Endings of corpora that `tx-translate-corpus` reads, and of formats that cannot be read line by line.
_CORPORA = frozenset([".jsonl", ".ndjson", ".parquet", *(f".{compression}" for compression in COMPRESSIONS)])
FOREIGN = frozenset(
    ".json .csv .tsv .xml .tmx .xlf .xliff .html .htm .srt .vtt .po .yaml .yml .arrow .feather .avro .orc .pdf .docx "
    ".xlsx .zip .tar .tgz .7z .rar .lz4 .br .z .lzma .sqlite .npy .npz .pkl .pt".split()
)
# Number of first bytes to look at.
PEEK = 1 << 13


def compression_of(first: bytes) -> str | None:
    """Return the compression of a file with these first bytes; None if it is not compressed."""
    return next((name for name, magic in COMPRESSIONS.items() if re.match(magic, first, re.DOTALL)), None)


def binary_kind(first: bytes) -> str | None:
    """Return what a file with these first bytes is; None for text. One byte of ten is NUL in no text."""
    kind = next((kind for magic, kind in _BINARY.items() if first.startswith(magic)), None)
    if kind is None and first.count(b"\0") > len(first) // 10:
        return "a binary file"
    return kind


def check_name(path: str) -> None:
    """Check that the ending of a file is not that of another format than lines of text, in any letter case.

    Raises:
        InputError: it is.
    """
    ending = PurePath(path).suffix.lower()
    if ending in _CORPORA:
        raise InputError(
            f"{path} is {ending}, not lines of text: tx-translate-corpus reads it, or give its lines by standard input"
        )
    if ending in FOREIGN:
        raise InputError(f"{path} is {ending}, not lines of text: convert it, or give its lines by standard input")


def check_content(path: str, first: bytes) -> None:
    """Check that the first bytes of a file may be those of a text.

    Raises:
        InputError: they are those of another format.
    """
    if compression := compression_of(first):
        raise InputError(f"{path} is packed by {compression}, not lines of text: unpack it")
    if kind := binary_kind(first):
        raise InputError(f"{path} is {kind}, not lines of text: convert it")
