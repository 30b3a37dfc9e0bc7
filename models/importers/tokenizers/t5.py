"""Tokenizers of the T5 family and of Pegasus: SentencePiece with special ids, bytes, or byte-level BPE."""

import json
import re
import struct
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import sentencepiece
from txport.models.config import Config
from txport.models.importers.huggingface import HuggingFaceModel
from txport.models.importers.imported import ImportOptions, TokenizerParts
from txport.models.importers.settings import tokenizer_settings
from txport.models.importers.tokenizers.added_tokens import (
    KEEPS_SPACES,
    LIBRARY,
    PYTHON,
    Around,
    added_tokens,
    with_added,
)
from txport.models.importers.tokenizers.byte_level import byte_level_tokenizer
from txport.models.importers.tokenizers.languages import chosen_language, refuse_languages
from txport.models.importers.tokenizers.multilingual import SharedTokenizer, described
from txport.models.importers.tokenizers.pieces import pieces_of
from txport.models.importers.tokenizers.unigram import sentencepiece_of
from txport.models.importers.tokenizers.vocabulary import read_bytes, vocabulary_bytes
from txport.runtime.bundle.tokenizer_schema import (
    AddedToken,
    AddedTokens,
    Languages,
    TokenizerDescription,
    TokenizerFiles,
    ids_only,
)
from txport.runtime.errors import CheckpointError

SPM = ("spiece.model", "spm.model", "sentencepiece.model")
_JSON = "tokenizer.json"
# Target language at the beginning of a source text, as in MADLAD and fine-tuned mT5.
_LANGUAGE = re.compile(r"<2([A-Za-z][A-Za-z0-9_-]*)>")
_PEGASUS_OFFSET = 103


def t5_tokenizer(model: HuggingFaceModel, ours: Config, options: ImportOptions) -> tuple[Config, TokenizerParts]:
    """Return the tokenizer, whose kind does not depend on the architecture, and the config with its unknown id.

    Raises:
        CheckpointError: files are missing, damaged or of another model.
        InputError: the model does not support a chosen language.
    """
    tokenizer_class = str(tokenizer_settings(model.directory).optional("tokenizer_class", str))
    if not options.tokenizer:
        return ours, TokenizerParts(ids_only(ours.eos_id))
    if "ByT5" in tokenizer_class:
        refuse_languages(options, model.directory)
        return ours, _bytes(model, ours)
    if spm := next((model.directory / name for name in SPM if (model.directory / name).is_file()), None):
        return _sentencepiece(spm, read_bytes(spm), ours, options)
    if (model.directory / "merges.txt").is_file():
        refuse_languages(options, model.directory)
        return ours, _byte_level(model, ours)
    file, spm_of_json = json_sentencepiece(model.directory)
    if spm_of_json is not None:
        return _sentencepiece(file, spm_of_json, ours, options)
    return ours, _of_tokenizers(model, ours, options)


def pegasus_tokenizer(model: HuggingFaceModel, ours: Config, options: ImportOptions) -> TokenizerParts:
    """Return Pegasus' tokenizer: ids of SentencePiece pieces follow those of mask tokens.

    Raises:
        CheckpointError: the file is missing or of another model.
        InputError: a language is chosen.
    """
    if not options.tokenizer:
        return TokenizerParts(ids_only(ours.eos_id))
    refuse_languages(options, model.directory)
    spm = model.directory / SPM[0]
    if not spm.is_file() and (model.directory / _JSON).is_file():
        file, spm_of_json = json_sentencepiece(model.directory)
        if spm_of_json is None:
            return _of_tokenizers(model, ours, options)
        return sentencepiece_parts(file, spm_of_json, without_special(spm_of_json, file), ours, KEEPS_SPACES)
    data = read_bytes(spm)
    table = without_special(data, spm)
    settings = tokenizer_settings(model.directory)
    offset = settings.get("offset", _PEGASUS_OFFSET, int)
    if not 0 <= offset <= ours.source_vocabulary:
        raise CheckpointError(
            f"{settings.file}: offset must be between 0 and the {ours.source_vocabulary} rows of the embedding, "
            f"not {offset}"
        )
    return sentencepiece_parts(spm, data, [*[None] * offset, *table], ours, KEEPS_SPACES)


def _sentencepiece(spm: Path, data: bytes, ours: Config, options: ImportOptions) -> tuple[Config, TokenizerParts]:
    table = without_special(data, spm)
    processor = sentencepiece.SentencePieceProcessor(model_proto=data)
    ids = {match[1]: i for i, piece in enumerate(table) if (match := _LANGUAGE.fullmatch(piece or ""))}
    chosen_language(options.source_language, {}, "source", spm.parent)
    default = chosen_language(options.target_language, ids, "target", spm.parent, required=bool(ids))
    if ids:
        languages = Languages({}, ids, None, default, True, ("<2", ">"))
    else:
        languages = None
    before: tuple[int, ...] = ()
    if ids and spm.name != _JSON:  # `tokenizers` finds language tokens before it splits words
        name, token = next(iter(ids.items()))
        before = tuple(int(i) for i in processor.encode(f"<2{name}>") if i != token)  # the "▁" that begins a text
    for name in ids:
        table[ids[name]] = None
    parts = sentencepiece_parts(spm, data, table, ours, LIBRARY, before, languages)
    if languages is not None:  # language tokens inside a text also become ids
        language_tokens = tuple(AddedToken(f"<2{name}>", token, special=True) for name, token in ids.items())
        added = parts.description.added or AddedTokens((), "tokenizers")
        other_tokens = (token for token in added.tokens if token.id not in ids.values())
        added = replace(added, tokens=(*language_tokens, *other_tokens))
        parts = replace(parts, description=replace(parts.description, added=added))
    return replace(ours, unk_id=int(processor.unk_id())), parts


