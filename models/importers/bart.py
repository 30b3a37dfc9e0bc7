"""Hugging Face BART (Lewis et al. 2020, arXiv:1910.13461) and mBART (Liu et al. 2020, arXiv:2001.08210).

Learned positions with an offset of 2 and a LayerNorm on embeddings; BART is post-norm, mBART pre-norm.
"""

from dataclasses import replace
from pathlib import Path

from txport.models.config import Config
from txport.models.importers.fairseq_positions import OFFSET
from txport.models.importers.huggingface import (
    HuggingFaceConfig,
    chosen,
    layers,
    one_vocabulary,
    prefix_of,
    read_json_if_there,
    search_notes,
)
from txport.models.importers.imported import Imported, Options, TokenizerParts
from txport.models.importers.multilingual import CODES, UNK, Pieces, defaults, described, sentencepiece_files
from txport.models.importers.plan import Plan
from txport.models.importers.tokenizers.byte_level import byte_level_tokenizer
from txport.models.importers.tokenizers.none import without_tokenizer
from txport.models.importers.weights import read_directory
from txport.runtime.bundle.tokenizer_schema import Languages, TokenizerFiles

# Options of old config.json files that Hugging Face's own models of these names cannot have otherwise.
_NEUTRAL = {
    "bart": {"normalize_before": False, "normalize_embedding": True, "add_final_layer_norm": False},
    "mbart": {"normalize_before": True, "normalize_embedding": True, "add_final_layer_norm": True},
}


def import_bart(directory: Path, options: Options) -> Imported:
    """Understand a directory that BartForConditionalGeneration or MBartForConditionalGeneration wrote.

    Raises:
        CheckpointError: something is missing, damaged or not supported.
        InputError: a language that the model has not got, or none where one is needed.
    """
    config = HuggingFaceConfig(directory)
    many = config.model_type == "mbart"
    config.refuse(_NEUTRAL["mbart" if many else "bart"] | {"static_position_embeddings": False})
    plan, notes = Plan(read_directory(directory), directory), search_notes(config)
    prefix = prefix_of(plan)
    vocabulary = one_vocabulary(plan, config, prefix, notes)
    ours = config.ours(norm="pre" if many else "post", embedding_norm=True, unk_id=UNK, **vocabulary)
    for side, theirs in (("source", "encoder"), ("target", "decoder")):
        positions = f"{prefix}{theirs}.embed_positions.weight"
        plan.take(f"{side}_embedding.positions", positions, first=OFFSET, rows=ours.max_positions)
        plan.affine(f"{side}_embedding.norm", f"{prefix}{theirs}.layernorm_embedding")
        plan.ignore(f"{prefix}{theirs}.version")
        if many:
            plan.affine(f"{theirs}_norm", f"{prefix}{theirs}.layer_norm")
    layers(plan, prefix, ours.encoder_layers, ours.decoder_layers, ours.d_model, ours.ffn)
    plan.check(ours)
    if not options.tokenizer:
        codes = _codes(directory, ours)[0]
        return Imported("bart", ours, plan, without_tokenizer(directory, config, ours, options, codes, notes), notes)
    if many:
        ours, tokenizer = _languages(directory, config, ours, options)
    else:
        tokenizer = _byte_level(directory, config, ours, options)
    return Imported("bart", ours, plan, tokenizer, notes)


def _byte_level(directory: Path, config: HuggingFaceConfig, ours: Config, options: Options) -> TokenizerParts:
    """BART's: <s> text </s>, and answers that begin with the config's forced id, <s> for most."""
    for side, name in (("source", options.source_language), ("target", options.target_language)):
        chosen(name, {}, side, directory / "tokenizer", required=False)
    names = TokenizerFiles("tokenizer/tokenizer.json", None)
    found = Pieces("tokenizers", names, {"tokenizer.json": byte_level_tokenizer(directory, ours.source_vocabulary)}, {})
    forced = config.generation("forced_bos_token_id")
    prefix = (forced,) if type(forced) is int else ()
    return described(found, (config.token("bos_token_id"),), (ours.eos_id,), prefix, None)


def _codes(directory: Path, ours: Config) -> tuple[str, bool]:
    """The languages by their order, and whether this is mBART-50."""
    stated = read_json_if_there(directory / "tokenizer_config.json").get("tokenizer_class")
    # mBART starts the decoder from the target language, mBART-50 from eos and forces the language.
    fifty = ours.bos_id == ours.eos_id if stated is None else "50" in str(stated)
    return f"{CODES['mbart']} {CODES['mbart50']}" if fifty else CODES["mbart"], fifty


def _languages(
    directory: Path, config: HuggingFaceConfig, ours: Config, options: Options
) -> tuple[Config, TokenizerParts]:
    """mBART's; the decoder of the first one starts from its target language, which is so fixed by the import."""
    codes, fifty = _codes(directory, ours)
    found = sentencepiece_files(directory, ours.source_vocabulary, codes)
    source, target = defaults(directory, config, options, found.languages, forced=fifty)
    if fifty:
        languages = Languages(found.languages, found.languages, source, target, False)
        return ours, described(found, ("source_language",), (ours.eos_id,), ("target_language",), languages)
    file = directory / "tokenizer"
    if (name := chosen(options.target_language, found.languages, "target", file, required=False)) is not None:
        ours = replace(ours, bos_id=found.languages[name])
    languages = Languages(found.languages, {}, source, None, False)
    return ours, described(found, (), (ours.eos_id, "source_language"), (), languages)
