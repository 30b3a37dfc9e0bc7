"""Imports that leave the tokenizer behind: what answers are forced to begin with belongs to the model all the same."""

from pathlib import Path

from txport.models.config import Config
from txport.models.importers.huggingface import HuggingFaceConfig, chosen
from txport.models.importers.imported import Options, TokenizerParts
from txport.models.importers.multilingual import sentencepiece_files
from txport.runtime.bundle.tokenizer_schema import TokenizerDescription
from txport.runtime.errors import CheckpointError


def without_tokenizer(
    directory: Path, config: HuggingFaceConfig, ours: Config, options: Options, codes: str, notes: list[str]
) -> TokenizerParts:
    """Ids only; answers begin with the target language if one is told, else with the config's forced id if it has one.

    Raises:
        InputError: the language is unknown.
        CheckpointError: there is a language to look up and no file to look in.
    """
    forced = config.generation("forced_bos_token_id")
    if options.target_language is not None:
        try:
            table = sentencepiece_files(directory, ours.source_vocabulary, codes).languages
        except CheckpointError as error:
            raise CheckpointError(f"{error} (--target-language needs it, --no-tokenizer or not)") from None
        chosen(options.target_language, table, "target", directory / "tokenizer", required=True)
        forced = table[options.target_language]
    if forced is None:
        notes.append(
            "answers are not forced to begin with anything: give --target-language, or a prefix with each call"
        )
    prefix = () if type(forced) is not int else (forced,)
    return TokenizerParts(TokenizerDescription("none", None, None, (), (ours.eos_id,), prefix, None))
