"""Formats and compression of corpora. File names determine them, and the first bytes must agree."""

import bz2
import gzip
import io
import lzma
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import PurePosixPath
from typing import Any, BinaryIO, NamedTuple, cast

from txport.runtime.errors import InputError
from txport.runtime.libraries import needs

TEXT = "text"
JSONL = "jsonl"
PARQUET = "parquet"
FORMATS = (TEXT, JSONL, PARQUET)
COMPRESSIONS = ("none", "gz", "zst", "bz2", "xz")
_ENDINGS = {".jsonl": JSONL, ".ndjson": JSONL, ".parquet": PARQUET, ".txt": TEXT}
# Endings of other formats, which cannot be read line by line.
_FOREIGN = frozenset(
    ".json .csv .tsv .xml .tmx .xlf .xliff .html .htm .srt .vtt .po .yaml .yml .arrow .feather .avro .orc .pdf .docx "
    ".xlsx .zip .tar .tgz .7z .rar .lz4 .br .z .lzma .sqlite .npy .npz .pkl .pt".split()
)
# First bytes of each compression, and of other files that are not text.
_MAGIC = {"gz": rb"\x1f\x8b", "zst": rb"\x28\xb5\x2f\xfd", "bz2": rb"BZh[1-9]1AY&SY", "xz": rb"\xfd7zXZ\x00"}
_BINARY = {
    b"PAR1\x15": "Parquet", b"PK\x03\x04": "a zip archive", b"%PDF-": "PDF", b"ARROW1\x00": "Arrow",
    b"Obj\x01": "Avro", b"7z\xbc\xaf": "a 7z archive", b"Rar!\x1a": "a RAR archive", b"\x04\x22\x4d\x18": "lz4",
    b"\xff\xfe": "UTF-16", b"\xfe\xff": "UTF-16", b"SQLite format 3\x00": "SQLite",
}  # fmt: skip
_STANDARD: dict[str, Any] = {"bz2": bz2, "xz": lzma}
_ZSTD_LEVEL = 3
# First bytes of each kind of file.
_PEEK = 1 << 13
# Compressed bytes to unpack at once. Repetitive files can become 10,000 times as large.
_PIECE = 1 << 11


class Form(NamedTuple):
    """Format and compression of a file, and its name without their suffixes."""

    format: str
    compression: str
    name: str

    @property
    def ending(self) -> str:
        """Ending of a file of this form."""
        ending = {TEXT: ".txt", JSONL: ".jsonl", PARQUET: ".parquet"}[self.format]
        if self.compression == "none":
            return ending
        return f"{ending}.{self.compression}"


def form_of(path: str, format: str | None = None) -> Form:
    """Return the form of a file by its name, in any letter case; `format` overrides that of the name.

    Raises:
        InputError: it is a compressed Parquet file, or its name is that of an unsupported format.
    """
    name = PurePosixPath(path).name
    compression = "none"
    for ending in COMPRESSIONS[1:]:
        if name.lower().endswith(f".{ending}"):
            name = name[: -len(ending) - 1]
            compression = ending
            break
    suffix = PurePosixPath(name).suffix
    ending = suffix.lower()
    if format is None and ending in _FOREIGN:
        raise InputError(
            f"{path} is {ending}, which is not read: convert it to .txt, .jsonl or .parquet, or name its format "
            "(--from text for a sentence a line, --from jsonl for an object a line)"
        )
    format = format or _ENDINGS.get(ending, TEXT)
    if format == PARQUET and compression != "none":
        raise InputError(f"{path} is Parquet in .{compression}: unpack it, Parquet compresses its columns itself")
    return Form(format, compression, name.removesuffix(suffix) if ending in _ENDINGS else name)


@contextmanager
def reporting_damage(file: BinaryIO, path: str, form: Form) -> Iterator[BinaryIO]:
    """Yield the unpacked content of a file after checking that its first bytes match its form.

    Raises:
        InputError: the compression does not match the file name, or its content is neither text nor Parquet.
    """
    packed = io.BufferedReader(cast(io.RawIOBase, file), _PEEK)
    first = packed.peek(_PEEK)
    for compression, magic in _MAGIC.items():
        if re.match(magic, first, re.DOTALL) and compression != form.compression:
            raise InputError(f"{path} is packed by {compression}, which its name does not end with: rename it")
    with unpacked(cast(BinaryIO, packed), form.compression) as plain:
        if form.format == PARQUET:
            yield plain
            return
        reader = io.BufferedReader(cast(io.RawIOBase, plain), _PEEK)
        first = reader.peek(_PEEK)[:_PEEK]
        kind = next((kind for magic, kind in _BINARY.items() if first.startswith(magic)), None)
        if kind or first.count(b"\0") > len(first) // 10:
            raise InputError(f"{path} is {kind or 'a binary file'}, not {form.format}: convert it, or rename it")
        yield cast(BinaryIO, reader)


@contextmanager
def unpacked(file: BinaryIO, compression: str) -> Iterator[BinaryIO]:
    """Yield a reader of the content of a compressed file."""
    if module := _STANDARD.get(compression):
        with module.open(file, "rb") as plain:
            yield plain
    elif compression == "gz":
        with gzip.GzipFile(fileobj=file) as plain:
            yield cast(BinaryIO, plain)
    elif compression == "zst":
        yield io.BufferedReader(_Frames(io.BufferedReader(cast(io.RawIOBase, file), 1 << 20)), 1 << 20)
    else:
        yield file


@contextmanager
def packed(file: Any, compression: str) -> Iterator[Any]:
    """Yield a writer that compresses. The same content gives the same bytes."""
    if module := _STANDARD.get(compression):
        with module.open(file, "wb") as plain:
            yield plain
    elif compression == "gz":
        with gzip.GzipFile(filename="", mode="wb", fileobj=file, mtime=0) as plain:
            yield plain
    elif compression == "zst":
        with _zstandard().ZstdCompressor(_ZSTD_LEVEL, write_checksum=True).stream_writer(file, closefd=False) as plain:
            yield plain
    else:
        yield file


class _Frames(io.RawIOBase):
    """Content of consecutive zstd frames, as pzstd and `cat a.zst b.zst` write them.

    The library's own reader accepts truncated files.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file, self._decompressor = file, _zstandard().ZstdDecompressor()
        self._frame: Any = None
        self._packed = self._plain = b""

    def readable(self) -> bool:
        """Yes."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Read some; 0 at the end.

        Raises:
            EOFError: the file ends inside a frame.
        """
        while not self._plain:
            if not self._packed and not (packed := self._file.read(_PIECE)):
                if self._frame is not None:
                    raise EOFError("it ends inside a frame of zstd")
                return 0
            self._packed = self._packed or packed
            self._frame = self._frame or self._decompressor.decompressobj()
            self._plain = self._frame.decompress(self._packed)
            self._packed = b""
            if self._frame.eof:
                self._packed = self._frame.unused_data
                self._frame = None
        count = min(len(buffer), len(self._plain))
        buffer[:count], self._plain = self._plain[:count], self._plain[count:]
        return count


def damage(error: BaseException) -> bool:
    """Return whether an exception means that a compressed file is damaged or truncated."""
    if isinstance(error, (EOFError, gzip.BadGzipFile, lzma.LZMAError)) or type(error).__module__ == "zlib":
        return True
    return type(error).__name__ == "ZstdError" or (isinstance(error, OSError) and error.errno is None)  # of bz2


def _zstandard() -> Any:
    with needs("corpus", "a file is compressed by zstd"):
        import zstandard
    return zstandard
