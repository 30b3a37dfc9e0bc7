"""Tokens that were added to a tokenizer of Hugging Face's, from all files that may list them.

A tokenizer's own special tokens, such as </s>, stay text in a text: whoever translates a page about HTML means no end.
"""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import sentencepiece
from txport.models.importers.settings import read_json
from txport.runtime.bundle.tokenizer_schema import AddedToken, AddedTokens
from txport.runtime.errors import CheckpointError

_OWN = ("bos_token", "eos_token", "unk_token", "pad_token", "cls_token", "sep_token")
_OWN_CONTENTS = {"<s>", "</s>", "<pad>", "<unk>"}
_SENTINEL = re.compile(r"<extra_id_\d+>")
_FLAGS = ("special", "lstrip", "rstrip", "single_word", "normalized")


class Around(NamedTuple):
    """Behaviour of a family's tokenizer around added tokens; see `AddedTokens`."""

    rules: Literal["tokenizers", "python"]
    spaces: Literal["dropped", "kept", "kept_before_normalized"] = "dropped"
    prefix: Literal["always", "first"] = "always"
    normalises: bool = True


PYTHON = Around("python", normalises=False)  # Marian, M2M100, SMaLL-100, PLBart, ByT5
MBART = Around("tokenizers", normalises=False)
LIBRARY = Around("tokenizers")  # T5, BART
KEEPS_SPACES = Around("tokenizers", "kept")  # NLLB, mBART-50, Pegasus
SEAMLESS = Around("tokenizers", "kept_before_normalized", "first")


def listed_tokens(directory: Path) -> dict[str, AddedToken]:
    """Return all tokens whose ids the directory states, by their contents.

    Raises:
        CheckpointError: a list is none of tokens and ids.
    """
    special = {token.content for token in _named(directory)}
    listed: dict[str, AddedToken] = {}
    for content, token in read_json(directory / "added_tokens.json", optional=True).items():
        known = content in special
        listed[content] = AddedToken(content, _id(token, directory), special=known, normalized=not known)
    of_json = read_json(directory / "tokenizer.json", optional=True).get("added_tokens") or []
    decoder = read_json(directory / "tokenizer_config.json", optional=True).get("added_tokens_decoder") or {}
    if not isinstance(of_json, list) or not isinstance(decoder, dict):
        raise _damaged(directory)
    for value in of_json:
        token = _token(value, _field(value, "id", directory), directory)
        listed[token.content] = token
    for number, value in decoder.items():
        token = _token(value, int(number) if number.isascii() and number.isdecimal() else -1, directory)
        listed[token.content] = token
    return listed


def added_tokens(
    directory: Path, vocabulary: Mapping[str, int], rows: int, around: Around, languages: Collection[int] = ()
) -> AddedTokens | None:
    """Return the tokens that texts contain as a whole; None if there are none.

    Args:
        directory: of the model.
        vocabulary: ids of pieces, for special tokens whose ids no list states.
        rows: of the smaller embedding. Special tokens beyond it are left out, as models came with such.
        around: what happens to the text around them.
        languages: ids of languages, which answers never show.

    Raises:
        CheckpointError: a list is damaged, or has a token beyond the embedding.
    """
    named = {token.content: token for token in _named(directory) if token.content in vocabulary}
    listed = {content: replace(token, id=vocabulary[content]) for content, token in named.items()}
    listed |= listed_tokens(directory)
    own = _OWN_CONTENTS | {token.content for token in _named(directory, _OWN)}
    masks = str(read_json(directory / "config.json", optional=True).get("model_type")).endswith("t5")
    tokens = []
    for token in listed.values():
        if token.content in own or not token.content or (masks and _SENTINEL.fullmatch(token.content)):
            continue
        if token.id < rows:
            hidden = token.special or token.id in languages
            normalized = token.normalized and around.normalises
            tokens.append(replace(token, special=hidden, normalized=normalized))
        elif not token.special:
            raise CheckpointError(
                f"{directory} adds the token {token.content!r} with the id {token.id}, but the embedding has {rows} "
                "rows: resize the model's embeddings (resize_token_embeddings), or give --no-tokenizer"
            )
    if not tokens:
        return None
    tokens = sorted(tokens, key=lambda token: token.id)
    return AddedTokens(tuple(tokens), around.rules, around.spaces, around.prefix)


def with_added(
    table: Sequence[str | None], model: bytes, added: AddedTokens | None, separate: bool = False
) -> list[str | None]:
    """Return pieces by id with the added tokens, as answers show them; None for those that answers do not show.

    Args:
        table: the pieces of the model.
        model: the SentencePiece model, which normalises the tokens that are searched for in normalised texts.
        added: the tokens.
        separate: the side has a vocabulary of its own, whose pieces stay what they are.
    """
    if added is None:
        return list(table)
    pieces = list(table)
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    for token in added.tokens:
        pieces += [None] * (token.id + 1 - len(pieces))
        if separate and pieces[token.id] is not None:
            continue
        if token.content in pieces:
            pieces[pieces.index(token.content)] = None
        if token.normalized:
            normal = str(processor.normalize(token.content)).replace("\u2581", " ").strip()
        else:
            normal = ""
        # A piece that is a token only as a whole word is still a part of other words.
        hidden = token.special and not (token.single_word and token.content in table[token.id : token.id + 1])
        pieces[token.id] = None if hidden else token.content if normal in ("", *pieces) else normal
    while pieces and pieces[-1] is None and len(pieces) > len(table):
        pieces.pop()
    return pieces


def _named(directory: Path, names: Sequence[str] | None = None) -> Iterator[AddedToken]:
    """Yield the special tokens of the directory, by name, all or those of `names`; their ids are not stated here."""
    for file in ("tokenizer_config.json", "special_tokens_map.json"):
        for name, value in read_json(directory / file, optional=True).items():
            if names is not None and name not in names:
                continue
            if not name.endswith("_token") and name not in ("additional_special_tokens", "extra_special_tokens"):
                continue
            for item in _items(value):
                yield from _special(item)


def _items(value: Any) -> list[Any]:
    """Return the tokens of a field: one, a list, or an object of names and tokens."""
    if isinstance(value, dict) and "content" not in value:
        return list(value.values())
    if isinstance(value, list):
        return value
    return [value]


def _special(value: Any) -> Iterator[AddedToken]:
    if isinstance(value, str):
        yield AddedToken(value, -1, special=True)
    elif isinstance(value, dict) and isinstance(value.get("content"), str):
        flags = {name: bool(value.get(name, False)) for name in _FLAGS} | {"special": True}
        yield AddedToken(value["content"], -1, **flags)


def _token(value: Any, number: Any, directory: Path) -> AddedToken:
    content = _field(value, "content", directory)
    if not isinstance(content, str):
        raise _damaged(directory)
    flags = {name: bool(value.get(name, False)) for name in _FLAGS}
    if "normalized" not in value:
        flags["normalized"] = not flags["special"]
    return AddedToken(content, _id(number, directory), **flags)


def _field(value: Any, name: str, directory: Path) -> Any:
    if not isinstance(value, dict) or name not in value:
        raise _damaged(directory)
    return value[name]


def _id(value: Any, directory: Path) -> int:
    if type(value) is not int or value < 0:
        raise _damaged(directory)
    return value


def _damaged(directory: Path) -> CheckpointError:
    return CheckpointError(
        f"{directory} has a list of added tokens that is none of tokens and ids (added_tokens.json, tokenizer.json or "
        "tokenizer_config.json): save the tokenizer again, or give --no-tokenizer"
    )
