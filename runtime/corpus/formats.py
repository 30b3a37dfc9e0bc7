"""Formats and compression of corpora. File names determine them, and the first bytes must agree."""

import bz2
import gzip
import io
import lzma
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import PurePosixPath
from typing import Any, BinaryIO, NamedTuple, cast

from txport.runtime.errors import InputError
from txport.runtime.libraries import needs
from txport.runtime.text import plain

TEXT = "text"
JSONL = "jsonl"
PARQUET = "parquet"
FORMATS = (TEXT, JSONL, PARQUET)
COMPRESSIONS = ("none", *plain.COMPRESSIONS)
_ENDINGS = {".jsonl": JSONL, ".ndjson": JSONL, ".parquet": PARQUET, ".txt": TEXT}
_STANDARD: dict[str, Any] = {"bz2": bz2, "xz": lzma}
_ZSTD_LEVEL = 3
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
    if format is None and ending in plain.FOREIGN:
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
    packed = io.BufferedReader(cast(io.RawIOBase, file), plain.PEEK)
    first = packed.peek(plain.PEEK)
    compression = plain.compression_of(first)
    if compression not in (None, form.compression):
        raise InputError(f"{path} is packed by {compression}, which its name does not end with: rename it")
    with unpacked(cast(BinaryIO, packed), form.compression) as content:
        if form.format == PARQUET:
            yield content
            return
        reader = io.BufferedReader(cast(io.RawIOBase, content), plain.PEEK)
        first = reader.peek(plain.PEEK)[: plain.PEEK]
        if kind := plain.binary_kind(first):
            raise InputError(f"{path} is {kind}, not {form.format}: convert it, or rename it")
        yield cast(BinaryIO, reader)


@contextmanager
def unpacked(file: BinaryIO, compression: str) -> Iterator[BinaryIO]:
    """Yield a reader of the content of a compressed file."""
    if module := _STANDARD.get(compression):
        with module.open(file, "rb") as content:
            yield content
    elif compression == "gz":
        with gzip.GzipFile(fileobj=file) as content:
            yield cast(BinaryIO, content)
    elif compression == "zst":
        yield io.BufferedReader(_Frames(io.BufferedReader(cast(io.RawIOBase, file), 1 << 20)), 1 << 20)
    else:
        yield file


@contextmanager
def packed(file: Any, compression: str) -> Iterator[Any]:
    """Yield a writer that compresses. The same content gives the same bytes."""
    if module := _STANDARD.get(compression):
        with module.open(file, "wb") as content:
            yield content
    elif compression == "gz":
        with gzip.GzipFile(filename="", mode="wb", fileobj=file, mtime=0) as content:
            yield content
    elif compression == "zst":
        with (
            _zstandard().ZstdCompressor(_ZSTD_LEVEL, write_checksum=True).stream_writer(file, closefd=False) as content
        ):
            yield content
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
