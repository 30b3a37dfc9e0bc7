"""JSON files of a checkpoint: configuration and tokenizer. Reading them does not need PyTorch."""

import json
from dataclasses import dataclass
from pathlib import Path

from txport.models.config import Config
from txport.runtime.bundle.kinds import check_kind, kind_of
from txport.runtime.bundle.schema import Generation, added
from txport.runtime.bundle.strict_json import encode, load
from txport.runtime.bundle.tokenizer_rules import tokenizer_faults
from txport.runtime.bundle.tokenizer_schema import ScoreSums, TokenizerDescription, ids_only, plain
from txport.runtime.errors import CheckpointError, InputError

FORMAT_VERSION = 1
DESCRIPTION = "tokenizer/description.json"
PLAIN = Generation()
REMEDY = "give a whole checkpoint of this version of txport"


@dataclass(frozen=True)
class ConfigFile:
    """Contents of config.json."""

    format_version: int
    config: Config
    generation: Generation = added(PLAIN)


@dataclass(frozen=True)
class DescriptionFile:
    """Contents of tokenizer/description.json. Its `tokenizer` becomes a field of a bundle's manifest on export."""

    format_version: int
    tokenizer: TokenizerDescription


def read_config(directory: Path) -> Config:
    """Return only the config of a checkpoint.

    Raises:
        CheckpointError: it is missing, not JSON, has another format or impossible fields; or the directory is a bundle.
    """
    return read_config_file(directory).config


def read_config_file(directory: Path) -> ConfigFile:
    """Return the contents of config.json. Errors are those of `read_config`."""
    file = directory / "config.json"
    if kind_of(directory) != "run":  # the directory of a training run also has config.json
        check_kind(directory, "checkpoint", CheckpointError)
    try:
        return load(ConfigFile, file, FORMAT_VERSION, REMEDY, CheckpointError)
    except InputError as error:
        raise CheckpointError(f"{file}: {error}") from None


def read_tokenizer(directory: Path, config: Config) -> TokenizerDescription:
    """Return the description of a checkpoint's tokenizer.

    Raises:
        CheckpointError: files are missing, or the description is damaged, too new or does not match the config.
    """
    tokenizer = directory / "tokenizer"
    if not tokenizer.exists():
        return ids_only(config.eos_id)
    if (directory / DESCRIPTION).exists():
        return _described(directory, config)
    if (tokenizer / "shared.model").is_file():
        return plain("tokenizer/shared.model", "tokenizer/shared.model", config.eos_id)
    if (tokenizer / "source.model").is_file() and (tokenizer / "target.model").is_file():
        return plain("tokenizer/source.model", "tokenizer/target.model", config.eos_id)
    raise CheckpointError(f"{tokenizer} holds neither shared.model nor both source.model and target.model")


def _described(directory: Path, config: Config) -> TokenizerDescription:
    file = directory / DESCRIPTION
    tokenizer = load(DescriptionFile, file, FORMAT_VERSION, REMEDY, CheckpointError).tokenizer
    files = {path.relative_to(directory).as_posix() for path in (directory / "tokenizer").iterdir() if path.is_file()}
    for fault in tokenizer_faults(tokenizer, files, config.vocabularies):
        raise CheckpointError(f"{file}: {fault}")
    return tokenizer


def read_score_sums(directory: Path) -> ScoreSums:
    """Return the arithmetic of the unigram models in `directory`, the folder `tokenizer` of a checkpoint or of a run.

    Raises:
        CheckpointError: description.json is damaged.
    """
    file = directory / Path(DESCRIPTION).name
    if not file.exists():
        return "float64"  # written by SentencePiece before 0.2.2
    return load(DescriptionFile, file, FORMAT_VERSION, REMEDY, CheckpointError).tokenizer.score_sums


def write_description(directory: Path, tokenizer: TokenizerDescription) -> None:
    """Write description.json into `directory`, which becomes the folder `tokenizer` of a checkpoint."""
    write_json(directory / Path(DESCRIPTION).name, encode(DescriptionFile(FORMAT_VERSION, tokenizer)))


def write_json(file: Path, value: object) -> None:
    """Write an indented JSON file."""
    file.write_text(json.dumps(value, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
