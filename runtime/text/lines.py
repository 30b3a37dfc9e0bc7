r"""Lines of text from a stream, in windows, or from a whole file.

A window contains all lines that have arrived: one line when a person types, many when a file is piped in. Lines end at
"\n" and nowhere else, so that line numbers agree with those of other tools. `windows` yields lines of any bytes and any
length; `text_windows` checks them.
"""

import codecs
import errno
import os
import select
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from txport.runtime.errors import InputError, TxportError
from txport.runtime.files import io_failure
from txport.runtime.text.plain import PEEK, check_content

_CHUNK = 1 << 16
# Maximum number of lines of a window. A window is translated together, so it must have enough lines to sort them by
# length and to keep a batch full.
WINDOW_LINES = 1024
# Number of lines of the first window if the first results are needed soon; the next windows double.
FIRST_LINES = 32
_WINDOW_BYTES = 1 << 20
# Maximum length of a line. Longer lines are not sentences and would waste memory and time.
MAX_LINE_BYTES = 1 << 20
# Ways to treat a line that is not UTF-8 or too long.
ON_ERROR = ("strict", "replace", "skip")


def windows(descriptor: int, maximum: int = WINDOW_LINES, first: int = WINDOW_LINES) -> Iterator[list[bytes]]:
    """Read a file descriptor to its end, and yield lists of whole lines without line ends, as soon as they arrive.

    Args:
        descriptor: descriptor of a file, pipe or terminal, open for reading.
        maximum: maximum number of lines of a window. A window of long lines has fewer.
        first: maximum number of lines of the first window. It doubles from window to window up to `maximum`.
    """
    lines: list[bytes] = []
    rest: list[bytes] = []  # pieces of a line whose end has not been read
    size = 0
    limit = min(first, maximum)
    while True:
        # A person who types waits for the translation of each line: do not wait for more input than has arrived.
        if lines and (len(lines) >= limit or size >= _WINDOW_BYTES or not _ready(descriptor)):
            yield lines[:limit]
            lines = lines[limit:]
            size = sum(map(len, lines))
            limit = min(2 * limit, maximum)
            continue
        chunk = _read(descriptor)
        if not chunk:
            break
        size += len(chunk)
        start, *more = chunk.split(b"\n")
        rest.append(start)
        if more:
            lines += [b"".join(rest), *more[:-1]]
            rest = [more[-1]]
    if last := b"".join(rest):
        lines.append(last)
    while lines:
        yield lines[:limit]
        lines = lines[limit:]
        limit = min(2 * limit, maximum)