def without_special(data: bytes, spm: Path) -> list[str | None]:
    """Return pieces by SentencePiece's ids; None for special ones."""
    pieces: Sequence[str] = pieces_of(data, spm)
    processor = sentencepiece.SentencePieceProcessor(model_proto=data)
    special = (processor.is_control, processor.is_unknown, processor.is_unused)
    return [None if any(each(i) for each in special) else piece for i, piece in enumerate(pieces)]


def sentencepiece_parts(
    spm: Path,
    data: bytes,
    table: list[str | None],
    ours: Config,
    around: Around,
    before: tuple[int, ...] = (),
    languages: Languages | None = None,
) -> TokenizerParts:
    """Return a SentencePiece tokenizer. `table` contains the pieces by the model's ids; None for special ones.

    Raises:
        CheckpointError: there are more ids than rows of the embedding, or added tokens do not fit.
    """
    rows = ours.vocabularies.source
    if len(table) > rows:
        raise CheckpointError(
            f"{spm} gives ids up to {len(table) - 1}, but the embedding has {rows} rows: "
            "it belongs to another model; find the right file, or give --no-tokenizer"
        )
    vocabulary = {piece: token for token, piece in enumerate(table) if piece is not None}
    added = added_tokens(spm.parent, vocabulary, rows, around, size=len(table))
    table = with_added(table, data, added)
    names = TokenizerFiles("tokenizer/shared.model", "tokenizer/vocabulary.json")
    files = {"shared.model": data, "vocabulary.json": vocabulary_bytes(table)}
    tokenizer = SharedTokenizer("sentencepiece", names, files, {}, added)
    if languages:
        prefix = (*before, "target_language")
    else:
        prefix = ()
    return described(tokenizer, prefix, (ours.eos_id,), (), languages)  # type: ignore[arg-type]


def _bytes(model: HuggingFaceModel, ours: Config) -> TokenizerParts:
    """Return ByT5's tokenizer (Xue et al. 2021, arXiv:2105.13626): the id of a byte is its value plus 3."""
    if ours.source_vocabulary < 259:
        raise CheckpointError(
            f"{model.directory}: bytes need an embedding of 259 rows, not {ours.source_vocabulary}: give --no-tokenizer"
        )
    added = added_tokens(model.directory, {}, ours.source_vocabulary, PYTHON)
    return TokenizerParts(TokenizerDescription("bytes", None, None, (), (ours.eos_id,), (), None, added))


def _byte_level(model: HuggingFaceModel, ours: Config) -> TokenizerParts:
    """Return CodeT5's tokenizer (Wang et al. 2021, arXiv:2109.00859): <s> text </s>."""
    data = byte_level_tokenizer(model.directory, ours.source_vocabulary)
    names = TokenizerFiles("tokenizer/tokenizer.json", None)
    tokenizer = SharedTokenizer("tokenizers", names, {"tokenizer.json": data}, {})
    return described(tokenizer, (model.token("bos_token_id"),), (ours.eos_id,), (), None)


def json_sentencepiece(directory: Path) -> tuple[Path, bytes | None]:
    """Return tokenizer.json, the only file of transformers 5, and its SentencePiece model, if it can be converted.

    Raises:
        CheckpointError: it is missing or damaged.
    """
    file = directory / _JSON
    if not file.is_file():
        raise CheckpointError(f"{directory} holds neither {SPM[0]} nor {_JSON}: copy it too, or give --no-tokenizer")
    try:
        return file, sentencepiece_of(read_bytes(file))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, struct.error) as error:
        raise CheckpointError(f"{file} is not a tokenizer ({error!r}): copy it again, or give --no-tokenizer") from None


def _of_tokenizers(model: HuggingFaceModel, ours: Config, options: ImportOptions) -> TokenizerParts:
    """Return a tokenizer.json that is not a SentencePiece model. Byte-level BPE, as in CodeT5, also works in C++."""
    directory = model.directory
    refuse_languages(options, directory)
    data = byte_level_tokenizer(directory, ours.source_vocabulary)
    value = json.loads(data)
    if (value.get("post_processor") or {}).get("type") == "RobertaProcessing":
        return _byte_level(model, ours)
    if value["model"].get("type") != "BPE":
        model.notes.append(f"{_JSON} is not what SentencePiece does: texts need Python, or {SPM[0]} beside it")
    names = TokenizerFiles("tokenizer/tokenizer.json", None)
    return described(SharedTokenizer("tokenizers", names, {_JSON: data}, {}), (), (ours.eos_id,), (), None)
