"""A tokenizer.json with a unigram model as the SentencePiece model that it was made from, so that C++ reads it too.

transformers 5 writes no spiece.model. Its tokenizer.json has the pieces with their scores, and SentencePiece's own
normalisation, compiled. The rest of such a file describes what SentencePiece does with every text. A file with any
other content is another tokenizer, which is not converted.
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
# What SentencePiece does by default: it drops spaces that repeat, or are at the ends.
_SPACES = ({"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "}, {"type": "WhitespaceSplit"})


def sentencepiece_of(data: bytes) -> bytes | None:
    """Return the SentencePiece model of a tokenizer.json; None if it is of another kind, or does more than that.

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
    absent = b"".join(number_field(each, -1) for each in (41, 42, 43))  # bos, eos and pad: they are added around ids
    trainer = number_field(3, 1) + number_field(35, fallback) + number_field(40, unknown) + absent
    rules = field(1, b"tokenizer.json") + field(2, charsmap) + b"".join(number_field(i, 1) for i in (3, 4, 5))
    return b"".join(parts) + field(2, trainer) + field(3, rules)


def _parts(step: Any) -> list[dict[str, Any]]:
    """Return the steps of a normaliser or of a pre-tokenizer in order."""
    if step is None:
        return []
    steps = step.get("normalizers" if "normalizers" in step else "pretokenizers")
    if steps is None:
        return [step]
    return [part for each in steps for part in _parts(each)]


def _charsmap(normalizer: Any) -> bytes | None:
    """SentencePiece's compiled rules; None if there are none, or others."""
    first, *others = _parts(normalizer) or [{}]
    known = first.get("type") == "Precompiled" and all(other in _SPACES for other in others)
    if known:
        return base64.b64decode(first["precompiled_charsmap"])
    return None


def _splits_at_spaces(pre_tokenizer: Any) -> bool:
    """Return whether words begin with "▁", the first one too, and are parted from each other."""
    *others, last = _parts(pre_tokenizer) or [{}]
    whole = last.get("type") == "Metaspace" and last.get("replacement") == "▁"
    return whole and last.get("prepend_scheme", "always") != "never" and all(other in _SPACES for other in others)
