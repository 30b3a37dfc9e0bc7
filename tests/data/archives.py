"""Archives of bundles, written field by field after PKWARE's APPNOTE 6.3, as tx-pack writes them or with a fault.

Independent of `txport.runtime.bundle.archive`: without a fault its bytes must be the same.
"""

import struct
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

WIDE = 0xFFFFFFFF
PAGE = 4096


@dataclass(frozen=True)
class Entry:
    """A member, and what its headers say instead of the truth.

    Attributes:
        name, data: of the member.
        local, central: fields of the headers by their names below.
        size: of the data, if `data` is only its beginning.
        pad: bytes of zeros after the extra field's header; None for the next page.
    """

    name: bytes
    data: bytes
    local: dict[str, int | bytes] = field(default_factory=dict)
    central: dict[str, int | bytes] = field(default_factory=dict)
    size: int | None = None
    pad: int | None = None


def _common(entry: Entry, values: dict[str, int | bytes], wide: bytes, extra: bytes) -> bytes:
    size = len(entry.data) if entry.size is None else entry.size
    facts: dict[str, int | bytes] = {
        "version": 45 if wide else 20,
        "flags": 0x0800,
        "method": 0,
        "time": 0,
        "date": 0x21,
        "crc": zlib.crc32(entry.data),
        "compressed": min(size, WIDE),
        "size": min(size, WIDE),
        "name_length": len(entry.name),
        "extra_length": len(extra),
    }
    names = [values.get(name, value) for name, value in facts.items()]
    return struct.pack("<HHHHHIIIHH", *names)


def _zip64(*numbers: int) -> bytes:
    wide = b"".join(struct.pack("<Q", number) for number in numbers if number >= WIDE)
    return struct.pack("<HH", 1, len(wide)) + wide if wide else b""


def local_header(entry: Entry, at: int) -> bytes:
    """The header of a member whose header begins at byte `at`."""
    size = len(entry.data) if entry.size is None else entry.size
    wide = _zip64(size, size)
    name = entry.local.get("name", entry.name)
    assert isinstance(name, bytes)
    pad = (-(at + 30 + len(name) + len(wide) + 6)) % PAGE if entry.pad is None else entry.pad
    extra = entry.local.get("extra", wide + struct.pack("<HHH", 0xD935, 2 + pad, PAGE) + b"\0" * pad)
    assert isinstance(extra, bytes)
    return b"PK\x03\x04" + _common(entry, entry.local, wide, extra) + name + extra


def central_header(entry: Entry, at: int) -> bytes:
    """Its entry in the directory."""
    size = len(entry.data) if entry.size is None else entry.size
    at = int(entry.central.get("at", at))
    extra = entry.central.get("extra", _zip64(size, size, at))
    comment = entry.central.get("comment", b"")
    assert isinstance(extra, bytes)
    assert isinstance(comment, bytes)
    made_by = 3 << 8 | (45 if extra else 20)
    rest = struct.pack("<HHHII", len(comment), 0, 0, 0o100644 << 16, min(at, WIDE))
    common = _common(entry, entry.central, extra, extra)
    return b"PK\x01\x02" + struct.pack("<H", made_by) + common + rest + entry.name + extra + comment


def tail(central: bytes, count: int, start: int, /, **end: int) -> bytes:
    """The directory, which begins at byte `start`, and the end; `end` has other values for its fields."""
    wide = b""
    if start >= WIDE:
        wide = b"PK\x06\x06" + struct.pack("<QHHII", 44, 3 << 8 | 45, 45, 0, 0)
        wide += struct.pack("<QQQQ", count, count, len(central), start)
        wide += b"PK\x06\x07" + struct.pack("<IQI", 0, start + len(central), 1)
    facts = {"disk": 0, "first": 0, "here": count, "count": count, "size": len(central), "start": min(start, WIDE)}
    return central + wide + b"PK\x05\x06" + struct.pack("<HHHHIIH", *(facts | {"comment": 0} | end).values())


