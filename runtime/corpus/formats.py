"""Formats of corpora, and compression: known by the endings of file names."""

import gzip
import io
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
COMPRESSIONS = ("none", "gz", "zst")
_ENDINGS = {".jsonl": JSONL, ".ndjson": JSONL, ".parquet": PARQUET, ".txt": TEXT}
_ZSTD_LEVEL = 3
# Packed bytes that are unpacked at once: of a very dull file they become 10,000 times as many.
_PIECE = 1 << 11


class Form(NamedTuple):
    """Format and compression of a file, and its name without the endings that say so."""

    format: str
    compression: str
    name: str

    @property
    def ending(self) -> str:
        """Ending of a file of this form."""
        ending = {TEXT: ".txt", JSONL: ".jsonl", PARQUET: ".parquet"}[self.format]
        return ending if self.compression == "none" else f"{ending}.{self.compression}"


def form_of(path: str, format: str | None = None) -> Form:
    """The form of a file by its name; `format` if that says nothing, or something else.

    Raises:
        InputError: it is a Parquet file that was compressed as a whole.
    """
    name, compression = PurePosixPath(path).name, "none"
    for ending in COMPRESSIONS[1:]:
        if name.endswith(f".{ending}"):
            name, compression = name.removesuffix(f".{ending}"), ending
    ending = PurePosixPath(name).suffix
    format = format or _ENDINGS.get(ending, TEXT)
    if format == PARQUET and compression != "none":
        raise InputError(f"{path} is Parquet in .{compression}: unpack it, Parquet compresses its columns itself")
    return Form(format, compression, name.removesuffix(ending) if ending in _ENDINGS else name)


@contextmanager
def unpacked(file: BinaryIO, compression: str) -> Iterator[BinaryIO]:
    """The content of a compressed file, to read."""
    if compression == "gz":
        with gzip.GzipFile(fileobj=file) as plain:
            yield cast(BinaryIO, plain)
    elif compression == "zst":
        yield io.BufferedReader(_Frames(io.BufferedReader(cast(io.RawIOBase, file), 1 << 20)), 1 << 20)
    else:
        yield file


@contextmanager
def packed(file: Any, compression: str) -> Iterator[Any]:
    """Compresses what is written; the same bytes for the same content."""
    if compression == "gz":
        with gzip.GzipFile(filename="", mode="wb", fileobj=file, mtime=0) as plain:
            yield plain
    elif compression == "zst":
        with _zstandard().ZstdCompressor(_ZSTD_LEVEL, write_checksum=True).stream_writer(file, closefd=False) as plain:
            yield plain
    else:
        yield file


class _Frames(io.RawIOBase):
    """Content of frames of zstd that follow each other, as of pzstd and of `cat a.zst b.zst`.

    The library's own reader takes a file that ends too early for a whole one.
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
                self._packed, self._frame = self._frame.unused_data, None
        count = min(len(buffer), len(self._plain))
        buffer[:count], self._plain = self._plain[:count], self._plain[count:]
        return count


def damage(error: BaseException) -> bool:
    """Whether an exception says that a compressed file is damaged or ends too early."""
    if isinstance(error, (EOFError, gzip.BadGzipFile)) or type(error).__module__ == "zlib":
        return True
    return type(error).__name__ == "ZstdError"


def _zstandard() -> Any:
    with needs("corpus", "a file is compressed by zstd"):
        import zstandard
    return zstandard
