"""Bundle in one file: an uncompressed zip archive (PKWARE APPNOTE 6.3) whose members are mapped, not unpacked.

The same files always give the same archive: `write_archive` defines each byte, and readers accept nothing else. Members
are in the order of their names. Each starts at a page, so that tensors keep the alignment that they have in the file of
weights. Any program that reads zip archives opens it. The C++ runtime reads it by the same rules.
"""

import hashlib
import mmap
import os
import shutil
import struct
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, NoReturn, TypeAlias

from txport.runtime.bundle.kinds import check_kind
from txport.runtime.errors import BundleError
from txport.runtime.files import sha256

PAGE = 4096
SUFFIX = ".txb"  # tx-serve removes it from a model's name; nothing else depends on it
_LOCAL = 30  # bytes of its header before the name
_CENTRAL = struct.Struct("<4s6H3I5H2I")
_END = struct.Struct("<4s4H2IH")
_ZIP64_END = struct.Struct("<4sQ2H2I4Q4sIQI")  # of zip64: the record, and its locator
# A 32-bit field with this value is stored in the first extra field, in 64 bits.
_IN_ZIP64 = 0xFFFFFFFF
# extra fields; the second is that of Android's zipalign
_ZIP64 = 1
_ALIGNMENT = 0xD935
_UTF8 = 0x0800
# 1980-01-01
_MIDNIGHT = 0
_FIRST_DAY = 0x21
_UNIX = 3 << 8
_UNIX_FILE = 0o100644 << 16
_LARGEST_DIRECTORY = 16 << 20
_CHUNK = 1 << 20


@dataclass(frozen=True)
class _Entry:
    """Entry of a member in the directory of an archive.

    Attributes:
        name: path in the bundle, in UTF-8.
        size: bytes.
        crc: CRC-32, for other programs. The hashes of the bundle are stronger.
    """

    name: bytes
    size: int
    crc: int

    def local(self, start: int) -> bytes:
        """Return the header before the data, from byte `start` of the archive to the next page."""
        zip64 = _zip64_extra(self.size, self.size)
        padding = -(start + _LOCAL + len(self.name) + len(zip64) + 6) % PAGE
        extra = zip64 + struct.pack("<3H", _ALIGNMENT, 2 + padding, PAGE) + bytes(padding)
        return b"PK\3\4" + self._common(zip64, extra) + self.name + extra

    def central(self, start: int) -> bytes:
        """Return its place in the directory; `start` is that of the local header."""
        extra = _zip64_extra(self.size, self.size, start)
        made_by = struct.pack("<H", _UNIX | _version(extra))
        rest = struct.pack("<3H2I", 0, 0, 0, _UNIX_FILE, min(start, _IN_ZIP64))
        return b"PK\1\2" + made_by + self._common(extra, extra) + rest + self.name + extra

    def _common(self, zip64: bytes, extra: bytes) -> bytes:
        """Return the fields that both kinds of header contain."""
        size = min(self.size, _IN_ZIP64)
        values = _version(zip64), _UTF8, 0, _MIDNIGHT, _FIRST_DAY, self.crc, size, size
        return struct.pack("<5H3I2H", *values, len(self.name), len(extra))


def _zip64_extra(*values: int) -> bytes:
    """Return the extra field for values of more than 32 bits; empty if there are none."""
    large_values = [value for value in values if value >= _IN_ZIP64]
    if large_values:
        return struct.pack(f"<2H{len(large_values)}Q", _ZIP64, 8 * len(large_values), *large_values)
    return b""


def _version(zip64: bytes) -> int:
    """Return the version of the format that a program needs to read a header with this extra field."""
    if zip64:
        return 45
    return 20


def _tail(central: bytes, count: int, start: int) -> bytes:
    """Return the bytes after the last member: the directory, which begins at byte `start`, and the end record."""
    zip64 = b""
    if start >= _IN_ZIP64:
        counts = count, count, len(central), start
        record = b"PK\6\6", _ZIP64_END.size - 20 - 12, _UNIX | 45, 45, 0, 0, *counts
        zip64 = _ZIP64_END.pack(*record, b"PK\6\7", 0, start + len(central), 1)
    return central + zip64 + _END.pack(b"PK\5\6", 0, 0, count, count, len(central), min(start, _IN_ZIP64), 0)


