"""SentencePiece models beside a checkpoint. Ids are those of the models, or those of dictionaries of tokens."""

from collections.abc import Sequence
from pathlib import Path

from txport.models.config import Config
from txport.models.importers.imported import ImportOptions, TokenizerParts
from txport.models.importers.tokenizers.languages import refuse_languages
from txport.models.importers.tokenizers.pieces import completed, pieces_of
from txport.models.importers.tokenizers.vocabulary import read_bytes, vocabulary_bytes
from txport.runtime.bundle.tokenizer_schema import Placeholder, TokenizerDescription, TokenizerFiles, plain
from txport.runtime.errors import CheckpointError

_SHARED = ("shared.model", "sentencepiece.bpe.model", "spm.model")


def own_sentencepiece(directory: Path, options: ImportOptions, config: Config) -> TokenizerParts:
    """Return shared.model, or source.model and target.model, from --vocabulary or from the model's directory.

    Raises:
        CheckpointError: they are missing, or have more pieces than the embeddings have rows.
        InputError: a language is chosen, but there are none.
    """
    refuse_languages(options, directory)
    place = options.vocabulary or directory
    if (place / "shared.model").is_file():
        names = ["shared.model"] * 2
    else:
        names = ["source.model", "target.model"]
    files = {name: read_bytes(place / name) for name in names}
    for name, rows in zip(names, (config.source_vocabulary, config.target_vocabulary), strict=True):
        if (count := len(pieces_of(files[name], place / name))) > rows:
            raise CheckpointError(
                f"{place / name} has {count} pieces, but its embedding has {rows} rows: it belongs to another model"
            )
    return TokenizerParts(plain(f"tokenizer/{names[0]}", f"tokenizer/{names[1]}", config.eos_id), files)


def find_sentencepiece(place: Path, source: str, target: str) -> tuple[Path, Path]:
    """Return the SentencePiece models of source and target, which may be the same file, by their usual names.

    Args:
        place: the directory.
        source: source language, for spm.<language>.model.
        target: target language.

    Raises:
        CheckpointError: there is no model, or the names do not show which side a model is for.
    """
    for pair in ((f"spm.{source}.model", f"spm.{target}.model"), ("source.model", "target.model")):
        if all((place / name).is_file() for name in pair):
            return place / pair[0], place / pair[1]
    models = [place / name for name in _SHARED if (place / name).is_file()] or sorted(place.glob("*.model"))
    if len(models) != 1:
        raise CheckpointError(
            f"{place} has {len(models) or 'no'} SentencePiece models: there must be one for both sides (shared.model), "
            "or source.model and target.model; if the model's tokens are not SentencePiece's, give --no-tokenizer"
        )
    return models[0], models[0]


def dictionary_tokenizer(
    tables: Sequence[list[str | None]], models: tuple[Path, Path], suffix: tuple[int | Placeholder, ...]
) -> TokenizerParts:
    """Combine dictionaries and SentencePiece models.

    Args:
        tables: source tokens and target tokens by id; None for special ones.
        models: the model files.
        suffix: ids after each source text.

    Raises:
        CheckpointError: a dictionary has tokens that are not pieces of the model, or a duplicate.
    """
    files: dict[str, bytes] = {}
    for side, table, file in zip(("source", "target"), tables, models, strict=True):
        model = read_bytes(file)
        pieces = pieces_of(model, file)
        tokens = [token for token in table if token is not None]
        if len(set(tokens)) != len(tokens):
            raise CheckpointError(f"the dictionary of the {side} side has a token twice: give --no-tokenizer")
        # Dictionaries omit rare pieces, but one with less than half of the pieces belongs to another tokenizer.
        if len(set(tokens) & set(pieces)) * 2 < len(pieces):
            raise CheckpointError(
                f"{file} has {len(pieces)} pieces, of which few are in the {side} dictionary: it is not the tokenizer "
                "of this model; give --no-tokenizer, and ids"
            )
        files[f"{side}.model"] = completed(model, pieces, tokens)
        files[f"{side}.vocabulary.json"] = vocabulary_bytes(table)
    source, target = (
        TokenizerFiles(f"tokenizer/{s}.model", f"tokenizer/{s}.vocabulary.json") for s in ("source", "target")
    )
    return TokenizerParts(TokenizerDescription("sentencepiece", source, target, (), suffix, (), None), files)
