"""Pieces of a SentencePiece model file (`sentencepiece_model.proto`), read and completed.

A vocabulary that two languages share has pieces of both. On the target side, a model may choose a piece, such as a
name, that only the source side's SentencePiece model contains. SentencePiece would leave its "▁" in the text, because
its own model lacks the piece. So the target side's file is completed with such pieces as UNUSED ones, which encoding
never takes.
"""

import struct
from collections.abc import Iterable

import sentencepiece
from txport.runtime.bundle.protobuf import field, fields
from txport.runtime.errors import CheckpointError
from txport.runtime.text.sentencepiece_rules import check_sentencepiece

_UNUSED = 5  # ModelProto.SentencePiece.Type
# fields of ModelProto, and of NormalizerSpec
_NORMALIZER_SPEC = 3
_RULE_TSV = 6


def pieces_of(model: bytes, file: object) -> list[str]:
    """Return all pieces of a model file, in the order of SentencePiece's own ids.

    Raises:
        CheckpointError: the bytes are no SentencePiece model; `file` is its name for the message.
    """
    processor = sentencepiece.SentencePieceProcessor()
    try:
        check_sentencepiece(model)
        processor.LoadFromSerializedProto(model)
    except ValueError as error:
        raise CheckpointError(f"{file} {error}: copy it again, or give --no-tokenizer") from None
    except RuntimeError:
        raise CheckpointError(f"{file} is not a SentencePiece model: copy it again, or give --no-tokenizer") from None
    return [str(processor.id_to_piece(i)) for i in range(processor.get_piece_size())]


def completed(model: bytes, known: Iterable[str], wanted: Iterable[str]) -> bytes:
    """Return the model file with those of `wanted` that are not `known` appended; existing ids stay what they are."""
    missing = sorted(set(wanted) - set(known))
    score_and_type = bytes([2 << 3 | 5]) + struct.pack("<f", 0.0) + bytes([3 << 3, _UNUSED])
    # Fields of a repeated message may be anywhere in a protobuf file, also at its end.
    return model + b"".join(field(1, field(1, piece.encode()) + score_and_type) for piece in missing)


def without_rule_file(model: bytes) -> bytes:
    """The model file without the name of the file that its normalisation was compiled from: a path of one machine."""
    parts = []
    for number, content, whole in fields(model):
        if number == _NORMALIZER_SPEC:
            whole = field(number, b"".join(inner for name, _, inner in fields(content) if name != _RULE_TSV))
        parts.append(whole)
    return b"".join(parts)