def check_file(path: Path) -> None:
    """Check that a file can be read, without opening it, because a named pipe can be opened only once.

    Raises:
        InputError: the file cannot be read.
    """
    try:
        directory = stat.S_ISDIR(path.stat().st_mode)
        if not os.access(path, os.R_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as error:
        raise io_failure(error, f"{path} cannot be read: {error.strerror}") from error
    if directory:
        raise InputError(f"{path} is a directory: give a text file")


@contextmanager
def open_lines(path: Path, maximum: int = WINDOW_LINES, first: int = WINDOW_LINES) -> Iterator[Iterator[list[bytes]]]:
    """Open a file and yield an iterator over its windows; see `windows` and `open_text`."""
    with open_text(path) as descriptor:
        yield windows(descriptor, maximum, first)


@contextmanager
def open_text(path: Path) -> Iterator[int]:
    """Open a file for reading and yield its descriptor.

    Raises:
        InputError: the file cannot be read, or it is compressed or binary.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError as error:
        raise io_failure(error, f"{path} cannot be read: {error.strerror}") from error
    try:
        check_file(path)
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            check_content(str(path), os.pread(descriptor, PEEK, 0))
        yield descriptor
    finally:
        os.close(descriptor)


def as_line(text: str) -> bytes:
    """Return a translation as one line of output. Line breaks become spaces, so that later lines keep their numbers."""
    return text.replace("\n", " ").encode() + b"\n"


def write_all(descriptor: int, data: bytes) -> None:
    """Write bytes at once, without a buffer.

    Raises:
        BrokenPipeError: the reader closed the pipe.
        InputError: the output cannot be written.
        ResourceError: the disk is full or fails.
    """
    rest = memoryview(data)
    while rest:
        try:
            rest = rest[os.write(descriptor, rest) :]
        except BrokenPipeError:
            raise
        except OSError as error:
            raise io_failure(error, f"the output cannot be written: {error.strerror}") from error


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, _CHUNK)
    except OSError as error:
        raise io_failure(error, f"the input cannot be read: {error.strerror}") from error


def _ready(descriptor: int) -> bool:
    """Return whether a read would return at once. A regular file is always ready."""
    poll = select.poll()  # `select.select` refuses descriptors from 1024 on
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(0))


def text_windows(raw: Iterable[list[bytes]], errors: str = "strict", what: str = "line") -> Iterator[list[str]]:
    """Yield the same windows as text, with one text for each line, without a byte order mark before the first.

    Args:
        raw: windows of bytes.
        errors: treatment of a line that is not UTF-8. "strict" yields the lines before it and then raises an error;
            "replace" replaces wrong bytes by U+FFFD, as Unicode recommends (chapter 3.9); "skip" makes the line empty.
            A line of more than `MAX_LINE_BYTES` raises an error, except with "skip".
        what: name of a line in messages, before its number.

    Raises:
        InputError: a line is not UTF-8 or too long, with its number, counted from 1, in the message; or `errors` has
            another value.
    """
    if errors not in ON_ERROR:
        raise InputError(f"errors {errors!r} is not known: use {', '.join(ON_ERROR)}")
    number = 1
    for window in raw:
        texts: list[str] = []
        if number == 1:
            window = [line.removeprefix(codecs.BOM_UTF8) for line in window[:1]] + window[1:]
        try:
            for line in window:
                location = f"{what} {number + len(texts)}"
                if len(line) > MAX_LINE_BYTES and errors != "skip":
                    raise _too_long(line, location, InputError, ", or choose --errors skip")
                texts.append(_line_text(b"" if len(line) > MAX_LINE_BYTES else line, errors, location))
        except InputError:
            if texts:
                yield texts
            raise
        yield texts
        number += len(window)


def whole_text(descriptor: int, errors: str = "strict", what: str = "line") -> str:
    """Return all text of a file descriptor with line breaks and byte order mark; arguments as for `text_windows`."""
    lines = b"".join(iter(partial(_read, descriptor), b"")).split(b"\n")
    return "\n".join(_line_text(line, errors, f"{what} {number}") for number, line in enumerate(lines, 1))


def _line_text(line: bytes, errors: str, location: str) -> str:
    if errors == "replace":
        return line.decode("utf-8", "replace")
    try:
        return _text(line, location, InputError)
    except InputError as error:
        if errors == "skip":
            return ""
        raise InputError(f"{error}, or choose --errors replace or skip") from None


def read_lines(file: Path, error: type[TxportError] = InputError) -> list[str]:
    r"""Return all lines of a UTF-8 file, without "\n" or "\r\n"; a byte order mark at its start is dropped.

    Args:
        file: the file; an empty file has no lines.
        error: class of the error if the file cannot be read or is not UTF-8; its message contains the line number.
    """
    try:
        lines = file.read_bytes().removeprefix(codecs.BOM_UTF8).split(b"\n")
    except OSError as fault:
        raise error(f"{file} cannot be read: {fault.strerror}") from None
    if not lines[-1]:
        lines.pop()
    for n, line in enumerate(lines, 1):
        if len(line) > MAX_LINE_BYTES:
            raise _too_long(line, f"{file}, line {n}", error)
    return [_text(line.removesuffix(b"\r"), f"{file}, line {n}", error) for n, line in enumerate(lines, 1)]


def _too_long(line: bytes, location: str, error: type[TxportError], remedy: str = "") -> TxportError:
    maximum = f"{MAX_LINE_BYTES:,}"
    return error(f"{location} has {len(line):,} bytes, more than {maximum}: break it into sentences{remedy}")


def _text(line: bytes, location: str, error: type[TxportError]) -> str:
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError as fault:
        byte = f"byte {fault.start + 1} is 0x{line[fault.start]:02x}"
        raise error(f"{location} is not UTF-8 ({byte}): convert the text, for example with iconv -t utf-8") from None
