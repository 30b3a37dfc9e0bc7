"""Replacement of a named dimension of an ONNX file by a number, without the onnx library, which devices lack.

TensorRT's KVCacheUpdate supports only caches of a static length. An ONNX file is a protocol buffer, whose fields begin
with a key (number, type). Dimensions are at ModelProto.graph (7), inputs, outputs and values (11, 12, 13), type (2),
tensor_type (1), shape (2), dim (1). A dimension has dim_value (1) or dim_param (2). See onnx.proto3.
"""

from collections.abc import Iterator

_TO_DIMENSIONS: tuple[tuple[int, ...], ...] = ((7,), (11, 12, 13), (2,), (1,), (2,), (1,))
_DIM_PARAM = 2
_VARINT = 0
_FIXED64 = 1
_BYTES = 2
_FIXED32 = 5


def with_size(model: bytes, dimension: str, size: int) -> bytes:
    """Return the model with a number instead of every dimension of this name.

    Args:
        model: contents of an ONNX file with external weights.
        dimension: name, for example "target".
        size: the number.
    """
    return _rewrite(model, _TO_DIMENSIONS, dimension.encode(), b"\x08" + _varint(size))


def _rewrite(message: bytes, path: tuple[tuple[int, ...], ...], name: bytes, replacement: bytes) -> bytes:
    if not path:
        is_dimension = any(number == _DIM_PARAM and value == name for number, value, _ in _fields(message))
        if is_dimension:
            return replacement
        return message
    parts = []
    for number, value, field_bytes in _fields(message):
        if number in path[0] and value is not None:
            inner = _rewrite(value, path[1:], name, replacement)
            field_bytes = _varint(number << 3 | _BYTES) + _varint(len(inner)) + inner
        parts.append(field_bytes)
    return b"".join(parts)


def _fields(message: bytes) -> Iterator[tuple[int, bytes | None, bytes]]:
    """Yield (number, contents, whole field) of all fields in order. Contents are None for fields without a length."""
    offset = 0
    while offset < len(message):
        start = offset
        key, offset = _read_varint(message, offset)
        kind = key & 7
        value = None
        if kind == _VARINT:
            _, offset = _read_varint(message, offset)
        elif kind == _BYTES:
            length, offset = _read_varint(message, offset)
            value = message[offset : offset + length]
            offset = offset + length
        else:
            offset += {_FIXED64: 8, _FIXED32: 4}[kind]
        yield key >> 3, value, message[start:offset]


def _read_varint(data: bytes, offset: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[offset]
        value = value | (byte & 127) << shift
        shift = shift + 7
        offset = offset + 1
        if byte < 128:
            return value, offset


def _varint(value: int) -> bytes:
    parts = bytearray()
    while value > 127:
        parts.append(value & 127 | 128)
        value >>= 7
    return bytes([*parts, value])