def write_archive(file: BinaryIO, directory: Path, names: Sequence[str]) -> None:
    """Write the archive of some files of a directory; the same files give the same bytes.

    Raises:
        OSError: a file cannot be read, or the archive not written.
    """
    central = b""
    offset = 0
    for name in sorted(names, key=str.encode):
        entry = _entry(directory, name)
        header = entry.local(offset)
        central += entry.central(offset)
        offset += len(header) + entry.size
        file.write(header)
        with (directory / name).open("rb") as member:
            shutil.copyfileobj(member, file, _CHUNK)
    file.write(_tail(central, len(names), offset))


def _entry(directory: Path, name: str) -> _Entry:
    size = crc = 0
    with (directory / name).open("rb") as member:
        while chunk := member.read(_CHUNK):
            size = size + len(chunk)
            crc = zlib.crc32(chunk, crc)
    return _Entry(name.encode(), size, crc)


class Archive:
    """A bundle in one file, or in memory.

    Args:
        data: the bytes of the archive, which must not change.
        name: of the archive, in messages.
        file: the mapped file; None for a bundle in memory.

    Raises:
        BundleError: the archive differs from the format of `write_archive`.
    """

    def __init__(self, data: mmap.mmap | memoryview, name: str, file: "_File | None" = None) -> None:
        self._data = memoryview(data)
        self._name = name
        self._file = file
        self._spans = dict(self._read())

    @classmethod
    def open(cls, path: Path) -> "Archive":
        """Map a file.

        Raises:
            BundleError: the file cannot be read, or is not an archive of `write_archive`.
        """
        try:
            with path.open("rb") as file:
                status = os.fstat(file.fileno())
                data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except OSError as error:
            raise BundleError(f"{path} cannot be read: {error.strerror}") from error
        except ValueError:  # it is empty
            raise BundleError(f"{path} is not a bundle: give a directory of tx-export or a file of tx-pack") from None
        return cls(data, str(path), _File(path.resolve(), status))

    def __truediv__(self, name: str) -> "Member":
        return Member(self, name)

    def __str__(self) -> str:
        return self._name

    def view(self, name: str) -> memoryview:
        """Return the bytes of a member without copying them.

        Raises:
            FileNotFoundError: it is not there.
        """
        start, size = self.span(name)
        return self._data[start : start + size]

    def has(self, name: str) -> bool:
        """Return whether there is such a member."""
        return name in self._spans

    def span(self, name: str) -> tuple[int, int]:
        """Start and size of the bytes of a member; raises FileNotFoundError."""
        if not self.has(name):
            raise FileNotFoundError(f"{self}/{name}")
        return self._spans[name]

    @property
    def path(self) -> Path | None:
        """Path of the mapped file; None for a bundle in memory.

        Raises:
            BundleError: another file is there by now.
        """
        if self._file is not None and not self._file.is_unchanged():
            raise BundleError(f"{self} was replaced or changed since it was opened: open it again")
        if self._file is None:
            return None
        return self._file.path

    @contextmanager
    def mapped(self, name: str) -> Iterator[memoryview]:
        """Yield the bytes of a member in a separate mapping, so that its pages are released afterwards.

        Raises:
            BundleError: another file is there by now.
        """
        start, size = self.span(name)
        if (path := self.path) is None:
            yield self.view(name)
            return
        padding = start % mmap.ALLOCATIONGRANULARITY
        with path.open("rb") as file:
            mapping = mmap.mmap(file.fileno(), padding + size, access=mmap.ACCESS_READ, offset=start - padding)
        with mapping, memoryview(mapping) as mapped_bytes, mapped_bytes[padding:] as view:
            yield view

    def _read(self) -> Iterator[tuple[str, tuple[int, int]]]:
        """Check the archive except the members' bytes, and return the span of each member by name."""
        entries = self._entries()
        parts = list[bytes]()
        offset = 0
        for entry in entries:
            header = entry.local(offset)
            if self._data[offset : offset + len(header)] != header:
                self._refuse("a member's header differs from the directory")
            parts.append(entry.central(offset))
            offset += len(header)
            if entry.size > len(self._data) - offset:
                self._refuse("a member is larger than the archive")
            yield entry.name.decode(), (offset, entry.size)
            offset += entry.size
        if self._data[offset:] != _tail(b"".join(parts), len(entries), offset):
            self._refuse("its directory does not fit its members")

    def _entries(self) -> list[_Entry]:
        """Return names, sizes and checksums of the directory at the end of the archive. Other fields are ignored."""
        end = len(self._data) - _END.size
        signature, *_, count, size, start, _ = _END.unpack(self._data[end:] if end >= 0 else bytes(_END.size))
        if signature != b"PK\5\6":
            raise BundleError(f"{self} is not a bundle: give a directory of tx-export or a file of tx-pack")
        if start == _IN_ZIP64 and end >= _ZIP64_END.size:
            start = _ZIP64_END.unpack(self._data[end - _ZIP64_END.size : end])[9]
        if size > _LARGEST_DIRECTORY or start + size > end:
            self._refuse("its directory is outside the file")
        entries = list[_Entry]()
        offset = start
        for _ in range(count):
            entry, offset = self._entry(offset, start + size)
            if entries and entries[-1].name >= entry.name:
                self._refuse("its names are not in ascending order")
            entries.append(entry)
        return entries

    def _entry(self, offset: int, end: int) -> tuple[_Entry, int]:
        """Return the entry at a byte of the directory, which has an end, and where the next one is."""
        if offset + _CENTRAL.size > end:
            self._refuse("its directory is too short")
        fields = _CENTRAL.unpack_from(self._data, offset)
        crc = fields[7]
        size = fields[9]
        name_length, extra_length = fields[10:12]
        extra = offset + _CENTRAL.size + name_length
        if extra + extra_length > end:
            self._refuse("its directory is too short")
        name = bytes(self._data[offset + _CENTRAL.size : extra])
        if size == _IN_ZIP64 and extra_length >= 12:
            size = struct.unpack_from("<Q", self._data, extra + 4)[0]
        try:
            is_plain = is_inside(name.decode())
        except UnicodeDecodeError:
            is_plain = False
        if not is_plain:
            self._refuse("a name is not a plain path inside the bundle")
        return _Entry(name, size, crc), extra + extra_length

    def _refuse(self, reason: str) -> NoReturn:
        raise BundleError(f"{self} is not a valid file of tx-pack, {reason}: copy it or pack it again")


