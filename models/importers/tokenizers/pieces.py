"""Pieces of SentencePiece model files (`sentencepiece_model.proto`): reading, and adding missing ones.

A vocabulary that two languages share has pieces of both. On the target side, a model may choose a piece, such as a
name, that only the source side's SentencePiece model contains. SentencePiece would leave its "▁" in the text, because
the target side's model lacks the piece. So such pieces are added to it as UNUSED ones, which encoding never produces.
"""

import struct
from collections.abc import Iterable

import sentencepiece
from txport.runtime.bundle.protobuf import field, fields
from txport.runtime.errors import CheckpointError
from txport.runtime.text.sentencepiece_rules import check_sentencepiece

_UNUSED = 5  # ModelProto.SentencePiece.Type
# fields of ModelProto, and of NormalizerSpec
_NORMALIZER_SPECS = (3, 5)  # of texts and of answers
_RULE_TSV = 6


def pieces_of(model: bytes, file: object) -> list[str]:
    """Return all pieces of a model file, in the order of SentencePiece's own ids.

    Raises:
        CheckpointError: the bytes are not a SentencePiece model; `file` is its name for the message.
    """
    processor = sentencepiece.SentencePieceProcessor()
    try:
        check_sentencepiece(model)
        processor.LoadFromSerializedProto(model)
        return [str(processor.id_to_piece(i)) for i in range(processor.get_piece_size())]
    except UnicodeDecodeError:
        raise CheckpointError(f"{file} has a piece that is not UTF-8: copy it again, or give --no-tokenizer") from None
    except ValueError as error:
        raise CheckpointError(f"{file} {error}: copy it again, or give --no-tokenizer") from None
    except RuntimeError:
        raise CheckpointError(f"{file} is not a SentencePiece model: copy it again, or give --no-tokenizer") from None


def completed(model: bytes, existing: Iterable[str], required: Iterable[str]) -> bytes:
    """Return the model file with pieces that are `required` but not `existing` appended. Existing ids do not change."""
    missing = sorted(set(required) - set(existing))
    score_and_type = bytes([2 << 3 | 5]) + struct.pack("<f", 0.0) + bytes([3 << 3, _UNUSED])
    # In a protobuf file, elements of a repeated field may be anywhere, so also at the end.
    return model + b"".join(field(1, field(1, piece.encode()) + score_and_type) for piece in missing)


def without_rule_file(model: bytes) -> bytes:
    """Return the model file without the name of its normalisation rules file, which is a path on one machine."""
    parts = []
    for number, content, field_bytes in fields(model):
        if number in _NORMALIZER_SPECS:
            field_bytes = field(number, b"".join(inner for name, _, inner in fields(content) if name != _RULE_TSV))
        parts.append(field_bytes)
    return b"".join(parts)
