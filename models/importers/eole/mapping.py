"""Weights of eole's Transformers as ours.

Factors that our model does not have go into weights: `attn_scaling` into queries, quick_gelu,
x sigmoid(1.702 x) = SiLU(1.702 x) / 1.702, into the feed-forward layers, and the 1 that gemma-rms adds into norms.
"""

import math

import torch
from txport.models.config import Config, Side
from txport.models.importers.eole.description import INTERLEAVED, STACKS, EoleModel, biases, query_factor
from txport.models.importers.layers import neighbours, offset_sinusoids
from txport.models.importers.plan import ImportPlan
from txport.models.importers.settings import Settings
from txport.models.positions import sinusoids
from txport.runtime.errors import CheckpointError

_QUICK_GELU = 1.702
_PROJECTIONS = {
    "query": "linear_query",
    "key": "linear_keys",
    "value": "linear_values",
    "output": "final_linear",
}


def map_weights(plan: ImportPlan, model: EoleModel, config: Config) -> None:
    """Map everything except the embeddings' tokens and the projection."""
    for name, fields, side in zip(STACKS, model.sides, (config.encoder, config.decoder), strict=True):
        layers = _Layers(plan, model, config, fields, side)
        for index in range(side.layers):
            layers.layer(name, index)
        layers.norm(f"{name}_norm", f"{name}.layer_norm")
        if config.positions == "relative":
            _relative_positions(plan, name, side, config)
    if config.positions == "learned":
        for ours, theirs in (("source", "src_emb"), ("target", "tgt_emb")):
            _table_of_positions(plan, model, config, f"{ours}_embedding.positions", f"{theirs}.pe")


class _Layers:
    """Maps the layers of a side.

    Args:
        plan: of the model.
        model: its description.
        config: ours.
        fields: of the encoder or the decoder.
        side: its sizes.
    """

    def __init__(self, plan: ImportPlan, model: EoleModel, config: Config, fields: Settings, side: Side) -> None:
        self._plan = plan
        self._model = model
        self._config = config
        self._fields = fields
        self._side = side

    def layer(self, name: str, index: int) -> None:
        ours = f"{name}.{index}"
        theirs = f"{name}.transformer_layers.{index}"
        if name == "encoder":
            attentions = {"attention": ("self_attn", "input_layernorm")}
        else:
            self._plan.ignore(f"{theirs}.layer_scalar")  # only layers with ffn_layernorm multiply by it
            attentions = {
                "self_attention": ("self_attn", "input_layernorm"),
                "cross_attention": ("context_attn", "precontext_layernorm"),
            }
        for mine, (attention, norm) in attentions.items():
            self._attention(f"{ours}.{mine}", f"{theirs}.{attention}")
            self.norm(f"{ours}.{mine}_residual.norm", f"{theirs}.{norm}")
        self._feed_forward(f"{ours}.feed_forward", f"{theirs}.mlp")
        self.norm(f"{ours}.feed_forward_residual.norm", f"{theirs}.post_attention_layernorm")

    def norm(self, ours: str, theirs: str) -> None:
        self._plan.take(f"{ours}.weight", f"{theirs}.weight")
        if self._config.norm_kind == "layer":
            self._plan.take(f"{ours}.bias", f"{theirs}.bias")
        if self._fields.get("layer_norm", "standard") == "gemma-rms":
            self._plan.change(f"{ours}.weight", lambda weight: weight + 1)

    def _attention(self, ours: str, theirs: str) -> None:
        for (part, projection), bias in zip(_PROJECTIONS.items(), biases(self._fields), strict=True):
            # eole 0.6 trains a model without this bias, which follows from another field, and then saves it as set.
            stored = bias and (part != "output" or self._plan.has(f"{theirs}.{projection}.bias"))
            self._linear(f"{ours}.{part}", f"{theirs}.{projection}", stored, self._config.attention_bias)
        factor = query_factor(self._fields, self._side.head_dim)
        if factor != 1:
            self._multiply(factor, f"{ours}.query.weight", f"{ours}.query.bias")
        if self._config.positions == "shaw" and theirs.endswith("self_attn"):
            for part in ("keys", "values"):
                self._plan.take(f"{ours}.positions.{part}", f"{theirs}.relative_positions_embeddings.weight")
            # eole 0.6 multiplies products of queries and keys by a scale, but not those with these vectors.
            self._plan.multiply(f"{ours}.positions.keys", self._side.head_dim**0.5 / factor)
        rotates = self._config.positions == "rotary" and theirs.endswith("self_attn")
        if rotates and not self._model.rotary.get("rotary_interleave", True, kind=bool):
            for name in (f"{ours}.{part}.{kind}" for part in ("query", "key") for kind in ("weight", "bias")):
                if name in self._plan.parts:
                    self._plan.change(name, neighbours(self._side.heads))

    def _feed_forward(self, ours: str, theirs: str) -> None:
        bias = self._fields.get("add_ffnbias", False, kind=bool)
        names = {"inner": "gate_up_proj", "outer": "down_proj"}
        if self._config.feed_forward == "gated":
            names = {"gate": "gate_up_proj", "inner": "up_proj", "outer": "down_proj"}
        for mine, name in names.items():
            self._linear(f"{ours}.{mine}", f"{theirs}.{name}", bias, self._config.feed_forward_bias)
        if self._fields.get("mlp_activation_fn", "relu") == "quick_gelu":
            self._multiply(_QUICK_GELU, f"{ours}.inner.weight", f"{ours}.inner.bias")
            self._multiply(1 / _QUICK_GELU, f"{ours}.outer.weight")

    def _linear(self, ours: str, theirs: str, stored: bool, is_required: bool) -> None:
        """Map a linear layer; a bias that our model has and theirs does not is zeros."""
        self._plan.take(f"{ours}.weight", f"{theirs}.weight")
        if stored:
            self._plan.take(f"{ours}.bias", f"{theirs}.bias")
        elif is_required:
            self._plan.put(f"{ours}.bias", torch.zeros(self._plan.parts[f"{ours}.weight"].shape[0]))

    def _multiply(self, factor: float, *names: str) -> None:
        for name in names:
            if name in self._plan.parts:
                self._plan.multiply(name, factor)