@dataclass(frozen=True)
class _File:
    """Mapped file, and its status when it was mapped."""

    path: Path
    status: os.stat_result

    def is_unchanged(self) -> bool:
        """Return whether it is still the same file."""
        try:
            current = self.path.stat()
        except OSError:
            return False
        return os.path.samestat(current, self.status) and current.st_mtime_ns == self.status.st_mtime_ns


@dataclass(frozen=True)
class Member:
    """Member of an archive, with the methods of `pathlib.Path` that the runtime uses."""

    archive: Archive
    name: str

    def __str__(self) -> str:
        return f"{self.archive}/{self.name}"

    def read_bytes(self) -> bytes:
        """Return its bytes; raises FileNotFoundError."""
        return bytes(self.view())

    def view(self) -> memoryview:
        """Return its bytes without copying them; raises FileNotFoundError."""
        return self.archive.view(self.name)


def is_inside(name: str) -> bool:
    """Relative, POSIX, without empty, '.' or '..' parts, backslashes or control characters."""
    parts = name.split("/")
    return not (set(parts) & {"", ".", ".."} or "\\" in name or any(ord(character) < 32 for character in name))


Files: TypeAlias = Path | Archive
File: TypeAlias = Path | Member


def files_of(bundle: Files) -> Files:
    """Return the files of a bundle: its directory, or its archive, opened.

    Raises:
        BundleError: the file is not an archive of a bundle.
    """
    if isinstance(bundle, Path) and bundle.is_file():
        check_kind(bundle, "bundle", BundleError)
        return Archive.open(bundle)
    return bundle


def is_bundle(path: Path) -> bool:
    """Return whether an existing path is a bundle rather than a checkpoint."""
    return path.is_file() or (path / "manifest.json").exists()


def exists(files: Files, name: str) -> bool:
    """Return whether a bundle has a file; a broken link counts as one."""
    if isinstance(files, Path):
        return os.path.lexists(files / name)
    return files.has(name)


def hash_of(file: File) -> str:
    """Return the 64 lower-case hexadecimal digits of a file's SHA-256; raises OSError."""
    if isinstance(file, Path):
        return sha256(file)
    return hashlib.sha256(file.view()).hexdigest()


def size_of(file: File) -> int:
    """Return bytes of a file; raises OSError."""
    if isinstance(file, Path):
        return file.stat().st_size
    return file.archive.span(file.name)[1]
