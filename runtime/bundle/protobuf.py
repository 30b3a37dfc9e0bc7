"""Messages of Protocol Buffers, field by field (protobuf.dev/programming-guides/encoding), without protobuf.

Graphs of ONNX and models of SentencePiece are such messages.
"""

from collections.abc import Iterator
from typing import Any

# wire types: of integers, and with a length
_NUMBER = 0
_BYTES = 2
_SIZES = {1: 8, 5: 4}  # bytes of types with a fixed size


def fields(message: bytes) -> Iterator[tuple[int, bytes, bytes]]:
    """Yield the number, the value (None unless it has a length) and all bytes of each field.

    Raises:
        ValueError: the message cannot be read.
    """
    offset = 0
    while offset < len(message):
        start = offset
        tag, offset = _read_tag(message, offset)
        value = b""
        if tag & 7 == _BYTES:
            size, offset = _read_varint(message, offset)
            value = message[offset : offset + size]
            offset += size
        elif tag & 7 in _SIZES:
            offset += _SIZES[tag & 7]
        elif tag & 7 == _NUMBER:
            _, offset = _read_varint(message, offset)
        else:
            raise ValueError(f"a field has the wire type {tag & 7}")
        if offset > len(message):
            raise ValueError("a field is longer than its message")
        yield tag >> 3, value, message[start:offset]


def field_at(message: bytes, offset: int) -> tuple[int, Any, int]:
    """Return tag (number times 8 plus wire type), value and end of the field at byte `offset`.

    The value is bytes or a number, depending on the wire type; fields of a fixed size have none.

    Raises:
        ValueError: the message cannot be read.
    """
    tag, offset = _read_tag(message, offset)
    kind = tag & 7
    value: bytes | int = b""
    if kind in (_BYTES, _NUMBER):
        value, offset = _read_varint(message, offset)
        if kind == _BYTES:
            size = value
            value = message[offset : offset + size]
            offset += size
    elif kind in _SIZES:
        offset += _SIZES[kind]
    else:
        raise ValueError(f"a field has the wire type {kind}")
    if offset > len(message):
        raise ValueError("a field is longer than its message")
    return tag, value, offset


def tagged(message: bytes) -> list[tuple[int, Any]]:
    """Return tag and value of each field, as `field_at`. Short byte fields are read here, three times as fast."""
    pairs: list[tuple[int, Any]] = []
    offset = 0
    end = len(message)
    while offset < end:
        tag = message[offset]
        start = offset + 2
        if tag & 0x87 == _BYTES and start <= end and (size := message[offset + 1]) < 128:
            offset = start + size
            if offset > end:
                raise ValueError("a field is longer than its message")
            pairs.append((tag, message[start:offset]))
        else:
            tag, value, offset = field_at(message, offset)
            pairs.append((tag, value))
    return pairs


def _read_tag(message: bytes, offset: int) -> tuple[int, int]:
    """Return a tag, and the position of the byte after it. Parsers truncate longer tags to other tags of 32 bits."""
    tag, offset = _read_varint(message, offset)
    if tag >> 32:
        raise ValueError(f"a field has the number {tag >> 3}")
    return tag, offset


def _read_varint(message: bytes, offset: int) -> tuple[int, int]:
    """Return a number, and the position of the byte after it."""
    value = 0
    for shift in range(0, 70, 7):  # 64 bits are at most ten bytes of seven bits
        if offset + shift // 7 >= len(message):
            break
        byte = message[offset + shift // 7]
        value |= (byte & 127) << shift
        if byte < 128:
            return value, offset + shift // 7 + 1
    raise ValueError("a number has no end")


def field(number: int, value: bytes) -> bytes:
    """Return a field that holds text, bytes or a message."""
    return _varint(number << 3 | _BYTES) + _varint(len(value)) + value


def number_field(number: int, value: int) -> bytes:
    """Return a field that holds an integer, which may be negative."""
    return _varint(number << 3 | _NUMBER) + _varint(value % (1 << 64))


def _varint(value: int) -> bytes:
    result = bytearray()
    while value >= 128:
        result.append(value & 127 | 128)
        value >>= 7
    return bytes(result + bytes([value]))
