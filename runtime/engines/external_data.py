"""External data of an ONNX graph: which file has it, and from which byte on (onnx.proto; Protocol Buffers encoding).

ONNX Runtime maps a file of weights that a graph names. Those of a bundle in one file lie further back in another file:
the graph then names that one, and so they are mapped just as well.
"""

from collections.abc import Callable, Iterator

_BYTES, _SIZES = 2, {1: 8, 5: 4}  # wire types: with a length, and of fixed sizes
_INITIALIZERS = (7, 5)  # ModelProto.graph, GraphProto.initializer
_EXTERNAL_DATA = 13  # of TensorProto, of StringStringEntryProto
_KEY, _VALUE = 1, 2


def moved(model: bytes, location: str, start: int) -> bytes:
    """The bytes of a model whose external data is that many bytes further back, in another file.

    Args:
        model: a serialised ModelProto.
        location: the other file, beside the model.
        start: where in it the file begins that the model names, in bytes.

    Raises:
        ValueError: the model cannot be read.
    """

    def tensor(message: bytes) -> bytes:
        fields = list(_fields(message))
        entries = dict(_entry(value) for number, value, _ in fields if number == _EXTERNAL_DATA)
        if not entries:
            return message
        entries |= {b"location": location.encode(), b"offset": b"%d" % (start + int(entries.get(b"offset", b"0")))}
        others = b"".join(field for number, _, field in fields if number != _EXTERNAL_DATA)
        pairs = (_field(_KEY, key) + _field(_VALUE, value) for key, value in entries.items())
        return others + b"".join(_field(_EXTERNAL_DATA, pair) for pair in pairs)

    return _changed(model, _INITIALIZERS, tensor)


def _changed(message: bytes, path: tuple[int, ...], change: Callable[[bytes], bytes]) -> bytes:
    """The message after a change of all messages at a path of field numbers."""
    if not path:
        return change(message)
    return b"".join(
        _field(number, _changed(value, path[1:], change)) if number == path[0] else field
        for number, value, field in _fields(message)
    )


def _entry(message: bytes) -> tuple[bytes, bytes]:
    values = {number: value for number, value, _ in _fields(message)}
    return values.get(_KEY, b""), values.get(_VALUE, b"")


def _fields(message: bytes) -> Iterator[tuple[int, bytes, bytes]]:
    """Number, value if it has a length, and all bytes of each field."""
    at = 0
    while at < len(message):
        start = at
        tag, at = _varint(message, at)
        value = b""
        if tag & 7 == _BYTES:
            size, at = _varint(message, at)
            value = message[at : at + size]
            at += size
        elif tag & 7 in _SIZES:
            at += _SIZES[tag & 7]
        elif tag & 7 == 0:
            _, at = _varint(message, at)
        else:
            raise ValueError(f"a field has the wire type {tag & 7}")
        if at > len(message):
            raise ValueError("a field is longer than its message")
        yield tag >> 3, value, message[start:at]


def _varint(message: bytes, at: int) -> tuple[int, int]:
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


def _field(number: int, value: bytes) -> bytes:
    tag, size = number << 3 | _BYTES, len(value)
    return _encoded(tag) + _encoded(size) + value


def _encoded(value: int) -> bytes:
    result = bytearray()
    while value >= 128:
        result.append(value & 127 | 128)
        value >>= 7
    return bytes(result + bytes([value]))
