"""Graph parts of both encoder and decoder: positions, embeddings, attention and feed-forward networks."""

import math
from collections.abc import Callable, Sequence

import numpy as np
import onnx_ir as ir
from txport.exporter.graphs.norms import write_norm
from txport.exporter.graphs.tensors import Linear
from txport.exporter.graphs.writer import Writer
from txport.models.config import Config, Side
from txport.models.embeddings import Embedding, FeatureProjection, InputLayer
from txport.models.norms import SharedNorm
from txport.models.positions import RelativePositions, ShawPositions
from txport.models.transformer import FeedForward

# Gelu is a standard operator from this opset on.
GELU_OPSET = 20


def write_positions(w: Writer, ids: ir.Value, dimension: str) -> ir.Value:
    """Return positions 0, 1, 2, ..., int64 `[length]`, for ids `[b, length]` or vectors `[b, length, f]`."""
    # Not Shape's start and end attributes: TensorRT 8.6 ignores them, and then its parser crashes.
    positions = w.op("Range", 0, w.op("Gather", w.op("Shape", ids), 1), 1)
    # ONNX Runtime fuses only values with known shapes.
    positions.shape = ir.Shape([dimension])
    return positions


def write_embedding(w: Writer, embedding: Embedding, length: int, ids: ir.Value, positions: ir.Value) -> ir.Value:
    """Return embeddings `[..., d]` of ids int64 `[...]` at positions int64 `[...]` below `length`."""
    with w.module("embedding"):
        x = w.op("Gather", w.weight("tokens.weight", w.tensors.parameter(embedding.tokens.weight)), ids)
        if embedding.scale != 1.0:
            x = w.op("Mul", x, embedding.scale)
        return _write_place(w, embedding, length, x, positions)


def write_projection(
    w: Writer, layer: FeatureProjection, length: int, features: ir.Value, positions: ir.Value
) -> ir.Value:
    """Return projected vectors `[b, s, d]`, for features `[b, s, f]` at positions int64 `[s]` below `length`."""
    with w.module("embedding"):
        x = w.linear_of_rows(features, w.tensors.linear(layer.projection), "projection")
        return _write_place(w, layer, length, x, positions)


def _write_place(w: Writer, layer: InputLayer, length: int, x: ir.Value, positions: ir.Value) -> ir.Value:
    if layer.positions is not None:
        table = w.weight("positions", w.tensors.parameter(layer.positions, length))
        x = w.op("Add", x, w.op("Gather", table, positions))
    return write_norm(w, x, layer.norm, "embedding.norm")


def write_relative_positions(
    w: Writer, relative: RelativePositions, length: int, rows: Callable[[], ir.Value]
) -> list[ir.Value]:
    """Return the bias of scores for each layer of a stack, `[n, h, t, m]`, as rows of a table, without logarithms.

    Args:
        w: writer of the graph.
        relative: module of the stack.
        length: maximum number of tokens.
        rows: returns the row of `RelativePositions.table` for each query and key, int64 `[n, t, m]`.
    """
    with w.module(f"{'decoder' if relative.causal else 'encoder'}_positions"):
        table = w.weight("table", w.tensors.relative(relative, length))
        biases = w.op("Transpose", w.op("Gather", table, rows()), perm=[0, 3, 1, 2])
        tables = len(relative.weight)
        if tables == 1:
            return [biases] * relative.layers
        return list(w.split(biases, tables, axis=1))


class Rotation:
    """Rotary positions of a stack. Models with other positions are unchanged.

    Args:
        w: writer of the graph.
        config: of the model.
        side: sizes of the stack.
        length: maximum number of tokens.
        positions: positions of the tokens, int64 `[...]` below `length`.
    """

    def __init__(self, w: Writer, config: Config, side: Side, length: int, positions: ir.Value) -> None:
        self._w = w
        self._heads = side.heads
        self._head_dim = side.head_dim
        self._tables: list[ir.Value] = []
        if config.positions != "rotary":
            return
        with w.module("rotary_positions"):
            # Values are rotated by position 0, which has no effect. So packed projections need not be split.
            rows = w.op("Mul", w.op("Unsqueeze", positions, [-1]), np.array([1, 1, 0], np.int64))
            for name, table in zip(("cosines", "sines"), w.tensors.rotations(side.head_dim, length), strict=True):
                of_tokens = w.op("Gather", w.weight(name, table), rows)  # [..., 3, k]
                self._tables.append(w.op("Unsqueeze", of_tokens, [-2]))

    def turned(self, qkv: ir.Value, batch: Sequence[int]) -> ir.Value:
        """Rotate queries and keys in packed projections `[..., 3 * h * k]`; `batch` is the shape `...` for Reshape."""
        if not self._tables:
            return qkv
        w, (cosines, sines) = self._w, self._tables
        x = w.op("Reshape", qkv, [*batch, 3, self._heads, self._head_dim])
        exchanged = w.op("Gather", x, np.arange(self._head_dim).reshape(-1, 2)[:, ::-1].flatten(), axis=-1)
        x = w.op("Add", w.op("Mul", x, cosines), w.op("Mul", exchanged, sines))
        return w.op("Reshape", x, [*batch, 3 * self._heads * self._head_dim])


