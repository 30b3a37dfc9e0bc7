"""Weights of CTranslate2's Transformers as ours.

Query, key and value are packed in one matrix, in this order. Factors that our model does not have go into weights:

* queries that are divided by something else than the root of the head width, into query weights;
* `scale_outputs`, into the last norm, or without one into the projection;
* Marian's GELU, x sigmoid(1.702 x) = SiLU(1.702 x) / 1.702, into the feed-forward layers;
* factors of embeddings other than 1 and the root of their width, into the tables.

A decoder that starts from a zero embedding (Marian's) gets one more token, with a row of zeros, which is banned.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from txport.models.config import BANNED, Config
from txport.models.importers.ctranslate2.model_file import ModelFile
from txport.models.importers.ctranslate2.options import SideOptions, query_factor
from txport.models.importers.layers import neighbours, offset_sinusoids
from txport.models.importers.plan import ImportPlan
from txport.models.importers.weights import Stored
from txport.runtime.errors import CheckpointError

PROJECTION = "decoder/projection/weight"
_BIAS = "decoder/projection/bias"
GELU_SIGMOID = 1.702
_PARTS = ("query", "key", "value")


@dataclass(frozen=True)
class Tables:
    """Changes of the embedding tables.

    Attributes:
        source, target: names of the tables.
        factors: factor of each table.
        swaps: two ids of each table to swap.
        rows: final number of rows of the target and the projection, and minimum number of the source.
        projection: name of the projection's weight.
    """

    source: str
    target: str
    factors: tuple[float, float]
    swaps: tuple[tuple[int, int], tuple[int, int]]
    rows: int
    projection: str = PROJECTION


def changed_tables(tensors: Mapping[str, Stored], tables: Tables) -> dict[str, Stored]:
    """Return the tensors with changed embeddings and projection. Tables stay shared if both sides change alike."""
    changed = dict(tensors)
    sides = (
        (tables.source, 0, tables.factors[0]),
        (tables.target, 1, tables.factors[1]),
        (tables.projection, 1, 1.0),
    )
    for name, side, factor in sides:
        if name in tensors:
            changed[name] = _changed(
                tensors[name], tables.swaps[side], max(tables.rows, tensors[name].shape[0]), factor
            )
    return changed


def _changed(stored: Stored, swap: tuple[int, int], rows: int, factor: float) -> Stored:
    """Return a table with two rows swapped, rows of zeros at its end, and a factor."""
    count = stored.shape[0]
    if stored.dtype is None or (swap[0] == swap[1] and rows == count and factor == 1):
        return stored

    def read(start: int, stop: int) -> Tensor:
        stop = min(stop, rows)
        part = stored.read(start, min(stop, count)).float() * factor
        # Only the swapped rows are read apart, so that the table is never completely in memory.
        for mine, theirs in (swap, swap[::-1]):
            if start <= mine < min(stop, count) and mine != theirs:
                part[mine - start] = stored.read(theirs, theirs + 1).float()[0] * factor
        return torch.cat([part, part.new_zeros(max(0, stop - max(start, count)), *stored.shape[1:])])

    dtype = stored.dtype
    if factor != 1:
        dtype = torch.float32
    return Stored((rows, *stored.shape[1:]), dtype, read, (stored.storage, swap, rows, factor))


def map_projection_bias(
    plan: ImportPlan, bans: int, swap: tuple[int, int], names: tuple[str, str] = (PROJECTION, _BIAS)
) -> bool:
    """Map the bias of the projection, with `bans` more tokens that are banned; return whether there is a bias."""
    weight, name = names
    if not plan.has(name) and not bans:
        return False
    rows_of_weight = plan.stored(weight).shape[0] - bans
    bias = torch.zeros(rows_of_weight)
    if plan.has(name):
        stored = plan.stored(name)
        if stored.shape != (rows_of_weight,):
            raise CheckpointError(f"{plan.source}: {name} has shape {stored.shape}, not ({rows_of_weight},)")
        bias = stored.whole().float()
    order = torch.arange(rows_of_weight)
    order[list(swap)] = torch.tensor(swap[::-1])
    plan.put("projection.bias", torch.cat([bias[order], torch.full((bans,), BANNED)]), name)
    return True


def map_weights(plan: ImportPlan, model: ModelFile, config: Config, sides: tuple[SideOptions, SideOptions]) -> None:
    """Map everything except the embeddings' tokens and the projection."""
    for side, ours in zip(sides, ("source", "target"), strict=True):
        layers = _Layers(plan, model, config, side)
        for index in range(side.layers):
            layers.layer(index)
        if config.embedding_norm:
            layers.norm(f"{ours}_embedding.norm", f"{side.name}/layernorm_embedding")
        if side.norms[1]:
            layers.norm(f"{side.name}_norm", f"{side.name}/layer_norm")
        if config.positions == "learned":
            _table_of_positions(plan, ours, side, config)
        elif config.positions == "relative":
            _relative_positions(plan, side, config)
        else:
            plan.ignore(f"{side.name}/position_encodings/encodings")
    scale = model.attributes.get("decoder/scale_outputs", 1)
    if sides[1].norms[1]:
        multiply(plan, float(scale), "decoder_norm.weight", "decoder_norm.bias")
    else:
        multiply(plan, float(scale), "projection.weight")


