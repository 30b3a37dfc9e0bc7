"""Common parts of importers: mapping of layers by the names of other toolkits, and fairseq's positions."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from txport.models.config import Config
from txport.models.importers.plan import ImportPlan

# Rows of fairseq's position tables before the first token: padding (id 1 in all of these models) and the row before.
OFFSET = 2


@dataclass(frozen=True)
class LayerNames:
    """Names of a toolkit's layers and their parts.

    Attributes:
        stacks: prefixes before the numbers of encoder and decoder layers.
        attentions: self-attention and cross-attention.
        feed_forward: the inner and the outer linear layer.
        encoder_norms: LayerNorms of self-attention and feed-forward.
        decoder_norms: LayerNorms of self-attention, cross-attention and feed-forward.
        projections: query, key, value and output projections of attention, if they have separate matrices.
        no_bias: parts that may lack biases: "attention", "feed_forward", "norm".
    """

    stacks: tuple[str, str]
    attentions: tuple[str, str]
    feed_forward: tuple[str, str]
    encoder_norms: tuple[str, str]
    decoder_norms: tuple[str, str, str]
    projections: tuple[str, str, str, str] = ("q_proj", "k_proj", "v_proj", "out_proj")
    no_bias: tuple[str, ...] = ("attention", "feed_forward")


# Names of fairseq, BART and its relatives.
FAIRSEQ = LayerNames(
    stacks=("encoder.layers", "decoder.layers"),
    attentions=("self_attn", "encoder_attn"),
    feed_forward=("fc1", "fc2"),
    encoder_norms=("self_attn_layer_norm", "final_layer_norm"),
    decoder_norms=("self_attn_layer_norm", "encoder_attn_layer_norm", "final_layer_norm"),
)


def map_layers(plan: ImportPlan, config: Config, names: LayerNames, prefix: str = "") -> None:
    """Map all layers. `prefix` precedes the names of both stacks."""
    sides = (
        ("encoder", config.encoder_layers, ("attention",), names.encoder_norms),
        ("decoder", config.decoder_layers, ("self_attention", "cross_attention"), names.decoder_norms),
    )
    for (side, count, attentions, norms), stack in zip(sides, names.stacks, strict=True):
        for index in range(count):
            ours = f"{side}.{index}"
            theirs = f"{prefix}{stack}.{index}"
            for part, name in zip(attentions, names.attentions, strict=False):
                _attention(plan, f"{ours}.{part}", f"{theirs}.{name}", config, names)
            for part, name in zip((*attentions, "feed_forward"), norms, strict=True):
                plan.affine(f"{ours}.{part}_residual.norm", f"{theirs}.{name}", optional_bias="norm" in names.no_bias)
            for part, name in zip(("inner", "outer"), names.feed_forward, strict=True):
                optional = "feed_forward" in names.no_bias
                plan.affine(f"{ours}.feed_forward.{part}", f"{theirs}.{name}", optional_bias=optional)


def _attention(plan: ImportPlan, ours: str, theirs: str, config: Config, names: LayerNames) -> None:
    """Map attention with four matrices, or with query, key and value in one packed matrix, in this order."""
    d_model = config.d_model
    parts = ("query", "key", "value", "output")
    packed = plan.has(f"{theirs}.in_proj_weight")
    for number, (name, projection) in enumerate(zip(parts, names.projections, strict=True)):
        if not config.attention_bias:
            plan.take(f"{ours}.{name}.weight", f"{theirs}.{projection}.weight")
            continue
        if not packed or name == "output":
            plan.affine(f"{ours}.{name}", f"{theirs}.{projection}", optional_bias="attention" in names.no_bias)
            continue
        plan.take(f"{ours}.{name}.weight", f"{theirs}.in_proj_weight", first=number * d_model, rows=d_model)
        if plan.has(f"{theirs}.in_proj_bias"):
            plan.take(f"{ours}.{name}.bias", f"{theirs}.in_proj_bias", first=number * d_model, rows=d_model)
        else:
            plan.put(f"{ours}.{name}.bias", torch.zeros(d_model))


def offset_sinusoids(length: int, d_model: int, first: int = OFFSET) -> Tensor:
    """Return fairseq's sinusoids, float32 `[length, d_model]`: row i is fairseq's position i + `first`.

    Sines precede cosines, and frequencies fall to exactly 1/10000, as in tensor2tensor. They are computed in float32
    as in fairseq, because its rounding errors are visible at far positions.
    """
    half = d_model // 2
    frequencies = torch.exp(torch.arange(half).float() * -(math.log(10000) / max(1, half - 1)))
    angles = torch.arange(first, length + first).float()[:, None] * frequencies[None]
    return torch.cat([torch.sin(angles), torch.cos(angles)], dim=1)


def neighbours(heads: int) -> Callable[[Tensor], Tensor]:
    """Return a function that reorders rows of queries and keys from rotating halves of a head to rotating pairs."""

    def ordered(weight: Tensor) -> Tensor:
        halves = weight.reshape(heads, 2, -1, *weight.shape[1:])
        return halves.transpose(1, 2).reshape(weight.shape)

    return ordered
