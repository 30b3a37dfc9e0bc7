"""Decoders of Hugging Face speech and image models. Their encoder is not imported; its states are the input.

TrOCR (Li et al. 2021, arXiv:2109.10282), Donut (Kim et al. 2022, arXiv:2111.15664) and Nougat (Blecher et al. 2023,
arXiv:2308.13418) are vision encoders before a decoder of BART's family, and Whisper (Radford et al. 2022,
arXiv:2212.04356) has a pre-norm decoder without key biases. The input is the last hidden states of the encoder.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from txport.models.config import Config
from txport.models.importers.huggingface import ACTIVATIONS, HuggingFaceModel
from txport.models.importers.imported import Imported, ImportOptions, TokenizerParts
from txport.models.importers.layers import FAIRSEQ, OFFSET, map_layers, offset_sinusoids
from txport.models.importers.tokenizers.added_tokens import KEEPS_SPACES
from txport.models.importers.tokenizers.byte_level import byte_level_tokenizer
from txport.models.importers.tokenizers.languages import refuse_languages
from txport.models.importers.tokenizers.multilingual import SPM, SharedTokenizer, described, sentencepiece_files
from txport.models.importers.tokenizers.t5 import json_sentencepiece, sentencepiece_parts, without_special
from txport.runtime.bundle.tokenizer_schema import TokenizerDescription, TokenizerFiles
from txport.runtime.errors import CheckpointError, InputError

_DECODERS = ("trocr", "mbart", "bart")
_BRIDGE = "enc_to_dec_proj"
_UNK = 3  # in BART's vocabularies
# States per second: Whisper's encoder computes 1,500 states for 30 seconds.
_WHISPER_RATE = 50.0


def import_vision(directory: Path, options: ImportOptions) -> Imported:
    """Read the decoder from a directory written by VisionEncoderDecoderModel.

    Raises:
        CheckpointError: something is missing, damaged or not supported.
    """
    refuse_languages(options, directory)
    model = HuggingFaceModel(directory, options.adapter)
    decoder = model.get("decoder", kind=dict)
    kind = decoder.get("model_type")
    if kind not in _DECODERS:
        raise CheckpointError(
            f"{model.file}: decoder.model_type {kind!r} is not supported: there are {', '.join(_DECODERS)}"
        )
    token_ids = {
        name: value for name, value in model.fields.items() if name.endswith("_token_id") and value is not None
    }
    model.fields = {**decoder, **token_ids}
    pre_norm = kind == "mbart"
    embedding_norm = model.get("layernorm_embedding", True, bool)
    prefix = "decoder.model.decoder"
    norms = {"norm": "pre" if pre_norm else "post", "embedding_norm": embedding_norm}
    scale = model.get("scale_embedding", False, bool)
    head = {"trocr": "decoder.output_projection.weight"}.get(kind, "decoder.lm_head.weight")
    positions = model.get("max_position_embeddings", kind=int)
    named = {"external_encoder": options.encoder, "unk_id": _UNK, "scale_embedding": scale}
    ours = _decoder(model, prefix, head, first=OFFSET, max_positions=positions, **named, **norms)
    if kind == "trocr" and not model.get("use_learned_position_embeddings", True, bool):
        table = offset_sinusoids(positions, ours.d_model, ours.pad_id + 1)
        model.plan.put("target_embedding.positions", table)
    if embedding_norm:
        model.plan.affine("target_embedding.norm", f"{prefix}.layernorm_embedding")
    if pre_norm:
        model.plan.affine("decoder_norm", f"{prefix}.layer_norm")
    _fold_bridge(model, ours)
    tokenizer = _tokenizer(model, ours, options).beginning_with(model.forced_start(ours.target_vocabulary))
    return _imported("vision", model, ours, tokenizer)


def import_whisper(directory: Path, options: ImportOptions) -> Imported:
    """Read the decoder from a directory written by WhisperForConditionalGeneration.

    Raises:
        CheckpointError: something is missing, damaged or not supported.
        InputError: the model does not support a chosen language.
    """
    model = HuggingFaceModel(directory, options.adapter)
    positions = model.get("max_target_positions", kind=int)
    sizes = {"max_positions": positions, "max_source_positions": model.get("max_source_positions", kind=int)}
    ours = _decoder(
        model,
        f"{model.prefix}decoder",
        "proj_out.weight",
        norm="pre",
        frame_rate=_WHISPER_RATE,
        scale_embedding=False,  # Hugging Face does not read the setting of this name
        external_encoder=options.encoder,
        unk_id=model.token("unk_token_id", "eos_token_id"),
        **sizes,
    )
    model.plan.affine("decoder_norm", f"{model.prefix}decoder.layer_norm")
    tokenizer = _tokenizer(model, ours, options).beginning_with(_prompt(model, options), prompt=True)
    imported = _imported("whisper", model, ours, tokenizer)
    suppressed = imported.generation.suppress or ()
    last = model.generation("no_timestamps_token_id")
    if _has_times(model, options) and isinstance(last, int) and last not in suppressed:
        return replace(imported, generation=replace(imported.generation, suppress=(*suppressed, last)))
    return imported


def _has_times(model: HuggingFaceModel, options: ImportOptions) -> bool:
    """Return whether outputs contain Whisper's tokens of times."""
    return options.timestamps or bool(model.generation("return_timestamps"))


