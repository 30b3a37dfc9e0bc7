"""Byte-level BPE of GPT-2 and BART as a tokenizer.json of the `tokenizers` library."""

import json
from pathlib import Path

from txport.models.importers.tokenizers.added_tokens import LIBRARY, added_tokens, check_ids
from txport.models.importers.tokenizers.vocabulary import read_bytes, read_vocabulary, token_lines
from txport.runtime.errors import CheckpointError
from txport.runtime.libraries import needs

_SPECIAL = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")


def byte_level_tokenizer(directory: Path, rows: int) -> bytes:
    """Return the directory's tokenizer.json, or convert vocab.json and merges.txt to one.

    Raises:
        CheckpointError: neither exists, or it belongs to another model.
        MissingLibrary: conversion needs `tokenizers`, which is not installed.
    """
    file = directory / "tokenizer.json"
    if file.is_file():
        data = read_bytes(file)
    else:
        file = directory / "vocab.json"
        data = _tokenizer_json(directory, rows)
    try:
        value = json.loads(data)
        pieces = value["model"]["vocab"]  # an object with ids, or a list in the order of ids
        if isinstance(pieces, dict):
            vocabulary = pieces
        else:
            vocabulary = {piece: i for i, (piece, _) in enumerate(pieces)}
        largest = max(*vocabulary.values(), *(token["id"] for token in value["added_tokens"]))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CheckpointError(f"{file} is not a byte-level tokenizer ({error!r}): give --no-tokenizer") from None
    if largest >= rows:
        raise CheckpointError(
            f"{file} has ids up to {largest}, but the embedding has {rows} rows: "
            "they belong to different models; find the right file, or give --no-tokenizer"
        )
    check_ids(directory, vocabulary, rows, renumbered=True)
    return data


def _tokenizer_json(directory: Path, rows: int) -> bytes:
    with needs("import"):
        from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    vocabulary = read_vocabulary(directory / "vocab.json", rows)
    added = added_tokens(directory, vocabulary, rows, LIBRARY)
    tokens = () if added is None else added.tokens
    vocabulary |= {token.content: token.id for token in tokens}
    merges = _merges(directory / "merges.txt")
    try:
        tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    except Exception as error:  # the library raises no special type
        raise CheckpointError(
            f"{directory / 'merges.txt'} does not fit vocab.json ({error}): copy both again"
        ) from None
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = [AddedToken(token, special=True, normalized=False) for token in _SPECIAL if token in vocabulary]
    tokenizer.add_special_tokens(special)
    for token in tokens:
        flags = {name: getattr(token, name) for name in ("lstrip", "rstrip", "single_word", "normalized", "special")}
        (tokenizer.add_special_tokens if token.special else tokenizer.add_tokens)([AddedToken(token.content, **flags)])
    return str(tokenizer.to_str()).encode()


def _merges(file: Path) -> list[tuple[str, str]]:
    lines = token_lines(file, each=True)
    pairs = [tuple(line.split(" ")) for line in lines if line and not line.startswith("#version")]
    if any(len(pair) != 2 for pair in pairs):
        raise CheckpointError(f"{file} is not a list of merges: copy it again, or give --no-tokenizer")
    return pairs  # type: ignore[return-value]