class _Layers:
    """Maps the layers of a side.

    Args:
        plan: the plan of the model.
        model: the model file, for its attributes.
        config: our config of the model.
        side: encoder or decoder.
    """

    def __init__(self, plan: ImportPlan, model: ModelFile, config: Config, side: SideOptions) -> None:
        self._plan = plan
        self._model = model
        self._config = config
        self._side = side

    def layer(self, index: int) -> None:
        ours = f"{self._side.name}.{index}"
        theirs = f"{self._side.name}/layer_{index}"
        if self._side.name == "encoder":
            attentions = {"attention": "self_attention"}
        else:
            attentions = {"self_attention": "self_attention", "cross_attention": "attention"}
        for mine, name in attentions.items():
            self._attention(f"{ours}.{mine}", f"{theirs}/{name}")
            self.norm(f"{ours}.{mine}_residual.norm", f"{theirs}/{name}/layer_norm")
        self._feed_forward(f"{ours}.feed_forward", f"{theirs}/ffn")
        self.norm(f"{ours}.feed_forward_residual.norm", f"{theirs}/ffn/layer_norm")

    def norm(self, ours: str, theirs: str) -> None:
        self._plan.take(f"{ours}.weight", f"{theirs}/gamma")
        if self._config.norm_kind == "layer":
            self._plan.take(f"{ours}.bias", f"{theirs}/beta")
        # Gemma's norms multiply by 1 + weight.
        if self._model.attributes.get(f"{theirs}/layer_norm_use_residual", 0):
            self._plan.change(f"{ours}.weight", lambda weight: weight + 1)

    def _attention(self, ours: str, theirs: str) -> None:
        inner = self._side.heads * self._side.head_dim
        is_self_attention = theirs.endswith("self_attention")
        for number, part in enumerate(_PARTS):
            if is_self_attention:
                self._linear(f"{ours}.{part}", f"{theirs}/linear_0", number * inner, inner, 3)
            elif part == "query":
                self._linear(f"{ours}.{part}", f"{theirs}/linear_0", 0, inner, 1)
            else:
                self._linear(f"{ours}.{part}", f"{theirs}/linear_1", (number - 1) * inner, inner, 2)
        self._linear(f"{ours}.output", f"{theirs}/linear_{2 - is_self_attention}")
        if is_self_attention and self._config.positions == "shaw":
            for name in ("keys", "values"):
                self._plan.take(f"{ours}.positions.{name}", f"{theirs}/relative_position_{name}")
        factor = query_factor(self._model, theirs, self._side, self._config.d_model)
        multiply(self._plan, factor, f"{ours}.query.weight", f"{ours}.query.bias")
        # CTranslate2 rotates halves of a head, our model neighbours. Reordered rows have the same products.
        if is_self_attention and self._side.sliced:
            for name in (f"{ours}.{part}.{kind}" for part in _PARTS[:2] for kind in ("weight", "bias")):
                if name in self._plan.parts:
                    self._plan.change(name, neighbours(self._side.heads))

    def _feed_forward(self, ours: str, theirs: str) -> None:
        first = ("inner", "gate")[self._side.gated]
        self._linear(f"{ours}.{first}", f"{theirs}/linear_0", bias=self._config.feed_forward_bias)
        if self._side.gated:
            self._linear(f"{ours}.inner", f"{theirs}/linear_0_noact", bias=self._config.feed_forward_bias)
        self._linear(f"{ours}.outer", f"{theirs}/linear_1", bias=self._config.feed_forward_bias)
        # See the formula at the top of the file: the factor inside, and its inverse behind the activation.
        if self._side.activation == "gelu_sigmoid":
            multiply(self._plan, GELU_SIGMOID, f"{ours}.{first}.weight", f"{ours}.{first}.bias")
            multiply(self._plan, 1 / GELU_SIGMOID, f"{ours}.outer.weight")

    def _linear(
        self, ours: str, theirs: str, first: int = 0, rows: int | None = None, parts: int = 1, bias: bool | None = None
    ) -> None:
        """Map `rows` rows of a linear layer from row `first` on. A missing bias becomes zeros."""
        plan = self._plan
        shape = plan.stored(f"{theirs}/weight").shape
        if rows is not None and shape[:1] != (rows * parts,):
            raise CheckpointError(
                f"{plan.source}: {theirs}/weight has shape {shape}, but {rows * parts} rows are needed"
            )
        plan.take(f"{ours}.weight", f"{theirs}/weight", first, rows)
        if not (self._config.attention_bias if bias is None else bias):
            return
        if plan.has(f"{theirs}/bias"):
            plan.take(f"{ours}.bias", f"{theirs}/bias", first, rows)
        else:
            plan.put(f"{ours}.bias", torch.zeros(plan.parts[f"{ours}.weight"].shape[0]))