def _decoder(model: HuggingFaceModel, prefix: str, head: str, *, first: int = 0, **fields: Any) -> Config:
    """Map embedding, positions, layers and projection of a decoder, and return our config.

    Args:
        model: with the fields of the decoder.
        prefix: prefix of the decoder's tensor names.
        head: name of the projection, which may be missing if it is tied.
        first: row of the first position in the position table.
        fields: further fields of our config.
    """
    plan = model.plan
    table = f"{prefix}.embed_tokens.weight"
    vocabulary = model.get("vocab_size", kind=int)
    model.check_rows(table, plan.stored(table).shape[0], "vocab_size", vocabulary)
    tied = not plan.has(head) or plan.same(table, head)
    plan.take("target_embedding.tokens.weight", table)
    positions = f"{prefix}.embed_positions"
    plan.ignore(f"{positions}.weights", f"{positions}._float_tensor")  # sinusoids, which are computed
    if plan.has(f"{positions}.weight"):
        plan.take("target_embedding.positions", f"{positions}.weight", first=first, rows=fields["max_positions"])
    if not tied:
        plan.take("projection.weight", head)
    plan.ignore(*(name for name in plan.theirs if name.startswith(("encoder.", "model.encoder."))))
    states = f"{_BRIDGE}.weight"
    if not plan.has(states):
        states = f"{prefix}.layers.0.encoder_attn.k_proj.weight"
    config = model.config_of(
        source="features",
        feature_size=plan.stored(states).shape[1],
        encoder_layers=0,
        decoder_layers=model.get("decoder_layers", kind=int),
        d_model=plan.stored(table).shape[1],
        heads=model.get("decoder_attention_heads", kind=int),
        ffn=model.get("decoder_ffn_dim", kind=int),
        activation=model.activation("activation_function", ACTIVATIONS),
        positions="learned",
        tie_projection=tied,
        target_vocabulary=vocabulary,
        **fields,
    )
    map_layers(plan, config, FAIRSEQ, prefix.removesuffix("decoder"))
    return config


def _fold_bridge(model: HuggingFaceModel, config: Config) -> None:
    """Fold the projection between encoder and decoder, if there is one, into keys and values of cross-attention."""
    plan = model.plan
    if not plan.has(f"{_BRIDGE}.weight"):
        return
    weight, bias = (plan.stored(f"{_BRIDGE}.{part}").whole().float() for part in ("weight", "bias"))
    for layer in range(config.decoder_layers):
        for part in ("key", "value"):
            name = f"decoder.{layer}.cross_attention.{part}"
            before = plan.parts[f"{name}.weight"]
            matrix = before.read(0, before.shape[0]).float()
            shift = plan.parts[f"{name}.bias"].read(0, before.shape[0]).float()
            plan.put(f"{name}.weight", torch.mm(matrix, weight), before.origin)
            plan.put(f"{name}.bias", torch.mv(matrix, bias) + shift, before.origin)


