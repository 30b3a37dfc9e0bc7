"""Tokenizers of toolkits that keep a dictionary of tokens, made by SentencePiece, apart from SentencePiece's model."""

from collections.abc import Sequence
from pathlib import Path

from txport.models.importers.huggingface import read_bytes
from txport.models.importers.imported import TokenizerParts
from txport.models.importers.tokenizers.files import vocabulary_bytes
from txport.models.importers.tokenizers.pieces import completed, pieces_of
from txport.runtime.bundle.tokenizer_schema import Placeholder, TokenizerDescription, TokenizerFiles
from txport.runtime.errors import CheckpointError

_SHARED = ("shared.model", "sentencepiece.bpe.model", "spm.model")


def find_sentencepiece(place: Path, source: str, target: str) -> tuple[Path, Path]:
    """The models of both sides, perhaps the same file, by the names that people give them.

    Args:
        place: the directory.
        source: the name of the source language, for spm.<language>.model.
        target: likewise.

    Raises:
        CheckpointError: there is none, or it is unclear which is which.
    """
    for pair in ((f"spm.{source}.model", f"spm.{target}.model"), ("source.model", "target.model")):
        if all((place / name).is_file() for name in pair):
            return place / pair[0], place / pair[1]
    found = [place / name for name in _SHARED if (place / name).is_file()] or sorted(place.glob("*.model"))
    if len(found) != 1:
        raise CheckpointError(
            f"{place} has {len(found) or 'no'} SentencePiece models: there must be one for both sides (shared.model), "
            "or source.model and target.model; if the model's tokens are not SentencePiece's, give --no-tokenizer"
        )
    return found[0], found[0]


def dictionary_tokenizer(
    tables: Sequence[list[str | None]], models: tuple[Path, Path], suffix: tuple[int | Placeholder, ...]
) -> TokenizerParts:
    """Put dictionaries and SentencePiece models together.

    Args:
        tables: tokens by id of the source and of the target; None for special ones.
        models: the files.
        suffix: what stands after the ids of a source text.

    Raises:
        CheckpointError: a dictionary holds something else than the model's pieces, or a token twice.
    """
    files: dict[str, bytes] = {}
    described = []
    for side, table, file in zip(("source", "target"), tables, models, strict=True):
        model = read_bytes(file)
        known = pieces_of(model, file)
        tokens = [token for token in table if token is not None]
        if len(set(tokens)) != len(tokens):
            raise CheckpointError(f"the dictionary of the {side} side has a token twice; give --no-tokenizer")
        if len(set(tokens) & set(known)) * 2 < len(known):
            raise CheckpointError(
                f"{file} has {len(known)} pieces, of which few are in the {side} dictionary: the model's tokens are "
                "not SentencePiece's, or another one's; give --no-tokenizer, and ids"
            )
        files[f"{side}.model"] = completed(model, known, tokens)
        files[f"{side}.vocabulary.json"] = vocabulary_bytes(table)
        described.append(TokenizerFiles(f"tokenizer/{side}.model", f"tokenizer/{side}.vocabulary.json"))
    description = TokenizerDescription("sentencepiece", described[0], described[1], (), suffix, (), None)
    return TokenizerParts(description, files)
