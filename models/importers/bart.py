"""Hugging Face BART (Lewis et al. 2020, arXiv:1910.13461), mBART (Liu et al. 2020, arXiv:2001.08210) and relatives.

Learned positions with an offset of 2 and a LayerNorm on embeddings; BART is post-norm, mBART pre-norm. Blenderbot
(Roller et al. 2020, arXiv:2004.13637) is pre-norm, without that offset and LayerNorm. PLBart (Ahmad et al. 2021,
arXiv:2103.06333) is BART with mBART's tokenizer. MVP (Tang et al. 2022, arXiv:2206.12131) is BART; its prompts are not
supported.
"""

from dataclasses import replace
from pathlib import Path

from txport.models.config import Config
from txport.models.importers.huggingface import HuggingFaceModel
from txport.models.importers.imported import Imported, ImportOptions, TokenizerParts
from txport.models.importers.layers import OFFSET
from txport.models.importers.settings import tokenizer_settings
from txport.models.importers.tokenizers.added_tokens import KEEPS_SPACES, MBART, PYTHON
from txport.models.importers.tokenizers.byte_level import byte_level_tokenizer
from txport.models.importers.tokenizers.languages import (
    CODES,
    chosen_language,
    default_language,
    default_languages,
    refuse_languages,
)
from txport.models.importers.tokenizers.multilingual import (
    UNK,
    SharedTokenizer,
    described,
    sentencepiece_files,
    without_tokenizer,
)
from txport.runtime.bundle.tokenizer_schema import Languages, TokenizerFiles
from txport.runtime.errors import CheckpointError

# Options of old config.json files. Current Hugging Face models of these names support only these values.
_NEUTRAL = {
    "bart": {"normalize_before": (False, None), "add_final_layer_norm": (False, None)},
    "mbart": {"normalize_before": (True, None), "add_final_layer_norm": (True, None)},
    "blenderbot": {"normalize_before": (True, None), "add_final_layer_norm": (True, None)},
    "mvp": {"use_prompt": (False, None)},
}


def import_bart(directory: Path, options: ImportOptions) -> Imported:
    """Read a directory written by BartForConditionalGeneration, or by the MBart or Blenderbot class.

    Raises:
        CheckpointError: something is missing, damaged or not supported.
        InputError: the model does not support a chosen language, or it needs one and none is chosen.
    """
    model = HuggingFaceModel(directory, options.adapter)
    kind = str(model.fields.get("model_type"))
    embedding_norm = kind != "blenderbot"
    pre_norm = kind in ("mbart", "blenderbot")
    neutral = {"normalize_embedding": (embedding_norm, None), "static_position_embeddings": (False, None)}
    model.refuse(_NEUTRAL.get(kind, _NEUTRAL["bart"]) | neutral)
    norms = {"norm": "pre" if pre_norm else "post", "embedding_norm": embedding_norm}
    ours = model.config(**norms, unk_id=UNK, **model.embeddings())
    plan = model.plan
    if embedding_norm:
        first = OFFSET
    else:
        first = 0
    for side, theirs in (("source", "encoder"), ("target", "decoder")):
        theirs = f"{model.prefix}{theirs}"
        plan.take(
            f"{side}_embedding.positions", f"{theirs}.embed_positions.weight", first=first, rows=ours.max_positions
        )
        if embedding_norm:
            plan.affine(f"{side}_embedding.norm", f"{theirs}.layernorm_embedding")
        plan.ignore(f"{theirs}.version")
    if pre_norm:
        plan.affine("encoder_norm", f"{model.prefix}encoder.layer_norm")
        plan.affine("decoder_norm", f"{model.prefix}decoder.layer_norm")
    model.layers(ours)
    plan.check(ours)
    if not options.tokenizer:
        tokenizer = without_tokenizer(model, ours, options, _codes(model, ours)[0])
    elif kind in ("mbart", "plbart"):
        ours, tokenizer = _languages(model, ours, options)
    else:
        tokenizer = _byte_level(model, ours, options)
    return Imported("bart", ours, plan, tokenizer, model.notes, model.generation_settings(ours.target_vocabulary))


