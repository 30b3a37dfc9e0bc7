"""Tokenizers of multilingual models: SentencePiece pieces in fairseq's order of ids, with language tokens around texts.

The first ids are <s>, <pad>, </s>, <unk>. Then follow SentencePiece's pieces, then the languages. The pieces of NLLB
and mBART are listed only in the SentencePiece model; M2M100 has vocab.json.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from txport.models.config import Config
from txport.models.importers.huggingface import HuggingFaceModel
from txport.models.importers.imported import ImportOptions, TokenizerParts
from txport.models.importers.tokenizers.added_tokens import LIBRARY, Around, added_tokens, with_added
from txport.models.importers.tokenizers.languages import all_languages, chosen_language, languages_in_files
from txport.models.importers.tokenizers.pieces import completed, pieces_of
from txport.models.importers.tokenizers.vocabulary import by_id, read_bytes, read_vocabulary, vocabulary_bytes
from txport.runtime.bundle.tokenizer_schema import (
    AddedTokens,
    Languages,
    Placeholder,
    TokenizerDescription,
    TokenizerFiles,
)
from txport.runtime.errors import CheckpointError

SPECIAL = ("<s>", "<pad>", "</s>", "<unk>")
UNK = 3
SPM = "sentencepiece.bpe.model"

Affix = tuple[int | Placeholder, ...]


@dataclass(frozen=True)
class SharedTokenizer:
    """Files of a tokenizer for both sides, by their names in the folder `tokenizer`, and ids of its languages."""

    kind: Literal["sentencepiece", "tokenizers"]
    names: TokenizerFiles
    files: Mapping[str, bytes]
    languages: dict[str, int]
    added: AddedTokens | None = None


def sentencepiece_files(directory: Path, rows: int, codes: str, around: Around) -> SharedTokenizer:
    """Return the tokenizer of a directory: its SentencePiece model, otherwise tokenizer.json (Python only).

    Args:
        directory: of the model.
        rows: size of the embedding.
        codes: language codes, for a directory that does not list them.
        around: treatment of the text around added tokens.

    Raises:
        CheckpointError: files are missing or belong to another model.
    """
    spm = directory / SPM
    vocab = directory / "vocab.json"
    json = directory / "tokenizer.json"
    if not spm.is_file() and not vocab.is_file() and json.is_file():
        names = TokenizerFiles("tokenizer/tokenizer.json", None)
        files = {"tokenizer.json": read_bytes(json)}
        languages = languages_in_files(directory)
        return _check_tokenizer(SharedTokenizer("tokenizers", names, files, languages), rows, directory)
    model = read_bytes(spm)
    model_pieces = pieces_of(model, spm)
    if vocab.is_file():
        table = read_vocabulary(vocab, rows)
        pieces = by_id(table, SPECIAL)
        after = len(table)
    else:
        # SentencePiece puts <unk>, <s> and </s> first, fairseq four special tokens of its own: ids shift by one.
        pieces = [*(None for _ in SPECIAL), *model_pieces[3:]]
        after = len(model_pieces) + 1
        table = {piece: token for token, piece in enumerate(pieces) if piece is not None}
    if len(pieces) > rows:
        raise CheckpointError(
            f"{spm} has {len(model_pieces)} pieces, but the embedding has {rows} rows: it belongs to another model"
        )
    languages = all_languages(directory, after, codes, rows)
    added = added_tokens(directory, table, rows, around, languages.values())
    pieces = with_added(pieces, model, added)
    # SentencePiece can decode only pieces of its model, so pieces that only vocab.json contains are appended.
    completed_model = completed(model, model_pieces, [piece for piece in pieces if piece is not None])
    names = TokenizerFiles("tokenizer/shared.model", "tokenizer/vocabulary.json")
    files = {"shared.model": completed_model, "vocabulary.json": vocabulary_bytes(pieces)}
    return _check_tokenizer(SharedTokenizer("sentencepiece", names, files, languages, added), rows, directory)


def _check_tokenizer(tokenizer: SharedTokenizer, rows: int, directory: Path) -> SharedTokenizer:
    for name, token in tokenizer.languages.items():
        if not 0 <= token < rows:
            raise CheckpointError(
                f"{directory} gives the language {name} the id {token}, but the embedding has {rows} rows: "
                "the tokenizer belongs to another model; find the right one, or give --no-tokenizer"
            )
    return tokenizer


def described(
    tokenizer: SharedTokenizer, prefix: Affix, suffix: Affix, forced: Affix, languages: Languages | None
) -> TokenizerParts:
    """Combine files and affixes."""
    names = tokenizer.names
    description = TokenizerDescription(tokenizer.kind, names, names, prefix, suffix, forced, languages, tokenizer.added)
    return TokenizerParts(description, tokenizer.files)


def without_tokenizer(model: HuggingFaceModel, ours: Config, options: ImportOptions, codes: str) -> TokenizerParts:
    """Return a tokenizer for token ids only. Forced ids at the beginning of outputs stay, since the model needs them.

    A chosen target language is forced, otherwise the config's forced id.

    Raises:
        InputError: the language is unknown.
        CheckpointError: a language is chosen, and no file contains its id.
    """
    prefix = model.forced_start(ours.target_vocabulary)
    if options.target_language is not None:
        try:
            table = sentencepiece_files(model.directory, ours.source_vocabulary, codes, LIBRARY).languages
        except CheckpointError as error:
            raise CheckpointError(f"{error} (--target-language needs it, even with --no-tokenizer)") from None
        chosen_language(options.target_language, table, "target", model.directory, required=True)
        prefix = (table[options.target_language],)
    if not prefix:
        model.notes.append("no target language is forced: give --target-language, or a prefix with each call")
    return TokenizerParts(TokenizerDescription("none", None, None, (), (ours.eos_id,), prefix, None))