class ShawVectors:
    """Key and value vectors of a layer by distance (`txport.models.positions.ShawPositions`), for each query and key.

    Args:
        w: writer of the graph.
        positions: module of the layer.
        rows: row of the module's vectors for each query and key, int64 [b or 1, t, n].
    """

    def __init__(self, w: Writer, positions: ShawPositions, rows: ir.Value) -> None:
        self._w = w
        with w.part("positions"):
            keys, values = (
                w.op("Gather", w.weight(name, w.tensors.parameter(getattr(positions, name))), rows)
                for name in ("keys", "values")
            )
        self._keys = w.op("Transpose", keys, perm=[0, 1, 3, 2])
        self._values = values

    def scores(self, query: ir.Value) -> ir.Value:
        """Return what the key vectors add to scores, [b, h, t, n], for query [b, h, t, k]."""
        return self._product(query, self._keys)

    def context(self, weights: ir.Value) -> ir.Value:
        """Return what the value vectors add to the context, [b, h, t, k], for weights [b, h, t, n]."""
        return self._product(weights, self._values)

    def _product(self, x: ir.Value, vectors: ir.Value) -> ir.Value:
        product = self._w.op("MatMul", self._w.op("Transpose", x, perm=[0, 2, 1, 3]), vectors)
        return self._w.op("Transpose", product, perm=[0, 2, 1, 3])


def causal_vectors(w: Writer, positions: ShawPositions | None, distances: Callable[[], ir.Value]) -> ShawVectors | None:
    """Return the vectors of a layer of the decoder, or None.

    Args:
        w: writer of the graph.
        positions: module of the layer.
        distances: returns the distance from each query to each earlier key, as `Lowering.distances`.
    """
    if positions is None:
        return None
    return ShawVectors(w, positions, w.op("Max", w.op("Sub", positions.farthest, distances()), 0))


def attend(
    w: Writer, query: ir.Value, key: ir.Value, value: ir.Value, bias: ir.Value, vectors: ShawVectors | None = None
) -> tuple[ir.Value, ir.Value]:
    """Return context [b, h, m, k] and weights [b, h, m, n], for query [b, h, m, k] and transposed key [b, h, k, n]."""
    if vectors is not None:
        bias = w.op("Add", bias, vectors.scores(query))
    weights = w.op("Softmax", w.op("Add", w.op("MatMul", query, key), bias), axis=-1)
    context = w.op("MatMul", weights, value)
    if vectors is not None:
        context = w.op("Add", context, vectors.context(weights))
    return context, weights


def write_feed_forward(
    w: Writer,
    x: ir.Value,
    feed_forward: FeedForward,
    norm: SharedNorm | None,
    activation: str,
    linear: Callable[[ir.Value, Linear, str], ir.Value],
) -> ir.Value:
    """Return the output of a feed-forward network, `[..., d]`.

    Args:
        w: writer of the graph.
        x: input `[..., d]`; a `norm` is not applied to it yet.
        feed_forward: module to write.
        norm: norm that is folded into the first layer, or None.
        activation: name in the config.
        linear: `Writer.linear` or `Writer.linear_of_rows`.
    """
    with w.part("feed_forward"):
        if feed_forward.gate is None:
            x = ACTIVATIONS[activation](w, linear(x, w.tensors.linear(feed_forward.inner, norm=norm), "inner"))
        else:
            gate_and_inner = linear(x, w.tensors.linear(feed_forward.gate, feed_forward.inner, norm=norm), "gate_inner")
            gate, inner = w.split(gate_and_inner, 2, axis=-1)
            x = w.op("Mul", ACTIVATIONS[activation](w, gate), inner)
        return linear(x, w.tensors.linear(feed_forward.outer), "outer")


def _relu(w: Writer, x: ir.Value) -> ir.Value:
    return w.op("Relu", x)


def _gelu(w: Writer, x: ir.Value) -> ir.Value:
    """Write GELU with erf (Hendrycks and Gimpel, 2016)."""
    if w.opset >= GELU_OPSET:
        return w.op("Gelu", x)
    # ONNX Runtime fuses these operators into one.
    distribution = w.op("Mul", w.op("Add", w.op("Erf", w.op("Div", x, math.sqrt(2))), 1.0), 0.5)
    return w.op("Mul", x, distribution)


def _gelu_tanh(w: Writer, x: ir.Value) -> ir.Value:
    """Write GELU with tanh (Hendrycks and Gimpel, 2016). ONNX Runtime fuses these operators into one."""
    cubic = w.op("Add", w.op("Mul", w.op("Mul", x, 0.044715), x), 1.0)
    slope = w.op("Mul", w.op("Mul", x, math.sqrt(2 / math.pi)), cubic)
    return w.op("Mul", w.op("Mul", x, 0.5), w.op("Add", w.op("Tanh", slope), 1.0))


def _silu(w: Writer, x: ir.Value) -> ir.Value:
    return w.op("Mul", x, w.op("Sigmoid", x))


ACTIVATIONS: dict[str, Callable[[Writer, ir.Value], ir.Value]] = {
    "relu": _relu,
    "gelu": _gelu,
    "gelu_tanh": _gelu_tanh,
    "silu": _silu,
}