def _table_of_positions(plan: ImportPlan, model: EoleModel, config: Config, ours: str, theirs: str) -> None:
    """Map a table of learned positions, or of sinusoids `[5000, 1, d_model]`, which are computed if missing."""
    rows = config.max_positions
    if model.positions == "Learned":
        plan.take(ours, f"{theirs}.weight", model.shift, rows)
        if config.scale_embedding:  # eole multiplies the sum of embedding and position
            plan.multiply(ours, math.sqrt(config.d_model))
    elif plan.has(f"{theirs}.pe"):
        stored = plan.stored(f"{theirs}.pe")
        if stored.shape[0] < rows or stored.shape[1:] != (1, config.d_model):
            raise CheckpointError(
                f"{plan.source}: {theirs}.pe has shape {stored.shape}, not [5000, 1, {config.d_model}]"
            )
        plan.put(ours, stored.read(0, rows).float()[:, 0], f"{theirs}.pe")
    elif model.positions == INTERLEAVED:
        plan.put(ours, sinusoids(rows, config.d_model))
    else:
        plan.put(ours, offset_sinusoids(rows, config.d_model, 0))


def _relative_positions(plan: ImportPlan, name: str, side: Side, config: Config) -> None:
    """Map the biases of self-attention; eole also stores some for cross-attention, which it does not use on GPUs."""
    layers = [f"{name}.transformer_layers.{index}" for index in range(side.layers)]
    names = [f"{layer}.self_attn.relative_attention_bias.weight" for layer in layers]
    shape = (config.position_buckets, side.heads)
    for each in names:
        if (actual := plan.stored(each).shape) != shape:
            raise CheckpointError(f"{plan.source}: {each} has shape {actual}, not {shape}")
    plan.put(f"{name}_positions.weight", torch.stack([plan.stored(each).whole().float() for each in names]), names[0])
    plan.ignore(*(f"{layer}.context_attn.relative_attention_bias.weight" for layer in layers))
