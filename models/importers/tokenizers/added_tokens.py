"""Added tokens of Hugging Face tokenizers, from all files that may list them.

Special tokens of the tokenizer itself, such as </s>, are treated as plain text in a text: a </s> in a page about HTML
does not end a sequence.
"""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import sentencepiece
from txport.models.importers.settings import read_json, tokenizer_settings
from txport.runtime.bundle.tokenizer_schema import AddedToken, AddedTokens
from txport.runtime.errors import CheckpointError

_SPECIAL_FIELDS = ("bos_token", "eos_token", "unk_token", "pad_token", "cls_token", "sep_token")
_OWN_CONTENTS = {"<s>", "</s>", "<pad>", "<unk>"}
_SENTINEL = re.compile(r"<extra_id_\d+>")
_MASKS = {"pegasus": re.compile(r"<(mask_1|unk_\d+)>")}
_SENTINELS = 100  # default of T5; extra_ids of tokenizer_config.json overrides it
_LISTS = ("additional_special_tokens", "extra_special_tokens")
# NLLB has eng_Latn, mBART en_XX, M2M100 __en__, SeamlessM4T __eng__ and __cmn_Hant__, PLBart __en_XX__.
_CODE = re.compile(r"__([A-Za-z_]+)__|([a-z]{3}_[A-Z][a-z]{3}|[a-z]{2}_[A-Z]{2})")
_FLAGS = ("special", "lstrip", "rstrip", "single_word", "normalized")


class Around(NamedTuple):
    """Treatment of text around added tokens by a family of tokenizers; see `AddedTokens`."""

    rules: Literal["tokenizers", "python"]
    spaces: Literal["dropped", "kept", "kept_before_normalized"] = "dropped"
    prefix: Literal["always", "first"] = "always"
    normalises: bool = True


PYTHON = Around("python", normalises=False)  # Marian, M2M100, SMaLL-100, PLBart, ByT5
MBART = Around("tokenizers", normalises=False)
LIBRARY = Around("tokenizers")  # T5, BART
KEEPS_SPACES = Around("tokenizers", "kept")  # NLLB, mBART-50, Pegasus
SEAMLESS = Around("tokenizers", "kept_before_normalized", "first")


def language_of(content: str) -> str | None:
    """Return the language that a token stands for; None for other tokens."""
    match = _CODE.fullmatch(content)
    if match:
        return match[1] or match[2]
    return None


def listed_tokens(directory: Path) -> dict[str, AddedToken]:
    """Return all tokens with ids in the directory's files, by their text.

    Raises:
        CheckpointError: a list does not contain tokens and ids.
    """
    special = {token.content for token in _described_tokens(directory)}
    tokens: dict[str, AddedToken] = {}
    for content, token in read_json(directory / "added_tokens.json", optional=True).items():
        is_special = content in special
        tokens[content] = AddedToken(content, _id(token, directory), special=is_special, normalized=not is_special)
    of_json = read_json(directory / "tokenizer.json", optional=True).get("added_tokens") or []
    decoder = read_json(directory / "tokenizer_config.json", optional=True).get("added_tokens_decoder") or {}
    if not isinstance(of_json, list) or not isinstance(decoder, dict):
        raise _list_error(directory)
    for value in of_json:
        token = _token(value, _field(value, "id", directory), directory)
        tokens[token.content] = token
    for number, value in decoder.items():
        token = _token(value, int(number) if number.isascii() and number.isdecimal() else -1, directory)
        tokens[token.content] = token
    return tokens


def added_tokens(
    directory: Path,
    vocabulary: Mapping[str, int],
    rows: int,
    around: Around,
    languages: Collection[int] = (),
    size: int = 0,
) -> AddedTokens | None:
    """Return the tokens that are searched for in texts as a whole; None if there are none.

    Args:
        directory: of the model.
        vocabulary: ids of pieces, for special tokens without an id in the files.
        rows: size of the smaller embedding. Special tokens beyond it, which some published models have, are ignored.
        around: treatment of the text around the tokens.
        languages: ids of languages, which never appear in output text.
        size: number of pieces of the model, which may be more than `vocabulary` contains.

    Raises:
        CheckpointError: a list is damaged, has a token beyond the embedding, or does not determine all ids.
    """
    check_ids(directory, vocabulary, rows, languages, size, renumbered=around.rules == "tokenizers")
    described = {token.content: token for token in _described_tokens(directory) if token.content in vocabulary}
    candidates = {content: replace(token, id=vocabulary[content]) for content, token in described.items()}
    candidates |= listed_tokens(directory)
    special, masks = _special_contents(directory), _masks(directory)
    tokens = []
    for token in candidates.values():
        if token.content in special or not token.content or (masks is _SENTINEL and masks.fullmatch(token.content)):
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


