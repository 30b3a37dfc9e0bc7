"""The files of a tokenizer as a bundle holds them, made from other toolkits' vocabularies."""

import json
from collections.abc import Sequence


def vocabulary_bytes(pieces: Sequence[str | None]) -> bytes:
    """vocabulary.json (see `txport.runtime.text.vocabulary`) of pieces in the order of the model's ids."""
    text = json.dumps({"format_version": 1, "pieces": list(pieces)}, ensure_ascii=False, separators=(",", ":"))
    return text.encode("utf-8") + b"\n"