def _byte_level(model: HuggingFaceModel, ours: Config, options: ImportOptions) -> TokenizerParts:
    """Return BART's tokenizer, <s> text </s> (Blenderbot: no <s>). Output starts with the forced id, usually <s>."""
    refuse_languages(options, model.directory)
    blenderbot = model.fields.get("model_type") == "blenderbot"
    if blenderbot and not (model.directory / "tokenizer.json").is_file():
        raise CheckpointError(
            f"{model.directory} has no tokenizer.json: save its tokenizer there, or give --no-tokenizer"
        )
    data = byte_level_tokenizer(model.directory, ours.source_vocabulary)
    names = TokenizerFiles("tokenizer/tokenizer.json", None)
    tokenizer = SharedTokenizer("tokenizers", names, {"tokenizer.json": data}, {})
    prefix = model.forced_start(ours.target_vocabulary)
    before = () if blenderbot else (model.token("bos_token_id"),)
    return described(tokenizer, before, (ours.eos_id,), prefix, None)


def _codes(model: HuggingFaceModel, ours: Config) -> tuple[str, bool]:
    """Return the language codes in the order of their ids, and whether this is mBART-50. PLBart names its list."""
    tokenizer = tokenizer_settings(model.directory)
    if model.fields.get("model_type") == "plbart":
        return CODES["multi" if tokenizer.optional("language_codes", str) == "multi" else "base"], False
    tokenizer_class = tokenizer.optional("tokenizer_class", str)
    # mBART starts the decoder with the target language. mBART-50 starts it with eos, and forces the language next.
    if tokenizer_class is None:
        fifty = ours.bos_id == ours.eos_id
    else:
        fifty = "50" in tokenizer_class
    return f"{CODES['mbart']} {CODES['mbart50']}" if fifty else CODES["mbart"], fifty


def _languages(model: HuggingFaceModel, ours: Config, options: ImportOptions) -> tuple[Config, TokenizerParts]:
    """Return the tokenizer of a multilingual model. For mBART and PLBart, the target language is fixed on import."""
    codes, fifty = _codes(model, ours)
    plbart = model.fields.get("model_type") == "plbart"
    if plbart:
        treatment = PYTHON
    elif fifty:
        treatment = KEEPS_SPACES
    else:
        treatment = MBART
    tokenizer = sentencepiece_files(model.directory, ours.source_vocabulary, codes, treatment)
    if fifty:
        source, target = default_languages(model, options, tokenizer.languages, forced=True)
        languages = Languages(tokenizer.languages, tokenizer.languages, source, target, False)
        return ours, described(tokenizer, ("source_language",), (ours.eos_id,), ("target_language",), languages)
    ours = _start(model, ours, options, tokenizer)
    if options.target_language is None:
        prefix = model.forced_start(ours.target_vocabulary)
    else:
        prefix = ()
    default_source = tokenizer_settings(model.directory).optional("src_lang", str)
    silent = codes == CODES["base"] and default_source is None
    if silent and options.source_language is None:
        # The same as Hugging Face's tokenizer, and so as the training data of models that used the published tokenizer.
        model.notes.append("texts contain no language, as tokenizer_config.json has it: --source-language sets one")
        return ours, described(tokenizer, (), (ours.eos_id,), prefix, None)
    source, _ = default_languages(model, options, tokenizer.languages, forced=False)
    languages = Languages(tokenizer.languages, {}, source, None, False)
    return ours, described(tokenizer, (), (ours.eos_id, "source_language"), prefix, languages)


def _start(model: HuggingFaceModel, ours: Config, options: ImportOptions, tokenizer: SharedTokenizer) -> Config:
    """Return the config with a target language as decoder start: the option, else that of `generate`, else tgt_lang.

    Raises:
        InputError: the language is unknown, or there is none.
    """
    languages = tokenizer.languages
    has_start = model.generation("decoder_start_token_id") is not None
    name = options.target_language or (None if has_start else default_language(model.directory, "tgt_lang", languages))
    name = chosen_language(name, languages, "target", model.directory, required=not has_start)
    if name is None:
        return ours
    return replace(ours, bos_id=languages[name])