def check_ids(
    directory: Path,
    vocabulary: Mapping[str, int],
    rows: int,
    languages: Collection[int] = (),
    size: int = 0,
    *,
    renumbered: bool,
) -> None:
    """Check that added tokens have the ids that transformers would give them.

    Depending on the family and the file, transformers gives the next free ids to special tokens without one, or drops
    them. The library `tokenizers` also renumbers all tokens after a gap.

    Args:
        directory: of the model.
        vocabulary: pieces and their ids.
        rows: size of the embedding; ids beyond it are ignored.
        languages: ids of languages.
        size: number of pieces of the model, which may be more than `vocabulary` contains.
        renumbered: whether tokens after a gap are renumbered.

    Raises:
        CheckpointError: a special token has no id, or there is a gap between the ids.
    """
    tokens, masks = listed_tokens(directory), _masks(directory)
    contents = {*vocabulary, *tokens, *_special_contents(directory)}
    for content in (token.content for token in _described_tokens(directory, _LISTS)):
        if content not in contents and not (masks and masks.fullmatch(content)) and language_of(content) is None:
            raise CheckpointError(
                f"{directory} has the special token {content!r} without an id: write its id into "
                "added_tokens.json, remove it from tokenizer_config.json and special_tokens_map.json, or give "
                "--no-tokenizer"
            )
    first = max(size, 1 + max(vocabulary.values(), default=-1))
    if renumbered and (gap := _gap(directory, first, rows, languages)):
        raise CheckpointError(
            f"{directory} adds the token {gap[1]!r} behind the id {gap[0]}, which no token has: transformers 5 gives "
            "it another id; add tokens for the ids between, or give --no-tokenizer"
        )


def _gap(directory: Path, first: int, rows: int, languages: Collection[int]) -> tuple[int, str] | None:
    """Return the first unused id, at least `first`, and the next token after it; None if there is no gap."""
    tokens = listed_tokens(directory)
    used_ids = {token.id for token in tokens.values()} | set(languages)
    if _masks(directory) is _SENTINEL and "<extra_id_0>" not in tokens:
        count = tokenizer_settings(directory).get("extra_ids", _SENTINELS, int)
        used_ids |= set(range(first, first + min(count, rows)))
    last = max((token for token in used_ids if token < rows), default=0)
    gaps = sorted(set(range(first, last)) - used_ids)
    if gaps and gaps[0] - 1 in languages and "<mask>" not in tokens:
        gaps = gaps[1:]  # reserved for <mask>
    behind = {token.id: token.content for token in tokens.values() if gaps and token.id > gaps[0]}
    if behind:
        return (gaps[0], behind[min(behind)])
    return None


def _special_contents(directory: Path) -> set[str]:
    """Return the special tokens of the tokenizer itself."""
    return _OWN_CONTENTS | {token.content for token in _described_tokens(directory, _SPECIAL_FIELDS)}


def _masks(directory: Path) -> re.Pattern[str] | None:
    """Return a pattern for mask tokens of pre-training, which do not occur in texts."""
    kind = str(read_json(directory / "config.json", optional=True).get("model_type"))
    if kind.endswith("t5"):
        return _SENTINEL
    return _MASKS.get(kind)


def with_added(
    table: Sequence[str | None], model: bytes, added: AddedTokens | None, separate: bool = False
) -> list[str | None]:
    """Return the text of all pieces in outputs, by id, with added tokens; None for pieces that are not shown.

    Args:
        table: pieces of the model.
        model: SentencePiece model, for normalising tokens that are searched for in normalised text.
        added: the added tokens.
        separate: whether this side has a separate vocabulary, whose pieces do not change.
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
        # A token that matches only whole words is still a normal piece inside other words.
        hidden = token.special and not (token.single_word and token.content in table[token.id : token.id + 1])
        pieces[token.id] = None if hidden else token.content if normal in ("", *pieces) else normal
    while pieces and pieces[-1] is None and len(pieces) > len(table):
        pieces.pop()
    return pieces


def _described_tokens(directory: Path, names: Sequence[str] | None = None) -> Iterator[AddedToken]:
    """Yield special tokens of the directory by their names: all, or those in `names`. They have no ids yet."""
    for file in ("tokenizer_config.json", "special_tokens_map.json"):
        for name, value in read_json(directory / file, optional=True).items():
            if names is not None and name not in names:
                continue
            if not name.endswith("_token") and name not in _LISTS:
                continue
            for item in tokens_in(value):
                yield from _special(item)


def tokens_in(value: Any) -> list[Any]:
    """Return the tokens of a field, which may be one token, a list, or an object with tokens as values."""
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
        raise _list_error(directory)
    flags = {name: bool(value.get(name, False)) for name in _FLAGS}
    if "normalized" not in value:
        flags["normalized"] = not flags["special"]
    return AddedToken(content, _id(number, directory), **flags)


def _field(value: Any, name: str, directory: Path) -> Any:
    if not isinstance(value, dict) or name not in value:
        raise _list_error(directory)
    return value[name]


def _id(value: Any, directory: Path) -> int:
    if type(value) is not int or value < 0:
        raise _list_error(directory)
    return value


def _list_error(directory: Path) -> CheckpointError:
    return CheckpointError(
        f"{directory} has a list of added tokens that is none of tokens and ids (added_tokens.json, tokenizer.json or "
        "tokenizer_config.json): save the tokenizer again, or give --no-tokenizer"
    )
