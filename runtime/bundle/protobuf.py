"""Messages of Protocol Buffers, field by field (protobuf.dev/programming-guides/encoding), without that library.

Graphs of ONNX and models of SentencePiece are such messages.
"""

from collections.abc import Iterator

_NUMBER, _BYTES = 0, 2  # wire types: of integers, and with a length
_SIZES = {1: 8, 5: 4}  # bytes of those that are of a fixed size


def fields(message: bytes) -> Iterator[tuple[int, bytes, bytes]]:
    """Number, value if it has a length, and all bytes of each field.

    Raises:
        ValueError: the message cannot be read.
    """
    at = 0
    while at < len(message):
        start = at
        tag, at = _read_varint(message, at)
        value = b""
        if tag & 7 == _BYTES:
            size, at = _read_varint(message, at)
            value = message[at : at + size]
            at += size
        elif tag & 7 in _SIZES:
            at += _SIZES[tag & 7]
        elif tag & 7 == _NUMBER:
            _, at = _read_varint(message, at)
        else:
            raise ValueError(f"a field has the wire type {tag & 7}")
        if at > len(message):
            raise ValueError("a field is longer than its message")
        yield tag >> 3, value, message[start:at]


def tagged(message: bytes) -> Iterator[tuple[int, bytes | int]]:
    """Tag (the number times 8 plus the wire type) and value of each field; of one with a fixed size, no value.

    Raises:
        ValueError: the message cannot be read.
    """
    at, end = 0, len(message)
    while at < end:
        tag = message[at]
        at += 1
        if tag >= 128:
            tag, at = _read_varint(message, at - 1)
        kind = tag & 7
        if kind == _BYTES or kind == _NUMBER:
            number = message[at] if at < end else 128
            at += 1
            if number >= 128:
                number, at = _read_varint(message, at - 1)
            if kind == _NUMBER:
                yield tag, number
                continue
            value = message[at : at + number]
            at += number
        elif kind in _SIZES:
            value = b""
            at += _SIZES[kind]
        else:
            raise ValueError(f"a field has the wire type {kind}")
        if at > end:
            raise ValueError("a field is longer than its message")
        yield tag, value


def _read_varint(message: bytes, at: int) -> tuple[int, int]:
    """A number, and where the next byte is."""
    value = 0
    for shift in range(0, 70, 7):
        if at + shift // 7 >= len(message):
            break
        byte = message[at + shift // 7]
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at + shift // 7 + 1
    raise ValueError("a number has no end")


def field(number: int, value: bytes) -> bytes:
    """A field that holds text, bytes or a message."""
    return _varint(number << 3 | _BYTES) + _varint(len(value)) + value


def number_field(number: int, value: int) -> bytes:
    """A field that holds an integer, which may be negative."""
    return _varint(number << 3 | _NUMBER) + _varint(value % (1 << 64))


def _varint(value: int) -> bytes:
    result = bytearray()
    while value >= 128:
        result.append(value & 127 | 128)
        value >>= 7
    return bytes(result + bytes([value]))
