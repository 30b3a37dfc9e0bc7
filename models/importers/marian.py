"""Hugging Face Marian (OPUS-MT): Junczys-Dowmunt et al. (2018), arXiv:1804.00344.

Post-norm. In the position table, sines precede cosines. Source and target share a vocabulary or have one each. Ids are
those of vocab.json, not SentencePiece's. The decoder starts with pad, whose embedding is 0; pad is never generated.
"""

import re
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor
from txport.models.config import Config
from txport.models.importers.huggingface import HuggingFaceModel
from txport.models.importers.imported import Imported, ImportOptions, TokenizerParts
from txport.models.importers.plan import ImportPlan
from txport.models.importers.settings import tokenizer_settings
from txport.models.importers.tokenizers.added_tokens import PYTHON, added_tokens, with_added
from txport.models.importers.tokenizers.languages import chosen_language
from txport.models.importers.tokenizers.pieces import completed, pieces_of
from txport.models.importers.tokenizers.vocabulary import by_id, read_bytes, read_vocabulary, vocabulary_bytes
from txport.models.positions import sinusoids
from txport.runtime.bundle.tokenizer_schema import Languages, TokenizerDescription, TokenizerFiles, ids_only
from txport.runtime.errors import CheckpointError

_SPECIAL = ("</s>", "<unk>", "<pad>")
_UNK = "<unk>"
_MARIANS_UNK = 1  # in all vocabularies of Marian
_LANGUAGE = re.compile(r">>(.*)<<")
# Options of old config.json files. Hugging Face's Marian supports only these values.
_NEUTRAL = {name: (False, None) for name in ("normalize_before", "normalize_embedding", "add_final_layer_norm")}


def concatenated_sinusoids(length: int, d_model: int) -> Tensor:
    """Return the sinusoids of the paper with all sines before all cosines, float32 `[length, d_model]`."""
    table = sinusoids(length, d_model)
    return torch.cat([table[:, 0::2], table[:, 1::2]], dim=1)


def import_marian(directory: Path, options: ImportOptions) -> Imported:
    """Read a directory written by Hugging Face's MarianMTModel.

    Raises:
        CheckpointError: something is missing, damaged or not supported.
        InputError: the model does not support a chosen language.
    """
    model = HuggingFaceModel(directory, options.adapter)
    model.refuse(_NEUTRAL)
    shared = model.get("share_encoder_decoder_embeddings", True, bool)
    ours = model.config(unk_id=_MARIANS_UNK, **model.embeddings(shared=shared))
    map_positions(model.plan, model.prefix, ours)
    model.layers(ours)
    model.plan.check(ours)
    tokenizer = TokenizerParts(ids_only(ours.eos_id))
    if options.tokenizer:
        tokenizer, unk = _tokenizer(directory, ours, options)
        ours = replace(ours, unk_id=unk)
    tokenizer = tokenizer.beginning_with(model.forced_start(ours.target_vocabulary))
    return Imported(
        "marian", ours, model.plan, tokenizer, model.notes, model.generation_settings(ours.target_vocabulary)
    )


def map_positions(plan: ImportPlan, prefix: str, ours: Config) -> None:
    """Map stored position tables, which old files contain, or compute them as Marian does."""
    for side, theirs in (("source", "encoder"), ("target", "decoder")):
        name = f"{prefix}{theirs}.embed_positions.weight"
        if plan.has(name):
            plan.take(f"{side}_embedding.positions", name)
        else:
            plan.put(f"{side}_embedding.positions", concatenated_sinusoids(ours.max_positions, ours.d_model))


def _tokenizer(directory: Path, ours: Config, options: ImportOptions) -> tuple[TokenizerParts, int]:
    """Return the tokenizer, and the id of unknown pieces."""
    separate = tokenizer_settings(directory).optional("separate_vocabs", bool) is True
    source_file = directory / "vocab.json"
    source = read_vocabulary(source_file, ours.source_vocabulary)
    if separate:
        target = read_vocabulary(directory / "target_vocab.json", ours.target_vocabulary)
    else:
        target = source
    unk = source.get(_UNK)
    if unk is None or target.get(_UNK) != unk:
        raise CheckpointError(f"{source_file} has no {_UNK}, or another one than the target's: give --no-tokenizer")
    languages = {match[1]: token for piece, token in source.items() if (match := _LANGUAGE.fullmatch(piece))}
    default = chosen_language(options.target_language, languages, "target", directory)
    chosen_language(options.source_language, {}, "source", directory)
    models = [read_bytes(directory / f"{side}.spm") for side in ("source", "target")]
    pieces_by_side = [
        pieces_of(model, directory / f"{side}.spm") for side, model in zip(("source", "target"), models, strict=True)
    ]
    added = added_tokens(directory, source, min(ours.source_vocabulary, ours.target_vocabulary), PYTHON)
    special = {*_SPECIAL, *(f">>{name}<<" for name in languages)}
    tables = [
        with_added(by_id(side, special), model, added, side is not source)
        for side, model in zip((source, target), models, strict=True)
    ]
    models[1] = completed(models[1], pieces_by_side[1], [piece for piece in tables[1] if piece is not None])
    names = ["vocabulary.json"] * 2 if tables[0] == tables[1] else ["source.vocabulary.json", "target.vocabulary.json"]
    files = dict(zip(names, map(vocabulary_bytes, tables), strict=True))
    description = TokenizerDescription(
        kind="sentencepiece",
        source=TokenizerFiles("tokenizer/source.model", f"tokenizer/{names[0]}"),
        target=TokenizerFiles("tokenizer/target.model", f"tokenizer/{names[1]}"),
        source_prefix=("target_language",) if languages else (),
        source_suffix=(ours.eos_id,),
        target_prefix=(),
        languages=Languages({}, languages, None, default, True) if languages else None,
        added=added,
    )
    return TokenizerParts(description, {"source.model": models[0], "target.model": models[1], **files}), unk
