"""Graphs of the encoder: inputs of decoder steps for a source, and the encoder's output and attention.

Shapes: b batch, h heads, k head_dim, d d_model, s source.
"""

from collections.abc import Sequence
from typing import NamedTuple

import onnx_ir as ir
from torch import nn
from txport.exporter.graphs.layers import (
    Rotation,
    ShawVectors,
    attend,
    write_embedding,
    write_feed_forward,
    write_positions,
    write_projection,
    write_relative_positions,
)
from txport.exporter.graphs.norms import foldable, remaining, write_norm
from txport.exporter.graphs.tensors import ModelTensors, query_scale
from txport.exporter.graphs.writer import Writer
from txport.models.config import Config
from txport.models.embeddings import Embedding, FeatureProjection
from txport.models.norms import SharedNorm
from txport.models.transformer import Attention, EncoderLayer, Transformer
from txport.runtime.bundle import interface
from txport.runtime.bundle.interface import MASKED

OPSET = 17  # of graphs without lowerings

_HEADS_FIRST = [0, 2, 1, 3]  # [b, s, h, k] -> [b, h, s, k], and back


def write_encoder(model: Transformer, length: int, tensors: ModelTensors) -> ir.Model:
    """Return the encoder's graph for sources of up to `length` tokens: cross-attention keys, values and mask."""
    sizes = model.config.sizes
    w = Writer(interface.encoder(sizes, "float32"), OPSET, tensors)
    states = _write_states(w, model, length)
    norm = foldable(model.encoder_norm)
    memory = write_norm(w, states.x, remaining(model.encoder_norm), "norm")
    cross: list[ir.Value] = []
    for index, layer in enumerate(model.decoder):
        attention: Attention = layer.cross_attention  # type: ignore[assignment]
        packed = tensors.linear(attention.key, attention.value, norm=norm)
        # Keys and values of all layers are projections of the same memory, so they need one product.
        projected = w.linear_of_rows(memory, packed, f"cross_key_value.{index}")
        for part in w.split(projected, 2, axis=-1):
            heads = w.op("Reshape", part, [0, 0, sizes.heads, sizes.head_dim])
            cross.append(w.op("Transpose", heads, perm=_HEADS_FIRST))
    if model.config.copies:
        ids = [w.op("Unsqueeze", w.inputs["input_ids"], [1, 3])]
    else:
        ids = []
    return w.model([*cross, states.bias, *ids])


def write_encoder_attention(model: Transformer, length: int, tensors: ModelTensors) -> ir.Model:
    """Return the graph of the encoder's output and self-attention weights, for sources of up to `length` tokens."""
    w = Writer(interface.encoder_attention(model.config.sizes, "float32"), OPSET, tensors)
    states = _write_states(w, model, length)
    memory = write_norm(w, states.x, model.encoder_norm, "norm")
    memory = w.op("Where", w.op("Unsqueeze", states.tokens, [2]), memory, 0.0)
    return w.model([memory, stack_maps(w, states.weights, states.tokens)])


def stack_maps(w: Writer, weights: Sequence[ir.Value], tokens: ir.Value) -> ir.Value:
    """Stack weights `[b, h, n, m]` as `[layers, b, h, n, m]`, with 0 in rows that are false in `tokens` `[b, n]`."""
    stacked = w.op("Concat", *(w.op("Unsqueeze", each, [0]) for each in weights), axis=0)
    return w.op("Where", w.op("Unsqueeze", tokens, [0, 2, 4]), stacked, 0.0)


class _Scores(NamedTuple):
    """Effects of positions and padding on a layer's scores.

    Attributes:
        bias: added to the scores, broadcastable to `[b, h, s, s]`.
        rotation: rotary positions of queries and keys.
        positions: of the tokens, int64 `[s]`.
    """

    bias: ir.Value
    rotation: Rotation
    positions: ir.Value


class _States(NamedTuple):
    """Result of the encoder's layers.

    Attributes:
        x: `[b, s, d]`, before the last norm; the input itself if it is encoder states.
        tokens: bool `[b, s]`, true for tokens, false for padding.
        bias: mask `[b, 1, 1, s]`, added to scores.
        weights: attention weights of each layer, `[b, h, s, s]`.
    """

    x: ir.Value
    tokens: ir.Value
    bias: ir.Value
    weights: list[ir.Value]