def _prompt(model: HuggingFaceModel, options: ImportOptions) -> tuple[int, ...]:
    """Return the ids that Whisper's outputs begin with, as `generate` chooses them: language, task, no timestamps.

    The ids are empty, with a note, if `generate` would detect the language.

    Raises:
        InputError: the model does not have the language or the task.
    """
    languages = model.generation("lang_to_id") or {}
    language = _language(model, options, languages)
    task = _task(model, options, language)
    ids: list[int | None] = []
    if language is not None:
        ids = [languages[language]]
        task = task or "transcribe"
    elif task is None:
        forced = model.generation("forced_decoder_ids") or model.fields.get("forced_decoder_ids") or ()
        ids = [token for _, token in sorted(forced)]
    if languages and (not ids or ids[0] is None):
        model.notes.append(
            "no language is set: give --source-language, or begin each output with the ids of language, task and "
            "<|notimestamps|> (option prefix)"
        )
        return ()
    ids.append((model.generation("task_to_id") or {}).get(task))
    model.drop_setting("forced_decoder_ids")
    last = model.generation("no_timestamps_token_id")
    ids = [token for token in ids if token not in (None, last)]
    if not _has_times(model, options):
        ids.append(last)
    return tuple(token for token in ids if isinstance(token, int))


def _language(model: HuggingFaceModel, options: ImportOptions, languages: dict[str, int]) -> str | None:
    """Return the token of the language, from the option or from generation_config.json; None if neither sets one.

    Raises:
        InputError: the model does not have it.
    """
    name = options.source_language or model.generation("language")
    if name is None or name in languages:
        return name
    token = f"<|{name}|>"
    if token not in languages:
        origin = "--source-language" if options.source_language else f"{model.generation_file}: language"
        names = ", ".join(sorted(each.strip("<|>") for each in languages)) or "none"
        raise InputError(
            f"{origin} {name} is not one of this model: there are {names}; choose one with --source-language"
        )
    return token


def _task(model: HuggingFaceModel, options: ImportOptions, language: str | None) -> str | None:
    """Return the name of the task, from the target language or from generation_config.json; None if neither sets one.

    Raises:
        InputError: the model does not translate to the target language.
    """
    target = options.target_language
    if target is None:
        task: str | None = model.generation("task")
        return task
    if language is None:
        raise InputError(f"--target-language {target} needs --source-language, the spoken language")
    if language == f"<|{target}|>":
        return "transcribe"
    if target != "en" or "translate" not in (model.generation("task_to_id") or {}):
        raise InputError(
            f"--target-language {target} is not one of this model: it transcribes"
            + (", or translates to en" if target != "en" else "")
        )
    return "translate"


def _tokenizer(model: HuggingFaceModel, ours: Config, options: ImportOptions) -> TokenizerParts:
    """Return the tokenizer: XLM-RoBERTa's SentencePiece (TrOCR-small, Donut), byte-level BPE, or tokenizer.json.

    Raises:
        CheckpointError: there is none, or it belongs to another model.
    """
    if not options.tokenizer:
        return TokenizerParts(TokenizerDescription("none", None, None, (), (), (), None))
    directory = model.directory
    if (directory / SPM).is_file():
        files = sentencepiece_files(directory, ours.target_vocabulary, "", KEEPS_SPACES)
        return described(files, (), (ours.eos_id,), (), None)
    if not any((directory / name).is_file() for name in ("tokenizer.json", "vocab.json")):
        raise CheckpointError(f"{directory} has no tokenizer.json: save its tokenizer there, or give --no-tokenizer")
    if (directory / "tokenizer.json").is_file():
        file, data = json_sentencepiece(directory)
        if data is not None:
            return sentencepiece_parts(file, data, without_special(data, file), ours, KEEPS_SPACES)
    data = byte_level_tokenizer(directory, ours.target_vocabulary)
    names = TokenizerFiles("tokenizer/tokenizer.json", None)
    tokenizer = SharedTokenizer("tokenizers", names, {"tokenizer.json": data}, {})
    return described(tokenizer, (), (ours.eos_id,), (), None)


def _imported(kind: str, model: HuggingFaceModel, ours: Config, tokenizer: TokenizerParts) -> Imported:
    model.plan.check(ours)
    model.notes.append(
        f"the encoder is {ours.external_encoder}: run it with the library of your choice, and give its last hidden "
        f"states, [states, {ours.feature_size}], to translate_features"
    )
    generation = model.generation_settings(ours.target_vocabulary, banned=False)
    return Imported(kind, ours, model.plan, tokenizer, model.notes, generation)
