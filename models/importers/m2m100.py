"""Hugging Face M2M100 (Fan et al. 2020, arXiv:2010.11125) and NLLB (2022, arXiv:2207.04672).

Pre-norm, fairseq's sinusoids, a language token before each source text, and answers that are forced to begin with one.
"""

from pathlib import Path

from txport.models.config import Config
from txport.models.importers.fairseq_positions import offset_sinusoids
from txport.models.importers.huggingface import (
    HuggingFaceConfig,
    layers,
    one_vocabulary,
    prefix_of,
    read_json_if_there,
    search_notes,
)
from txport.models.importers.imported import Imported, Options, TokenizerParts
from txport.models.importers.multilingual import CODES, UNK, Affix, defaults, described, sentencepiece_files
from txport.models.importers.plan import Plan
from txport.models.importers.tokenizers.none import without_tokenizer
from txport.models.importers.weights import read_directory
from txport.runtime.bundle.tokenizer_schema import Languages


def import_m2m100(directory: Path, options: Options) -> Imported:
    """Understand a directory that Hugging Face's M2M100ForConditionalGeneration wrote.

    Raises:
        CheckpointError: something is missing, damaged or not supported.
        InputError: a language that the model has not got, or none where one is needed.
    """
    config = HuggingFaceConfig(directory)
    plan, notes = Plan(read_directory(directory), directory), search_notes(config)
    prefix = prefix_of(plan)
    ours = config.ours(norm="pre", unk_id=UNK, **one_vocabulary(plan, config, prefix, notes))
    for side, theirs in (("source", "encoder"), ("target", "decoder")):
        plan.put(f"{side}_embedding.positions", offset_sinusoids(ours.max_positions, ours.d_model))
        plan.ignore(f"{prefix}{theirs}.embed_positions.weights")  # the same table, in files of old versions
        plan.affine(f"{theirs}_norm", f"{prefix}{theirs}.layer_norm")
    layers(plan, prefix, ours.encoder_layers, ours.decoder_layers, ours.d_model, ours.ffn)
    plan.check(ours)
    if options.tokenizer:
        tokenizer = _tokenizer(directory, config, ours, options)
    else:
        tokenizer = without_tokenizer(directory, config, ours, options, CODES["m2m100"], notes)
    return Imported("m2m100", ours, plan, tokenizer, notes)


def _tokenizer(directory: Path, config: HuggingFaceConfig, ours: Config, options: Options) -> TokenizerParts:
    stated = read_json_if_there(directory / "tokenizer_config.json")
    codes = CODES.get(str(stated.get("language_codes")), CODES["m2m100"])
    # NLLB's directories list their languages; these codes would be wrong for it.
    found = sentencepiece_files(directory, ours.source_vocabulary, codes if (directory / "vocab.json").exists() else "")
    source, target = defaults(directory, config, options, found.languages, forced=True)
    languages = Languages(found.languages, found.languages, source, target, False)
    legacy = stated.get("legacy_behaviour") is True
    before: Affix = () if legacy else ("source_language",)
    after: Affix = (ours.eos_id, "source_language") if legacy else (ours.eos_id,)
    return described(found, before, after, ("target_language",), languages)
