"""Vocabulary files of other toolkits, and their form in bundles."""

import codecs
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from txport.models.importers.settings import read_json
from txport.runtime.errors import CheckpointError


def read_bytes(file: Path) -> bytes:
    """Return the contents of a tokenizer file, without a byte order mark.

    Raises:
        CheckpointError: it is missing.
    """
    return _contents(file).removeprefix(codecs.BOM_UTF8)


def _contents(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError:
        raise CheckpointError(
            f"{file} is missing or cannot be read: copy it too, or import without a tokenizer (--no-tokenizer)"
        ) from None


def token_lines(file: Path, *, each: bool = False) -> list[str]:
    r"""Return the lines of a list of tokens, which end at "\n" only.

    Args:
        file: the list.
        each: whether any line may end in "\r\n"; otherwise all lines do, or "\r" is a character of a token.

    Raises:
        CheckpointError: the file is missing, is not UTF-8, mixes line ends, or has a byte order mark, which other
            toolkits read as a part of the first token.
    """
    data = _contents(file)
    if data.startswith(codecs.BOM_UTF8):
        raise CheckpointError(f"{file} begins with a byte order mark (U+FEFF): save it as UTF-8 without one")
    try:
        lines = data.decode().removesuffix("\n").split("\n")
    except UnicodeDecodeError as error:
        raise CheckpointError(f"{file} is not UTF-8 ({error}): copy it again") from None
    if each or all(line.endswith("\r") for line in lines):
        lines = [line.removesuffix("\r") for line in lines]
    if 2 * sum(line.count("\r") for line in lines) > len(lines):
        raise CheckpointError(
            f"{file} has carriage returns in most lines, but not at the end of all: end each line in a line feed only"
        )
    return lines


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
