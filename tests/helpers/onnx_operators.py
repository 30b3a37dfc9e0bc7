"""The operators of an ONNX model, without the package onnx, which a machine with a GPU may not have."""

from collections.abc import Iterator


def operators(model: bytes) -> Iterator[str]:
    """The operator of each node of an ONNX model.

    By ONNX's onnx.proto: a ModelProto has its graph in field 7, a GraphProto its nodes in field 1, and a NodeProto its
    operator in field 4.
    """
    for graph in _fields(memoryview(model), 7):
        for node in _fields(graph, 1):
            yield from (bytes(name).decode() for name in _fields(node, 4))


def _fields(message: memoryview, wanted: int) -> Iterator[memoryview]:
    """The values of one field, of bytes, of a message in the wire format of protocol buffers."""
    at = 0
    while at < len(message):
        tag, at = _number(message, at)
        kind = tag & 7
        if kind == 2:  # bytes: their number, and then they
            size, at = _number(message, at)
            if tag >> 3 == wanted:
                yield message[at : at + size]
            at += size
        elif kind == 0:
            _, at = _number(message, at)
        else:
            at += {1: 8, 5: 4}[kind]


def _number(message: memoryview, at: int) -> tuple[int, int]:
    """(the number that is written at `at` in groups of seven bits, the lowest first; where it ends)."""
    value = shift = 0
    while True:
        value |= (message[at] & 127) << shift
        shift, at = shift + 7, at + 1
        if message[at - 1] < 128:
            return value, at
