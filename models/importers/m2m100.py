"""Hugging Face M2M100 (Fan et al. 2020, arXiv:2010.11125), NLLB (2022, arXiv:2207.04672), and relatives.

Pre-norm, fairseq's sinusoids, a language token before each source text, and outputs that begin with a forced language
token. SeamlessM4T's text-to-text model (2023, arXiv:2308.11596) is NLLB with other names. SMaLL-100 (Mohammadshahi et
al. 2022, arXiv:2210.11621) is M2M100 with the target language before the source, and without forced tokens.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from txport.models.config import Config
from txport.models.hub.source import SMALL100_MARK
from txport.models.importers.huggingface import HuggingFaceModel
from txport.models.importers.imported import Imported, ImportOptions, TokenizerParts
from txport.models.importers.layers import FAIRSEQ, LayerNames, map_layers, offset_sinusoids
from txport.models.importers.settings import tokenizer_settings
from txport.models.importers.tokenizers.added_tokens import KEEPS_SPACES, PYTHON, SEAMLESS
from txport.models.importers.tokenizers.languages import CODES, chosen_language, default_languages
from txport.models.importers.tokenizers.multilingual import (
    UNK,
    Affix,
    described,
    sentencepiece_files,
    without_tokenizer,
)
from txport.runtime.bundle.tokenizer_schema import Languages, ids_only
from txport.runtime.errors import CheckpointError

# Parts of SeamlessM4T for speech, which are left out.
_SPEECH = ("speech_encoder.", "t2u_model.", "vocoder.")
_SEAMLESS = LayerNames(
    stacks=("text_encoder.layers", "text_decoder.layers"),
    attentions=("self_attn", "cross_attention"),
    feed_forward=("ffn.fc1", "ffn.fc2"),
    encoder_norms=("self_attn_layer_norm", "ffn_layer_norm"),
    decoder_norms=("self_attn_layer_norm", "cross_attention_layer_norm", "ffn_layer_norm"),
)


# Encoder and decoder layers of SMaLL-100. No published M2M100 has so few decoder layers beside 12 encoder layers.
_SMALL100_LAYERS = (12, 3)


def m2m100_kind(directory: Path, config: Mapping[str, Any]) -> str:
    """Return "small100" or "m2m100". Only their code file or the tokenizer's name distinguishes them.

    Raises:
        CheckpointError: it has the sizes of SMaLL-100, and no file shows which one it is.
    """
    tokenizer_class = tokenizer_settings(directory).optional("tokenizer_class", str)
    if (directory / SMALL100_MARK).is_file() or "small100" in str(tokenizer_class).lower():
        return "small100"
    layers = config.get("encoder_layers"), config.get("decoder_layers")
    if layers == _SMALL100_LAYERS and "Nllb" not in str(tokenizer_class):
        raise CheckpointError(
            f"{directory} has the layers of SMaLL-100, whose texts begin with the language of the answer, but neither "
            f"{SMALL100_MARK} nor its tokenizer's name: give --from small100, or --from m2m100 if it is another model"
        )
    return "m2m100"


def import_m2m100(directory: Path, options: ImportOptions) -> Imported:
    """Read a directory written by M2M100ForConditionalGeneration.

    Raises:
        CheckpointError: something is missing, damaged or not supported.
        InputError: the model does not support a chosen language, or it needs one and none is chosen.
    """
    model = HuggingFaceModel(directory, options.adapter)
    ours = _map_weights(model, (f"{model.prefix}encoder", f"{model.prefix}decoder"), FAIRSEQ, UNK)
    return _result(model, ours, options, _tokenizer)


def import_small100(directory: Path, options: ImportOptions) -> Imported:
    """Read a SMaLL-100, even if nothing in its directory identifies it as one.

    Raises:
        CheckpointError: something is missing, damaged or not supported.
        InputError: the model does not support a chosen language, or it needs one and none is chosen.
    """
    model = HuggingFaceModel(directory, options.adapter)
    ours = _map_weights(model, (f"{model.prefix}encoder", f"{model.prefix}decoder"), FAIRSEQ, UNK)
    imported = _result(model, ours, options, _small100)
    return replace(imported, tokenizer=imported.tokenizer.beginning_with(model.forced_start(ours.target_vocabulary)))


def import_seamless(directory: Path, options: ImportOptions) -> Imported:
    """Read a directory written by SeamlessM4TForTextToText, or by SeamlessM4TModel, whose other parts are left out.

    Raises:
        CheckpointError: something is missing, damaged or not supported.
        InputError: the model does not support a chosen language, or it needs one and none is chosen.
    """
    model = HuggingFaceModel(directory, options.adapter)
    model.plan.ignore(*(name for name in model.plan.theirs if name.startswith(_SPEECH)))
    return _result(model, _map_weights(model, ("text_encoder", "text_decoder"), _SEAMLESS, 1), options, _tokenizer)


def _map_weights(model: HuggingFaceModel, stacks: tuple[str, str], names: LayerNames, unk: int) -> Config:
    plan = model.plan
    ours = model.config(norm="pre", unk_id=unk, **model.embeddings(stacks=stacks))
    for side, mine, theirs in zip(("source", "target"), ("encoder", "decoder"), stacks, strict=True):
        table = offset_sinusoids(ours.max_positions, ours.d_model, ours.pad_id + 1)
        plan.put(f"{side}_embedding.positions", table)
        plan.ignore(f"{theirs}.embed_positions.weights")  # a copy of the table in files of old versions
        plan.affine(f"{mine}_norm", f"{theirs}.layer_norm")
    map_layers(plan, ours, names, model.prefix)
    plan.check(ours)
    return ours


def _result(
    model: HuggingFaceModel,
    ours: Config,
    options: ImportOptions,
    tokenizer: Callable[[HuggingFaceModel, Config, ImportOptions], TokenizerParts],
) -> Imported:
    parts = tokenizer(model, ours, options)
    return Imported("m2m100", ours, model.plan, parts, model.notes, model.generation_settings(ours.target_vocabulary))


def _codes(directory: Path) -> str:
    codes = CODES.get(str(tokenizer_settings(directory).optional("language_codes", str)), CODES["m2m100"])
    # NLLB's directories list their languages; M2M100's codes would be wrong for it.
    if (directory / "vocab.json").exists():
        return codes
    return ""


def _is_seamless(model: HuggingFaceModel) -> bool:
    return str(model.fields.get("model_type")).startswith("seamless")


def _tokenizer(model: HuggingFaceModel, ours: Config, options: ImportOptions) -> TokenizerParts:
    directory = model.directory
    if not options.tokenizer:
        return without_tokenizer(model, ours, options, CODES["m2m100"])
    if (directory / "vocab.json").is_file():
        treatment = PYTHON
    elif _is_seamless(model):
        treatment = SEAMLESS
    else:
        treatment = KEEPS_SPACES
    tokenizer = sentencepiece_files(directory, ours.source_vocabulary, _codes(directory), treatment)
    source, target = default_languages(model, options, tokenizer.languages, forced=True)
    languages = Languages(tokenizer.languages, tokenizer.languages, source, target, False)
    before: Affix = ("source_language",)
    after: Affix = (ours.eos_id,)
    if tokenizer_settings(directory).optional("legacy_behaviour", bool) is True:
        before, after = (), (ours.eos_id, "source_language")
    return described(tokenizer, before, after, ("target_language",), languages)


def _small100(model: HuggingFaceModel, ours: Config, options: ImportOptions) -> TokenizerParts:
    """Return SMaLL-100's tokenizer: <target language> text </s>."""
    chosen_language(options.source_language, {}, "source", model.directory)
    if not options.tokenizer:
        chosen_language(options.target_language, {}, "target", model.directory)
        return TokenizerParts(ids_only(ours.eos_id))
    tokenizer = sentencepiece_files(model.directory, ours.source_vocabulary, _codes(model.directory), PYTHON)
    _, target = default_languages(model, options, tokenizer.languages, forced=True)
    languages = Languages({}, tokenizer.languages, None, target, False)
    return described(tokenizer, ("target_language",), (ours.eos_id,), (), languages)
