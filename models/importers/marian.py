"""Hugging Face Marian (OPUS-MT): Junczys-Dowmunt et al. (2018), arXiv:1804.00344.

Post-norm, sinusoids whose cosines stand behind the sines, perhaps two vocabularies. Ids are those of vocab.json, not
SentencePiece's; the decoder starts from pad, whose embedding is zero, and pad is banned from answers.
"""

import re
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor
from txport.models.importers.huggingface import (
    HuggingFaceConfig,
    by_id,
    check_rows,
    chosen,
    embeddings,
    layers,
    projection_bias,
    read_bytes,
    read_json_if_there,
    read_vocabulary,
    search_notes,
)
from txport.models.importers.imported import Imported, Options, TokenizerParts, ids_only_parts
from txport.models.importers.plan import Plan
from txport.models.importers.tokenizers.files import vocabulary_bytes
from txport.models.importers.tokenizers.pieces import completed, pieces_of
from txport.models.importers.weights import read_directory
from txport.models.transformer import sinusoids
from txport.runtime.bundle.tokenizer_schema import Languages, TokenizerDescription, TokenizerFiles
from txport.runtime.errors import CheckpointError

_SPECIAL = ("</s>", "<unk>", "<pad>")
_UNK = "<unk>"
_MARIANS_UNK = 1  # in every vocabulary that Marian makes
_LANGUAGE = re.compile(r">>(.*)<<")
# Options of old config.json files that Hugging Face's own Marian cannot have otherwise.
_NEUTRAL = {"normalize_before": False, "normalize_embedding": False, "add_final_layer_norm": False}


def concatenated_sinusoids(length: int, d_model: int) -> Tensor:
    """float32 `[length, d_model]`: the sinusoids of the paper, all sines before all cosines."""
    table = sinusoids(length, d_model)
    return torch.cat([table[:, 0::2], table[:, 1::2]], dim=1)


def import_marian(directory: Path, options: Options) -> Imported:
    """Understand a directory that Hugging Face's MarianMTModel wrote.

    Raises:
        CheckpointError: something is missing, damaged or not supported.
        InputError: a language that the model has not got.
    """
    config = HuggingFaceConfig(directory)
    config.refuse(_NEUTRAL)
    plan, notes = Plan(read_directory(directory), directory), search_notes(config)
    shared = config.get("share_encoder_decoder_embeddings", bool, True)
    share, tie = embeddings(plan, "model.", config, shared=shared)
    source_vocabulary = config.get("vocab_size", int)
    target_vocabulary = source_vocabulary if shared else (config.fields.get("decoder_vocab_size") or source_vocabulary)
    check_rows(plan, config, "source_embedding.tokens.weight", "vocab_size", source_vocabulary)
    if not share:
        check_rows(plan, config, "target_embedding.tokens.weight", "decoder_vocab_size", target_vocabulary)
    ours = config.ours(
        source_vocabulary=source_vocabulary,
        target_vocabulary=target_vocabulary,
        max_positions=config.get("max_position_embeddings", int),
        share_embeddings=share,
        tie_projection=tie,
        projection_bias=projection_bias(plan, config, target_vocabulary, notes),
        unk_id=_MARIANS_UNK,
    )
    _positions(plan, ours.max_positions, ours.d_model)
    layers(plan, "model.", ours.encoder_layers, ours.decoder_layers, ours.d_model, ours.ffn)
    plan.check(ours)
    if not options.tokenizer:
        return Imported("marian", ours, plan, ids_only_parts(ours.eos_id), notes)
    tokenizer, unk = _tokenizer(directory, source_vocabulary, target_vocabulary, ours.eos_id, options)
    return Imported("marian", replace(ours, unk_id=unk), plan, tokenizer, notes)


def _positions(plan: Plan, length: int, d_model: int) -> None:
    """The stored tables, which old files have, else what Marian computes."""
    for side in ("source", "target"):
        name = f"model.{'encoder' if side == 'source' else 'decoder'}.embed_positions.weight"
        if plan.has(name):
            plan.take(f"{side}_embedding.positions", name)
        else:
            plan.put(f"{side}_embedding.positions", concatenated_sinusoids(length, d_model))


def _tokenizer(
    directory: Path, source_rows: int, target_rows: int, eos: int, options: Options
) -> tuple[TokenizerParts, int]:
    """The tokenizer, and the id of unknown pieces."""
    separate = bool(read_json_if_there(directory / "tokenizer_config.json").get("separate_vocabs", False))
    source_file = directory / "vocab.json"
    source = read_vocabulary(source_file, source_rows)
    target = read_vocabulary(directory / "target_vocab.json", target_rows) if separate else source
    unk = source.get(_UNK)
    if unk is None or target.get(_UNK) != unk:
        raise CheckpointError(f"{source_file} has no {_UNK}, or another one than the target's; give --no-tokenizer")
    languages = {found[1]: token for piece, token in source.items() if (found := _LANGUAGE.fullmatch(piece))}
    default = chosen(options.target_language, languages, "target", source_file, required=False)
    chosen(options.source_language, {}, "source", source_file, required=False)
    tables = [by_id(side, {*_SPECIAL, *(f">>{name}<<" for name in languages)}) for side in (source, target)]
    models = [read_bytes(directory / f"{side}.spm") for side in ("source", "target")]
    known = [
        pieces_of(model, directory / f"{side}.spm") for side, model in zip(("source", "target"), models, strict=True)
    ]
    models[1] = completed(models[1], known[1], [piece for piece in tables[1] if piece is not None])
    names = ["vocabulary.json"] * 2 if tables[0] == tables[1] else ["source.vocabulary.json", "target.vocabulary.json"]
    files = dict(zip(names, map(vocabulary_bytes, tables), strict=True))
    description = TokenizerDescription(
        kind="sentencepiece",
        source=TokenizerFiles("tokenizer/source.model", f"tokenizer/{names[0]}"),
        target=TokenizerFiles("tokenizer/target.model", f"tokenizer/{names[1]}"),
        source_prefix=("target_language",) if languages else (),
        source_suffix=(eos,),
        target_prefix=(),
        languages=Languages({}, languages, None, default, True) if languages else None,
    )
    return TokenizerParts(description, {"source.model": models[0], "target.model": models[1], **files}), unk
