"""Pieces of a SentencePiece model file (`sentencepiece_model.proto`), read and completed without protobuf.

A vocabulary that two languages share has pieces of both, and a model may choose a piece on the target side that only
the source side's SentencePiece model knows, say a name. SentencePiece would leave its "▁" in the text, because it does
not know the piece; so the target side's file is completed with such pieces as UNUSED ones, which encoding never takes.
"""

import struct
from collections.abc import Iterable, Iterator

import sentencepiece
from txport.runtime.errors import CheckpointError

_UNUSED = 5  # ModelProto.SentencePiece.Type
_NORMALIZER_SPEC, _RULE_TSV = 3, 6  # fields of ModelProto, and of NormalizerSpec


def pieces_of(model: bytes, file: object) -> list[str]:
    """All pieces of a model file, in the order of SentencePiece's own ids.

    Raises:
        CheckpointError: the bytes are no SentencePiece model; `file` is its name for the message.
    """
    processor = sentencepiece.SentencePieceProcessor()
    try:
        processor.LoadFromSerializedProto(model)
    except RuntimeError:
        raise CheckpointError(f"{file} is not a SentencePiece model: copy it again, or give --no-tokenizer") from None
    return [str(processor.id_to_piece(i)) for i in range(processor.get_piece_size())]


def completed(model: bytes, known: Iterable[str], wanted: Iterable[str]) -> bytes:
    """The model file with those of `wanted` that are not `known` appended; existing ids stay what they are."""
    missing = sorted(set(wanted) - set(known))
    score_and_type = bytes([2 << 3 | 5]) + struct.pack("<f", 0.0) + bytes([3 << 3, _UNUSED])
    # Fields of a repeated message may be anywhere in a protobuf file, also at its end.
    return model + b"".join(proto_field(1, proto_field(1, piece.encode()) + score_and_type) for piece in missing)


def without_rule_file(model: bytes) -> bytes:
    """The model file without the name of the file that its normalisation was compiled from: a path of one machine."""
    parts = []
    for number, whole, content in _fields(model):
        if number == _NORMALIZER_SPEC:
            whole = proto_field(number, b"".join(inner for name, inner, _ in _fields(content) if name != _RULE_TSV))
        parts.append(whole)
    return b"".join(parts)


def _fields(message: bytes) -> Iterator[tuple[int, bytes, bytes]]:
    """Number, all bytes and content of each field of a message."""
    at = 0
    while at < len(message):
        start = at
        tag, at = _read_varint(message, at)
        kind, size = tag & 7, 0
        if kind == 0:  # an integer
            _, end = _read_varint(message, at)
            size = end - at
        elif kind == 2:  # a text, bytes or a message
            size, at = _read_varint(message, at)
        else:  # 4 or 8 bytes
            size = 4 if kind == 5 else 8
        yield tag >> 3, message[start : at + size], message[at : at + size]
        at += size


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    """The number that starts at `at`, and where it ends."""
    value = shift = 0
    while True:
        value |= (data[at] & 127) << shift
        at, shift = at + 1, shift + 7
        if data[at - 1] < 128:
            return value, at


def proto_field(number: int, data: bytes) -> bytes:
    """A field of a protobuf message that holds text, bytes or a message."""
    return bytes([number << 3 | 2]) + _varint(len(data)) + data


def proto_number(number: int, value: int) -> bytes:
    """A field that holds an integer of 32 bits."""
    return _varint(number << 3) + _varint(value % (1 << 64))


def _varint(value: int) -> bytes:
    out = b""
    while value > 127:
        out, value = out + bytes([value & 127 | 128]), value >> 7
    return out + bytes([value])
