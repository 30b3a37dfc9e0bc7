"""Vocabulary files of other toolkits, and their form in bundles."""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from txport.models.importers.settings import read_json
from txport.runtime.errors import CheckpointError


def read_bytes(file: Path) -> bytes:
    """Return the contents of a tokenizer file.

    Raises:
        CheckpointError: it is missing.
    """
    try:
        return file.read_bytes()
    except OSError:
        raise CheckpointError(
            f"{file} is missing or cannot be read: copy it too, or import without a tokenizer (--no-tokenizer)"
        ) from None


def read_vocabulary(file: Path, rows: int) -> dict[str, int]:
    """Return the pieces and ids of vocab.json.

    Raises:
        CheckpointError: the file is missing or has another format, or an id is not below `rows`.
    """
    value: dict[str, int] = read_json(file, advice="or import without a tokenizer (--no-tokenizer)")
    if not value or any(type(token) is not int for token in value.values()):
        raise CheckpointError(f"{file} is not a vocabulary of pieces and ids: copy it again, or give --no-tokenizer")
    if len(set(value.values())) != len(value):
        raise CheckpointError(f"{file} gives one id to two pieces: copy it again, or give --no-tokenizer")
    if not 0 <= min(value.values()) <= max(value.values()) < rows:
        raise CheckpointError(
            f"{file} has ids up to {max(value.values())}, but the embedding has {rows} rows: "
            "they belong to different models; find the right file, or give --no-tokenizer"
        )
    return value


def by_id(pieces: Mapping[str, int], special: Iterable[str]) -> list[str | None]:
    """Return the pieces in the order of their ids; None for special ones and gaps."""
    size = max(pieces.values()) + 1
    left_out = set(special)
    table: list[str | None] = [None] * size
    for piece, token in pieces.items():
        table[token] = None if piece in left_out else piece
    return table


def vocabulary_bytes(pieces: Sequence[str | None]) -> bytes:
    """Return vocabulary.json (see `txport.runtime.text.vocabulary`) for pieces in the order of the model's ids."""
    text = json.dumps({"format_version": 1, "pieces": list(pieces)}, ensure_ascii=False, separators=(",", ":"))
    return text.encode("utf-8") + b"\n"
