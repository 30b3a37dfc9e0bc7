"""Conversion of a tokenizer.json with a unigram model back to its SentencePiece model, so that C++ can read it.

transformers 5 does not write spiece.model. Its tokenizer.json contains the pieces with their scores, and
SentencePiece's compiled normalisation. The rest of the file describes fixed steps of SentencePiece. A file with other
steps is another kind of tokenizer, and is not converted.
"""

import base64
import json
import re
import struct
from typing import Any

from txport.runtime.bundle.protobuf import field, number_field

# ModelProto.SentencePiece.Type
_NORMAL = 1
_UNKNOWN = 2
_CONTROL = 3
_USER_DEFINED = 4
_BYTE = 6
_BYTE_PIECE = re.compile(r"<0x[0-9A-F]{2}>")
# Default steps of SentencePiece: it removes repeated spaces, and spaces at both ends.
_SPACES = ({"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "}, {"type": "WhitespaceSplit"})


def sentencepiece_of(data: bytes) -> bytes | None:
    """Return the SentencePiece model of a tokenizer.json, or None if the file is not equivalent to one.

    Raises:
        ValueError, KeyError, TypeError, AttributeError: the file is damaged.
    """
    value = json.loads(data)
    model = value["model"]
    added = {token["content"]: bool(token["special"]) for token in value["added_tokens"]}
    charsmap = _charsmap(value.get("normalizer"))
    if model.get("type") != "Unigram" or charsmap is None or not _splits_at_spaces(value.get("pre_tokenizer")):
        return None
    unknown = model["unk_id"]
    fallback = bool(model.get("byte_fallback"))
    parts = []
    for i, (piece, score) in enumerate(model["vocab"]):
        if added.get(piece):
            kind = _CONTROL
        elif piece in added:
            kind = _USER_DEFINED
        else:
            kind = _NORMAL
        if fallback and _BYTE_PIECE.fullmatch(piece):
            kind = _BYTE
        if i == unknown:
            kind = _UNKNOWN
        content = field(1, piece.encode()) + struct.pack("<Bf", 2 << 3 | 5, score) + number_field(3, kind)
        parts.append(field(1, content))
    absent = b"".join(number_field(each, -1) for each in (41, 42, 43))  # no bos, eos, pad: txport adds these ids
    trainer = number_field(3, 1) + number_field(35, fallback) + number_field(40, unknown) + absent
    rules = field(1, b"tokenizer.json") + field(2, charsmap) + b"".join(number_field(i, 1) for i in (3, 4, 5))
    return b"".join(parts) + field(2, trainer) + field(3, rules)


def _parts(step: Any) -> list[dict[str, Any]]:
    """Return the steps of a normaliser or pre-tokenizer in order."""
    if step is None:
        return []
    steps = step.get("normalizers" if "normalizers" in step else "pretokenizers")
    if steps is None:
        return [step]
    return [part for each in steps for part in _parts(each)]


def _charsmap(normalizer: Any) -> bytes | None:
    """Return SentencePiece's compiled rules, or None if the normaliser is missing or another one."""
    first, *following = _parts(normalizer) or [{}]
    is_supported = first.get("type") == "Precompiled" and all(other in _SPACES for other in following)
    if is_supported:
        return base64.b64decode(first["precompiled_charsmap"])
    return None


def _splits_at_spaces(pre_tokenizer: Any) -> bool:
    """Return whether text is split into words that begin with "▁", including the first."""
    *preceding, last = _parts(pre_tokenizer) or [{}]
    is_metaspace = last.get("type") == "Metaspace" and last.get("replacement") == "▁"
    return (
        is_metaspace
        and last.get("prepend_scheme", "always") != "never"
        and all(other in _SPACES for other in preceding)
    )