def _write_states(w: Writer, model: Transformer, length: int) -> _States:
    source, lengths = w.inputs.values()
    positions = write_positions(w, source, "source")
    tokens = w.op("Less", w.op("Unsqueeze", positions, [0]), w.op("Unsqueeze", lengths, [1]))
    bias = w.op("Unsqueeze", w.op("Where", tokens, 0.0, MASKED), [1, 2])
    layer = model.source_embedding
    if isinstance(layer, Embedding):
        x = write_embedding(w, layer, length, source, positions)
    elif isinstance(layer, FeatureProjection):
        x = write_projection(w, layer, length, source, positions)
    else:
        return _States(source, tokens, bias, [])
    weights = []
    biases = _biases(w, model, length, positions, bias)
    rotation = Rotation(w, model.config, model.config.encoder, length, positions)
    for index, encoder_layer in enumerate(model.encoder):
        scores = _Scores(biases[index], rotation, positions)
        x, attention = _write_layer(w, f"layers.{index}", x, scores, encoder_layer, model.config)  # type: ignore[arg-type]
        weights.append(attention)
    return _States(x, tokens, bias, weights)


def _biases(w: Writer, model: Transformer, length: int, positions: ir.Value, bias: ir.Value) -> list[ir.Value]:
    """Return the bias of each layer's scores: `[b, 1, 1, s]` for padding; with relative positions `[b, h, s, s]`."""
    relative = model.encoder_positions
    if relative is None:
        return [bias] * len(model.encoder)

    def rows() -> ir.Value:
        return w.op("Add", _distances(w, positions), length - 1)

    by_layer: dict[ir.Value, ir.Value] = {}
    for of_layer in (biases := write_relative_positions(w, relative, length, rows)):
        by_layer[of_layer] = by_layer.get(of_layer) or w.op("Add", of_layer, bias)
    return [by_layer[of_layer] for of_layer in biases]


def _distances(w: Writer, positions: ir.Value) -> ir.Value:
    """Return the distance from each query to each key (key - query), int64 `[1, s, s]`."""
    return w.op("Sub", w.op("Unsqueeze", positions, [0, 1]), w.op("Unsqueeze", positions, [0, 2]))


def _write_layer(
    w: Writer, name: str, x: ir.Value, scores: _Scores, layer: EncoderLayer, config: Config
) -> tuple[ir.Value, ir.Value]:
    """Return x `[b, s, d]` after a layer, and its attention weights `[b, h, s, s]`."""
    first = layer.attention_residual.norm
    second = layer.feed_forward_residual.norm

    def feed_forward(y: ir.Value, norm: SharedNorm | None) -> ir.Value:
        return write_feed_forward(w, y, layer.feed_forward, norm, config.activation, w.linear_of_rows)

    def normalise(y: ir.Value, norm: nn.Module, kind: str) -> ir.Value:
        return write_norm(w, y, norm, f"{name}.{kind}_norm")

    with w.module(name):
        if config.pre_norm:
            y = normalise(x, remaining(first), "attention")
            y, weights = _write_attention(w, y, scores, layer.attention, foldable(first))
            x = w.op("Add", x, y)
            y = normalise(x, remaining(second), "feed_forward")
            return w.op("Add", x, feed_forward(y, foldable(second))), weights
        y, weights = _write_attention(w, x, scores, layer.attention, None)
        x = normalise(w.op("Add", x, y), first, "attention")
        return normalise(w.op("Add", x, feed_forward(x, None)), second, "feed_forward"), weights


def _write_attention(
    w: Writer, x: ir.Value, scores: _Scores, attention: Attention, norm: SharedNorm | None
) -> tuple[ir.Value, ir.Value]:
    """Return the output of attention `[b, s, d]`, and its weights `[b, h, s, s]`. A `norm` is not applied to x yet."""
    projections = attention.query, attention.key, attention.value
    qkv = w.linear_of_rows(x, w.tensors.linear(*projections, norm=norm, scale=query_scale(attention)), "qkv")
    head_dim = attention.query.out_features // attention.heads
    qkv = scores.rotation.turned(qkv, [0, 0])
    heads = (w.op("Reshape", part, [0, 0, attention.heads, head_dim]) for part in w.split(qkv, 3, axis=-1))
    query, key, value = (
        w.op("Transpose", part, perm=perm)
        for part, perm in zip(heads, (_HEADS_FIRST, [0, 2, 3, 1], _HEADS_FIRST), strict=True)
    )
    vectors = None
    if attention.positions is not None:
        farthest = attention.positions.farthest
        distances = w.op("Add", _distances(w, scores.positions), farthest)
        rows = w.op("Min", w.op("Max", distances, 0), 2 * farthest)
        vectors = ShawVectors(w, attention.positions, rows)
    context, weights = attend(w, query, key, value, scores.bias, vectors)
    merged = w.op("Reshape", w.op("Transpose", context, perm=_HEADS_FIRST), [0, 0, attention.query.out_features])
    return w.linear_of_rows(merged, w.tensors.linear(attention.output), "output"), weights
