"""Parts of both encoder and decoder: positions, embeddings and feed-forward networks."""

import math
from collections.abc import Callable

import onnx_ir as ir
from txport.exporter.graphs.norms import write_norm
from txport.exporter.graphs.tensors import Linear
from txport.exporter.graphs.writer import Writer
from txport.models.norms import SharedNorm
from txport.models.transformer import Embedding, FeedForward

# Gelu is a standard operator from this opset on.
GELU_OPSET = 20


def write_positions(w: Writer, ids: ir.Value, dimension: str) -> ir.Value:
    """int64 `[length]`, 0 and on, for ids `[b, length]` of a named dimension."""
    positions = w.op("Range", 0, w.op("Squeeze", w.op("Shape", ids, start=1, end=2)), 1)
    # ONNX Runtime fuses only what it knows to be of one shape.
    positions.shape = ir.Shape([dimension])
    return positions


def write_embedding(w: Writer, embedding: Embedding, length: int, ids: ir.Value, positions: ir.Value) -> ir.Value:
    """ids int64 `[...]` at positions int64 `[...]` below `length` -> `[..., d]`."""
    with w.module("embedding"):
        x = w.op("Gather", w.weight("tokens.weight", w.tensors.parameter(embedding.tokens.weight)), ids)
        if embedding.scale != 1.0:
            x = w.op("Mul", x, embedding.scale)
        table = w.weight("positions", w.tensors.parameter(embedding.positions, length))
        return write_norm(w, w.op("Add", x, w.op("Gather", table, positions)), embedding.norm, "embedding.norm")


def write_feed_forward(
    w: Writer,
    x: ir.Value,
    feed_forward: FeedForward,
    norm: SharedNorm | None,
    activation: str,
    linear: Callable[[ir.Value, Linear, str], ir.Value],
) -> ir.Value:
    """`[..., d]` -> `[..., d]`.

    Args:
        w: of the graph.
        x: not normalised yet if there is a `norm`.
        feed_forward: what is written.
        norm: folded into the first layer, or None.
        activation: its name in the config.
        linear: `Writer.linear` or `Writer.linear_of_rows`.
    """
    with w.part("feed_forward"):
        x = linear(x, w.tensors.linear(feed_forward.inner, norm=norm), "inner")
        x = ACTIVATIONS[activation](w, x)
        return linear(x, w.tensors.linear(feed_forward.outer), "outer")


def _relu(w: Writer, x: ir.Value) -> ir.Value:
    return w.op("Relu", x)


def _gelu(w: Writer, x: ir.Value) -> ir.Value:
    """GELU by erf (Hendrycks and Gimpel, 2016)."""
    if w.opset >= GELU_OPSET:
        return w.op("Gelu", x)
    # ONNX Runtime makes one operator of these parts.
    distribution = w.op("Mul", w.op("Add", w.op("Erf", w.op("Div", x, math.sqrt(2))), 1.0), 0.5)
    return w.op("Mul", x, distribution)


def _silu(w: Writer, x: ir.Value) -> ir.Value:
    return w.op("Mul", x, w.op("Sigmoid", x))


ACTIVATIONS: dict[str, Callable[[Writer, ir.Value], ir.Value]] = {"relu": _relu, "gelu": _gelu, "silu": _silu}
