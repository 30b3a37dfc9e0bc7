"""Tokens of a CTranslate2 model, and the special ones among them.

Vocabularies are lists of tokens in the order of their ids, one for both sides or one each: JSON, or text with a token
a line. Special tokens are fields of config.json, or before version 6 of the format variables of model.bin.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from txport.models.importers.ctranslate2.model_file import ModelFile
from txport.models.importers.settings import Settings, read_json
from txport.runtime.errors import CheckpointError

PADDING = ("<pad>", "<blank>")
_TEXTS = ("unk_token", "bos_token", "eos_token")
_DEFAULTS = {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"}
_CONFIG = "config.json"


@dataclass(frozen=True)
class ModelVocabularies:
    """Tokens by id, and the ids of special ones.

    Attributes:
        source, target: all tokens.
        files: where they were read.
        unk: ids on the source and the target side.
        eos: the id that ends an answer.
        start: the id that the decoder starts from; None if callers choose it.
        prefix, suffix: ids that CTranslate2 puts around a source.
        padding: the id of padding on both sides; None if there is none.
        epsilon: of norms; None for the default.
    """

    source: list[str]
    target: list[str]
    files: tuple[Path, Path]
    unk: tuple[int, int]
    eos: int
    start: int | None
    prefix: tuple[int, ...]
    suffix: tuple[int, ...]
    padding: int | None
    epsilon: float | None

    def id_of(self, token: str, side: str) -> int | None:
        """Return the id of a token, None if a side does not have it."""
        tokens = {"source": self.source, "target": self.target}[side]
        if token in tokens:
            return tokens.index(token)
        return None


def read_vocabularies(directory: Path, model: ModelFile, rows: tuple[int, int]) -> ModelVocabularies:
    """Read vocabularies and special tokens.

    Args:
        directory: with the vocabularies and config.json.
        model: with special tokens, if it is of an old version.
        rows: of the source and the target embeddings.

    Raises:
        CheckpointError: a file is missing or damaged, does not have a token for each row, or lacks a special token.
    """
    settings = _settings(directory, model)
    files = _files(directory)
    unk = settings.get("unk_token", kind=str)
    sides = tuple(_tokens(file, unk, count) for file, count in zip(files, rows, strict=True))
    ids = [{token: index for index, token in reversed(list(enumerate(tokens)))} for tokens in sides]

    def find(field: str, side: int) -> int:
        token = settings.get(field, kind=str)
        if token not in ids[side]:
            raise CheckpointError(f"{files[side]} lacks the token {token!r:.80}, which {settings.file} sets as {field}")
        return ids[side][token]

    def around(name: str) -> tuple[int, ...]:
        if settings.get(f"add_source_{name}", False, bool):
            return (find(f"{name}_token", 0),)
        return ()

    bos = settings.get("bos_token", None)
    start = settings.get("decoder_start_token", bos)
    padding = next((name for name in PADDING if name in ids[0] and ids[0][name] == ids[1].get(name)), None)
    return ModelVocabularies(
        source=sides[0],
        target=sides[1],
        files=files,
        unk=(find("unk_token", 0), find("unk_token", 1)),
        eos=find("eos_token", 1),
        start=None if start is None else find("decoder_start_token", 1),
        prefix=around("bos"),
        suffix=around("eos"),
        padding=None if padding is None else ids[0][padding],
        epsilon=_epsilon(settings),
    )


def _epsilon(settings: Settings) -> float | None:
    value = settings.get("layer_norm_epsilon", None)
    if value is None:
        return None
    return settings.get("layer_norm_epsilon", kind=float)  # type: ignore[no-any-return]


def _settings(directory: Path, model: ModelFile) -> Settings:
    """Return the fields of config.json, and before version 6 the variables of model.bin."""
    file = directory / _CONFIG
    fields: dict[str, Any] = read_json(file, optional=model.version < 6)
    if model.version < 6:
        fields = {**fields, **_old_fields(model)}
    if fields.get("quantization_type") not in (None, 0):
        kind = fields["quantization_type"]
        raise CheckpointError(f"{file}: weights of 4 bits (quantization_type = {kind!r:.80}) are not supported")
    return Settings(file if file.is_file() else model.file, fields)


def _old_fields(model: ModelFile) -> dict[str, Any]:
    fields: dict[str, Any] = {name: _text(model, name) for name in _TEXTS}
    flags = model.attributes
    fields["add_source_bos"] = bool(flags.get("with_source_bos", False))
    fields["add_source_eos"] = bool(flags.get("with_source_eos", False))
    if flags.get("user_decoder_start_tokens", False):
        fields["decoder_start_token"] = None
    else:
        fields["decoder_start_token"] = fields["bos_token" if flags.get("with_target_bos", True) else "eos_token"]
    return fields


def _text(model: ModelFile, name: str) -> str:
    """Return a special token that is a variable of int8 values."""
    stored = model.tensors.pop(name, None)
    if stored is None:
        return _DEFAULTS[name]
    if model.types[name] != torch.int8 or len(stored.shape) != 1 or stored.dtype is not None:
        raise CheckpointError(f"{model.file}: {name} is not a text: copy it again")
    try:
        return bytes(stored.whole().view(torch.uint8).tolist()).decode()
    except UnicodeDecodeError:
        raise CheckpointError(f"{model.file}: {name} is not UTF-8: copy it again") from None


def _files(directory: Path) -> tuple[Path, Path]:
    """Return the vocabularies of both sides, which may be one file; JSON first, as CTranslate2 does."""
    shared, source, target = (
        next((file for end in ("json", "txt") if (file := directory / f"{name}_vocabulary.{end}").is_file()), None)
        for name in ("shared", "source", "target")
    )
    if shared is not None:
        return shared, shared
    if any(directory.glob("source_[0-9]*_vocabulary.*")):
        raise CheckpointError(f"{directory} has vocabularies of several features of a source, which is not supported")
    for found, name in ((source, "source"), (target, "target")):
        if found is None:
            raise CheckpointError(
                f"{directory} has no shared_vocabulary.json (or .txt) and no {name}_vocabulary.json: copy the whole "
                "directory of the model"
            )
    assert source is not None and target is not None
    return source, target


def _tokens(file: Path, unk: str, rows: int) -> list[str]:
    """Return the tokens of a file; the unknown one is appended if it is missing, as CTranslate2 does."""
    tokens = {".json": _listed, ".txt": _lines}[file.suffix](file)
    if unk not in tokens:
        tokens.append(unk)
    if len(tokens) != rows:
        raise CheckpointError(
            f"{file} has {len(tokens)} tokens ({unk} included), but the embedding has {rows} rows: they belong to "
            "different models"
        )
    return tokens


def _listed(file: Path) -> list[str]:
    tokens = read_json(file, kind=list)
    if not all(isinstance(token, str) for token in tokens):
        raise CheckpointError(f"{file} is not a list of tokens: copy it again")
    for token in tokens:
        if not _is_unicode(token):
            raise CheckpointError(f"{file} has the token {token!r:.80}, which is not Unicode: copy it again")
    return list(tokens)


def _lines(file: Path) -> list[str]:
    try:
        text = file.read_bytes().decode()
    except OSError:
        raise CheckpointError(f"{file} cannot be read: copy it again") from None
    except UnicodeDecodeError as error:
        raise CheckpointError(f"{file} is not UTF-8 ({error}): copy it again") from None
    lines = text.removesuffix("\n").split("\n")
    # A token may end in a carriage return; only if all lines do, it belongs to the end of lines.
    if all(line.endswith("\r") for line in lines):
        return [line[:-1] for line in lines]
    return lines


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