def multiply(plan: ImportPlan, factor: float, *names: str) -> None:
    """Multiply our tensors of these names, if they exist."""
    for name in names:
        if factor != 1 and name in plan.parts:
            plan.multiply(name, factor)


def _table_of_positions(plan: ImportPlan, ours: str, side: SideOptions, config: Config) -> None:
    name = f"{side.name}/position_encodings/encodings"
    if side.positions == "table":
        plan.take(f"{ours}_embedding.positions", name, 0, config.max_positions)
    else:  # those of OpenNMT-tf, which counts positions from 1
        plan.put(f"{ours}_embedding.positions", offset_sinusoids(config.max_positions, config.d_model, 1))


def _relative_positions(plan: ImportPlan, side: SideOptions, config: Config) -> None:
    names = [f"{side.name}/layer_{index}/self_attention/relative_attention_bias" for index in range(side.layers)]
    shape = (config.position_buckets, side.heads)
    for name in names:
        if (actual := plan.stored(name).shape) != shape:
            raise CheckpointError(f"{plan.source}: {name} has shape {actual}, not {shape}")
    if config.position_tables == "stack":
        names = names[:1]
    tables = torch.stack([plan.stored(name).whole().float() for name in names])
    plan.put(f"{side.name}_positions.weight", tables, names[0])


def one_table(plan: ImportPlan, side: SideOptions) -> bool:
    """Return whether all layers of a side have the same relative positions."""
    return plan.same(
        *(f"{side.name}/layer_{index}/self_attention/relative_attention_bias" for index in range(side.layers))
    )


def has_bias(tensors: Mapping[str, Stored], part: str) -> bool:
    """Return whether any linear layer of "attention" or "ffn" has a bias."""
    return any(f"{part}/linear_" in name and name.endswith("/bias") for name in tensors)
