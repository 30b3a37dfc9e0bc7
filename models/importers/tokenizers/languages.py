"""SentencePiece models whose ids are the model's own, beside weights that know nothing of them."""

from pathlib import Path

from txport.models.config import Config
from txport.models.importers.huggingface import read_bytes
from txport.models.importers.imported import Options, TokenizerParts
from txport.models.importers.tokenizers.pieces import pieces_of
from txport.runtime.bundle.tokenizer_schema import plain
from txport.runtime.errors import CheckpointError, InputError


def own_sentencepiece(directory: Path, options: Options, config: Config) -> TokenizerParts:
    """shared.model, or source.model and target.model, in the directory or where --vocabulary says.

    Raises:
        CheckpointError: they are missing, or have more pieces than the embeddings have rows.
        InputError: a language was asked for, of which there is none here.
    """
    no_languages(options, directory)
    place = options.vocabulary or directory
    names = ["shared.model"] * 2 if (place / "shared.model").is_file() else ["source.model", "target.model"]
    files = {name: read_bytes(place / name) for name in names}
    for name, rows in zip(names, (config.source_vocabulary, config.target_vocabulary), strict=True):
        if (count := len(pieces_of(files[name], place / name))) > rows:
            raise CheckpointError(
                f"{place / name} has {count} pieces, but its embedding has {rows} rows: it belongs to another model"
            )
    return TokenizerParts(plain(f"tokenizer/{names[0]}", f"tokenizer/{names[1]}", config.eos_id), files)


def no_languages(options: Options, source: Path) -> None:
    """See that no language was asked for.

    Raises:
        InputError: one was.
    """
    for side, name in (("source", options.source_language), ("target", options.target_language)):
        if name is not None:
            raise InputError(f"--{side}-language {name} means nothing for {source}: leave it out")
