"""What importers share: layers by the names that other toolkits give their parts, and fairseq's positions."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from txport.models.config import Config
from txport.models.importers.plan import ImportPlan

# Rows of a table of fairseq's before the first token's: the padding id, 1 in all of these models, and all before it.
OFFSET = 2


@dataclass(frozen=True)
class LayerNames:
    """What a toolkit calls the layers and what is in them.

    Attributes:
        stacks: what stands before the number of a layer, for "encoder" and "decoder".
        parts: for each of them, our names of the parts of a layer and theirs.
        projections: those of an attention's query, key, value and output, where each has a matrix of its own.
        norm_bias: whether LayerNorms may lack biases, as linear layers always may.
    """

    stacks: Mapping[str, str]
    parts: Mapping[str, Mapping[str, str]]
    projections: tuple[str, str, str, str] = ("q_proj", "k_proj", "v_proj", "out_proj")
    norm_bias: bool = False


# Those of fairseq, and of what descends from its BART.
FAIRSEQ = LayerNames(
    stacks={"encoder": "encoder.layers", "decoder": "decoder.layers"},
    parts={
        "encoder": {
            "attention": "self_attn",
            "attention_residual.norm": "self_attn_layer_norm",
            "feed_forward.inner": "fc1",
            "feed_forward.outer": "fc2",
            "feed_forward_residual.norm": "final_layer_norm",
        },
        "decoder": {
            "self_attention": "self_attn",
            "self_attention_residual.norm": "self_attn_layer_norm",
            "cross_attention": "encoder_attn",
            "cross_attention_residual.norm": "encoder_attn_layer_norm",
            "feed_forward.inner": "fc1",
            "feed_forward.outer": "fc2",
            "feed_forward_residual.norm": "final_layer_norm",
        },
    },
)


def map_layers(plan: ImportPlan, config: Config, names: LayerNames, prefix: str = "") -> None:
    """Map all layers; `prefix` stands before the names of their stacks."""
    for side, count in (("encoder", config.encoder_layers), ("decoder", config.decoder_layers)):
        for index in range(count):
            for part, theirs in names.parts[side].items():
                ours, theirs = f"{side}.{index}.{part}", f"{prefix}{names.stacks[side]}.{index}.{theirs}"
                if part.endswith("attention"):
                    _attention(plan, ours, theirs, config.d_model, names)
                else:
                    plan.affine(ours, theirs, optional_bias=names.norm_bias or not part.endswith("norm"))


def _attention(plan: ImportPlan, ours: str, theirs: str, d_model: int, names: LayerNames) -> None:
    """With four matrices, or with query, key and value packed in one, in this order."""
    parts = ("query", "key", "value", "output")
    packed = plan.has(f"{theirs}.in_proj_weight")
    for number, (name, projection) in enumerate(zip(parts, names.projections, strict=True)):
        if not packed or name == "output":
            plan.affine(f"{ours}.{name}", f"{theirs}.{projection}", optional_bias=True)
            continue
        plan.take(f"{ours}.{name}.weight", f"{theirs}.in_proj_weight", first=number * d_model, rows=d_model)
        if plan.has(f"{theirs}.in_proj_bias"):
            plan.take(f"{ours}.{name}.bias", f"{theirs}.in_proj_bias", first=number * d_model, rows=d_model)
        else:
            plan.put(f"{ours}.{name}.bias", torch.zeros(d_model))


def offset_sinusoids(length: int, d_model: int) -> Tensor:
    """float32 `[length, d_model]`: row i is what the token at i gets, which fairseq calls position i + 2.

    All sines stand before all cosines, and frequencies fall to 1/10000 exactly at the last one: tensor2tensor's
    version, in float32 as there, since at far positions rounding shows.
    """
    half = d_model // 2
    frequencies = torch.exp(torch.arange(half).float() * -(math.log(10000) / max(1, half - 1)))
    angles = torch.arange(OFFSET, length + OFFSET).float()[:, None] * frequencies[None]
    return torch.cat([torch.sin(angles), torch.cos(angles)], dim=1)
