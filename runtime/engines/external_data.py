"""External data of an ONNX graph: its file and offset (onnx.proto; Protocol Buffers encoding).

ONNX Runtime maps the weights file that a graph names. A bundle in one file contains the weights at an offset. A changed
copy of the graph names this file and the offset, so that ONNX Runtime can map these weights too.
"""

from collections.abc import Callable

from txport.runtime.bundle.protobuf import field, fields

_INITIALIZERS = (7, 5)  # ModelProto.graph, GraphProto.initializer
_EXTERNAL_DATA = 13  # TensorProto.external_data
_KEY = 1  # StringStringEntryProto.key
_VALUE = 2  # StringStringEntryProto.value


def with_location(model: bytes, location: str, start: int) -> bytes:
    """Return the model with its external data in another file, `start` bytes further back.

    Args:
        model: a serialised ModelProto.
        location: the other file, beside the model.
        start: offset of the model's weights file in it, in bytes.

    Raises:
        ValueError: the model cannot be read.
    """

    def tensor(message: bytes) -> bytes:
        parts = list(fields(message))
        entries = dict(_entry(value) for number, value, _ in parts if number == _EXTERNAL_DATA)
        if not entries:
            return message
        entries |= {b"location": location.encode(), b"offset": b"%d" % (start + int(entries.get(b"offset", b"0")))}
        remaining = b"".join(field_bytes for number, _, field_bytes in parts if number != _EXTERNAL_DATA)
        pairs = (field(_KEY, key) + field(_VALUE, value) for key, value in entries.items())
        return remaining + b"".join(field(_EXTERNAL_DATA, pair) for pair in pairs)

    return _change(model, _INITIALIZERS, tensor)


def _change(message: bytes, path: tuple[int, ...], change: Callable[[bytes], bytes]) -> bytes:
    """Return the message after a change of all messages at a path of field numbers."""
    if not path:
        return change(message)
    return b"".join(
        field(number, _change(value, path[1:], change)) if number == path[0] else field_bytes
        for number, value, field_bytes in fields(message)
    )


def _entry(message: bytes) -> tuple[bytes, bytes]:
    values = {number: value for number, value, _ in fields(message)}
    return values.get(_KEY, b""), values.get(_VALUE, b"")
