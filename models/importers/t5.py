"""Hugging Face T5 (Raffel et al. 2020, arXiv:1910.10683), T5 1.1, Flan-T5, mT5, UMT5, MADLAD-400, ByT5 and CodeT5.

Pre-norm with RMSNorm, relative positions and no biases. Later models have gated feed-forward layers and an untied
projection. T5 does not divide scores by sqrt(head_dim), so the query weights are multiplied by it. T5's factor before
the projection is multiplied into the last norm.
"""

from pathlib import Path
from typing import Any

import torch
from txport.models.config import Config
from txport.models.importers.huggingface import ACTIVATIONS, HuggingFaceModel
from txport.models.importers.imported import Imported, ImportOptions
from txport.models.importers.plan import ImportPlan
from txport.models.importers.tokenizers.t5 import t5_tokenizer
from txport.runtime.errors import CheckpointError

# config.json does not contain this id. T5's tokenizers begin with <pad>, </s> and <unk>.
_UNK = 2


def import_t5(directory: Path, options: ImportOptions) -> Imported:
    """Read a directory written by T5ForConditionalGeneration, or by the MT5 or UMT5 class.

    Raises:
        CheckpointError: something is missing, damaged or not supported.
        InputError: the model does not support a chosen language.
    """
    model = HuggingFaceModel(directory, options.adapter)
    ours = model.config_of(**_fields(model), **_embeddings(model))
    _layers(model.plan, ours)
    if _is_scaled(model):
        model.plan.change("decoder_norm.weight", lambda weight: weight * ours.d_model**-0.5)
    model.plan.check(ours)
    ours, tokenizer = t5_tokenizer(model, ours, options)
    tokenizer = tokenizer.beginning_with(model.forced_start(ours.target_vocabulary))
    return Imported("t5", ours, model.plan, tokenizer, model.notes, model.generation_settings(ours.target_vocabulary))


def _fields(model: HuggingFaceModel) -> dict[str, Any]:
    """Return the fields of our config except the embeddings. Missing fields have the values of old versions."""
    kind = str(model.get("feed_forward_proj", "relu"))
    layers = model.get("num_layers", kind=int)
    name = {"gated-gelu": "gelu_new"}.get(kind, kind.removeprefix("gated-"))
    gated = model.get("is_gated_act", kind.startswith("gated-"), bool)
    return {
        "d_model": model.get("d_model", kind=int),
        "heads": model.get("num_heads", kind=int),
        "head_dim": model.get("d_kv", kind=int),
        "ffn": model.get("d_ff", kind=int),
        "encoder_layers": layers,
        "decoder_layers": model.optional("num_decoder_layers", int) or layers,
        "norm": "pre",
        "norm_kind": "rms",
        "layer_norm_epsilon": model.get("layer_norm_epsilon", 1e-6, float),
        "positions": "relative",
        "position_buckets": model.get("relative_attention_num_buckets", 32, int),
        "position_distance": model.get("relative_attention_max_distance", 128, int),
        "position_tables": "layer" if model.fields.get("model_type") == "umt5" else "stack",
        "activation": model.activation("dense_act_fn", ACTIVATIONS, name),
        "feed_forward": "gated" if gated else "plain",
        "attention_bias": False,
        "feed_forward_bias": False,
        "scale_embedding": False,
        "dropout": model.rate("dropout_rate", 0.1),
        "attention_dropout": model.rate("dropout_rate", 0.1),
        "unk_id": _UNK,
    }


def _embeddings(model: HuggingFaceModel) -> dict[str, Any]:
    """Map the tables. Ties are found by comparison, since transformers 5 writes of all models that they are tied.

    A missing table is the shared one, or that of the decoder, as in MADLAD's files.
    """
    plan = model.plan
    shared = "shared.weight"
    head = "lm_head.weight"
    sides = [f"{side}.embed_tokens.weight" for side in ("encoder", "decoder")]
    common = next((name for name in (shared, *reversed(sides)) if plan.has(name)), shared)
    source, target = (side if plan.has(side) else common for side in sides)
    fields = plan.embeddings(source, target, head if plan.has(head) else common)
    plan.ignore(shared)
    rows = fields["source_vocabulary"]
    model.check_rows(source, rows, "vocab_size", model.get("vocab_size", kind=int))
    return {**fields, "projection_bias": model.projection_bias(rows)}


def _is_scaled(model: HuggingFaceModel) -> bool:
    """Return whether the input of the projection is multiplied by d_model^-0.5: yes for T5 1.0, no for T5 1.1.

    Files of transformers 5 have a field for it. In older files it follows from the tie, which version 5 always writes.
    """
    tied: bool = model.get("tie_word_embeddings", True, bool)
    # With tied tables, MT5 of transformers 4 scales as T5 does. MT5 of version 5 never does.
    if model.fields.get("model_type") == "mt5":
        return tied and str(model.fields.get("transformers_version", "")).startswith("4.")
    return bool(model.get("scale_decoder_outputs", tied, bool))


def _layers(plan: ImportPlan, ours: Config) -> None:
    stacks = (
        ("encoder", ours.encoder_layers, {"attention": "SelfAttention"}),
        ("decoder", ours.decoder_layers, {"self_attention": "SelfAttention", "cross_attention": "EncDecAttention"}),
    )
    for side, layers, attentions in stacks:
        for index in range(layers):
            for number, part in enumerate((*attentions, "feed_forward")):
                mine = f"{side}.{index}.{part}"
                theirs = f"{side}.block.{index}.layer.{number}"
                plan.take(f"{mine}_residual.norm.weight", f"{theirs}.layer_norm.weight")
                if part == "feed_forward":
                    _feed_forward(plan, mine, f"{theirs}.DenseReluDense", ours)
                else:
                    _attention(plan, mine, f"{theirs}.{attentions[part]}", ours)
        plan.take(f"{side}_norm.weight", f"{side}.final_layer_norm.weight")
        if ours.position_tables == "layer":
            tables = layers
        else:
            tables = 1
        names = [f"{side}.block.{i}.layer.0.SelfAttention.relative_attention_bias.weight" for i in range(tables)]
        plan.put(f"{side}_positions.weight", _stack(plan, names), names[0])
    # An unused tensor of the first T5 files.
    plan.ignore("decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight")


def _attention(plan: ImportPlan, mine: str, theirs: str, ours: Config) -> None:
    for part in ("query", "key", "value", "output"):
        plan.take(f"{mine}.{part}.weight", f"{theirs}.{part[0]}.weight")
    plan.change(f"{mine}.query.weight", lambda weight: weight * ours.encoder.head_dim**0.5)


def _feed_forward(plan: ImportPlan, mine: str, theirs: str, ours: Config) -> None:
    gated = ours.feed_forward == "gated"
    for part, name in {"gate": "wi_0", "inner": "wi_1"}.items() if gated else {"inner": "wi"}.items():
        plan.take(f"{mine}.{part}.weight", f"{theirs}.{name}.weight")
    plan.take(f"{mine}.outer.weight", f"{theirs}.wo.weight")


def _stack(plan: ImportPlan, names: list[str]) -> torch.Tensor:
    """Return tables of relative positions as one tensor, float32 `[tables, buckets, heads]`.

    Raises:
        CheckpointError: one is missing, or their shapes differ.
    """
    tables = [plan.stored(name) for name in names]
    for name, table in zip(names, tables, strict=True):
        if table.shape != tables[0].shape:
            raise CheckpointError(f"{plan.source}: {name} has shape {table.shape}, but {names[0]} {tables[0].shape}")
    return torch.stack([table.whole().float() for table in tables])