def archive(entries: Sequence[Entry], **end: int) -> bytes:
    """The bytes of an archive; `end` has other values for the fields of its end."""
    data = central = b""
    for entry in entries:
        at = len(data)
        data += local_header(entry, at) + entry.data
        central += central_header(entry, at)
    return data + tail(central, len(entries), len(data), **end)


def write_large(path: Path, second: Entry) -> tuple[int, int]:
    """Write an archive of a member `a` of more than 4 GiB, which is a hole in the file, and of another one.

    Returns:
        start and size of the large one's bytes.
    """
    size = (1 << 32) + 5
    large = Entry(b"a", b"", size=size, local={"crc": 0}, central={"crc": 0})
    header = local_header(large, 0)
    at = len(header) + size
    with path.open("wb") as file:
        file.write(header)
        file.seek(at)
        file.write(local_header(second, at) + second.data)
        file.write(tail(central_header(large, 0) + central_header(second, at), 2, file.tell()))
    return len(header), size


def entries_of(bundle: Path) -> list[Entry]:
    """The members of a bundle's archive, in order."""
    names = sorted(path.relative_to(bundle).as_posix() for path in bundle.rglob("*") if path.is_file())
    return [Entry(name.encode(), (bundle / name).read_bytes()) for name in names]


def _renamed(name: bytes) -> Callable[[list[Entry]], bytes]:
    """An archive with one more member of this name, at its place in the order."""

    def build(entries: list[Entry]) -> bytes:
        return archive(sorted([*entries, Entry(name, b"x")], key=lambda entry: entry.name))

    return build


def _changed(**changes: object) -> Callable[[list[Entry]], bytes]:
    """An archive whose second member is changed."""

    def build(entries: list[Entry]) -> bytes:
        return archive([entries[0], replace(entries[1], **changes), *entries[2:]])  # type: ignore[arg-type]

    return build


def _both(**values: int | bytes) -> Callable[[list[Entry]], bytes]:
    """Headers that agree with each other."""
    return _changed(local=values, central=values)


def _ended(**end: int) -> Callable[[list[Entry]], bytes]:
    return lambda entries: archive(entries, **end)


def _cut(count: int) -> Callable[[list[Entry]], bytes]:
    return lambda entries: archive(entries)[:-count]


def _deflated(entries: list[Entry]) -> bytes:
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    packed = packer.compress(entries[1].data) + packer.flush()
    facts: dict[str, int | bytes] = {
        "method": 8,
        "crc": zlib.crc32(entries[1].data),
        "compressed": len(packed),
        "size": len(entries[1].data),
    }
    return archive([entries[0], replace(entries[1], data=packed, local=facts, central=facts), *entries[2:]])


def _overlapping(entries: list[Entry]) -> bytes:
    """Two names for one local header: the directory says so, and both spans are in the file."""
    return archive([entries[0], replace(entries[1], central={"at": 0}), *entries[2:]])


def _bomb(entries: list[Entry]) -> bytes:
    """65535 names of one member."""
    data = local_header(entries[0], 0) + entries[0].data
    names = [replace(entries[0], name=b"%05d" % number) for number in range(65535)]
    return data + tail(b"".join(central_header(name, 0) for name in names), len(names), len(data))


def _commented(entries: list[Entry]) -> bytes:
    """A comment that is the end of another archive: some readers take the one, some the other."""
    other = tail(b"", 0, 0)
    return archive(entries, comment=len(other)) + other


def _hidden(entries: list[Entry]) -> bytes:
    """A member between two others that the directory does not name."""
    data = local_header(entries[0], 0) + entries[0].data
    central = central_header(entries[0], 0)
    data += local_header(entries[1], len(data)) + entries[1].data
    return data + tail(central, 1, len(data))


# Faults by their names; each gives the bytes of an archive of some members, at least two, that must be refused.
REFUSED: dict[str, Callable[[list[Entry]], bytes]] = {
    "parent": _renamed(b"../outside"),
    "parent inside": _renamed(b"onnx/../../outside"),
    "absolute": _renamed(b"/etc/passwd"),
    "backslash": _renamed(b"onnx\\x"),
    "drive": _renamed(b"c:\\x"),
    "NUL": _renamed(b"golden.json\0.txt"),
    "line break": _renamed(b"golden\n"),
    "empty name": _renamed(b""),
    "empty part": _renamed(b"onnx//x"),
    "dot": _renamed(b"./x"),
    "directory": lambda entries: archive(sorted([*entries, Entry(b"onnx/", b"")], key=lambda entry: entry.name)),
    "not UTF-8": _renamed(b"\xff\xfe"),
    "surrogate": _renamed(b"\xed\xa0\x80"),
    "twice": lambda entries: archive([entries[0], entries[0], *entries[1:]]),
    "unordered": lambda entries: archive([entries[1], entries[0], *entries[2:]]),
    "deflated": _deflated,
    "method": _both(method=12),
    "encrypted": _both(flags=0x0801),
    "encrypted in one header": _changed(local={"flags": 0x0801}),
    "data descriptor": _both(flags=0x0808),
    "version": _both(version=63),
    "date": _both(date=0x22),
    "time": _both(time=1),
    "zip64 without its field": _both(size=WIDE, compressed=WIDE),
    "zip64 for a small size": _changed(
        local={"size": WIDE, "compressed": WIDE},
        central={"size": WIDE, "compressed": WIDE, "extra": struct.pack("<HHQQ", 1, 16, 5, 5)},
    ),
    "zip64 of all there is": _changed(
        local={"size": WIDE, "compressed": WIDE},
        central={"size": WIDE, "compressed": WIDE, "extra": struct.pack("<HHQQ", 1, 16, 2**64 - 1, 2**64 - 1)},
    ),
    "zip64 at the end without its record": _ended(start=WIDE),
    "other extra field": _changed(central={"extra": struct.pack("<HHI", 0xCAFE, 4, 0)}),
    "extra field too short": _changed(local={"extra": b"\x35\xd9"}),
    "extra field beyond the directory": lambda entries: archive(
        [*entries[:-1], replace(entries[-1], central={"extra_length": 65535})]
    ),
    "name beyond the directory": lambda entries: archive(
        [*entries[:-1], replace(entries[-1], central={"name_length": 65535})]
    ),
    "comment of a member": _changed(central={"comment": b"hello"}),
    "overlapping": _overlapping,
    "bomb": _bomb,
    "hidden": _hidden,
    "size beyond the file": _both(size=1 << 30, compressed=1 << 30),
    "size beyond the member": lambda entries: archive(
        [
            entries[0],
            replace(entries[1], local={"size": 9000, "compressed": 9000}, central={"size": 9000, "compressed": 9000}),
            *entries[2:],
        ]
    ),
    "sizes that differ": _changed(local={"compressed": 0}, central={"compressed": 0}),
    "local size": _changed(local={"size": 1, "compressed": 1}),
    "local name": _changed(local={"name": b"other"}),
    "local CRC": _changed(local={"crc": 1}),
    "central CRC": _changed(central={"crc": 1}),
    "not at a page": _changed(pad=58),
    "garbage in the padding": lambda entries: archive(entries).replace(b"\0" * 64, b"\0" * 63 + b"x", 1),
    "nothing": lambda entries: b"",
    "short": lambda entries: b"PK\x05\x06",
    "no zip archive": lambda entries: b"a file" * 1000,
    "last byte": _cut(1),
    "end": _cut(22),
    "directory cut": _cut(100),
    "half": lambda entries: archive(entries)[: len(archive(entries)) // 2],
    "only the end": lambda entries: archive(entries)[-22:],
    "byte after the end": lambda entries: archive(entries) + b"\0",
    "bytes before the start": lambda entries: b"#!/bin/sh\n" + archive(entries),
    "comment": lambda entries: archive(entries, comment=5) + b"hello",
    "comment that is an end": _commented,
    "comment that is not there": _ended(comment=22),
    "disks": _ended(disk=1),
    "other count here": _ended(here=1),
    "count too large": _ended(here=65535, count=65535),
    "count too small": _ended(here=1, count=1),
    "no members": _ended(here=0, count=0),
    "start": _ended(start=1),
    "start beyond": _ended(start=1 << 31),
    "size of the directory": _ended(size=46),
    "size of the directory beyond": _ended(size=WIDE),
}
