"""Copy mechanism of `txport.models.copying` in graphs, without a scatter that adds, which TensorRT 8.6 lacks.

A product with a matrix of equal ids gives every source position the sum of the weights of all positions with its id,
and so the probability of its id in the mixture. Positions with the same id then have the same value, and a plain
ScatterElements writes these over the values of the vocabulary. Shapes: b batch, t target (1 in a step), s source, d
d_model, v vocabulary, n = b * t.
"""

from collections.abc import Mapping
from typing import NamedTuple

import onnx_ir as ir
from txport.exporter.graphs.lowerings import Lowering
from txport.exporter.graphs.writer import Writer
from txport.models.copying import MIN_PROBABILITY, CopyMechanism
from txport.runtime.bundle.interface import CROSS_IDS
from txport.runtime.bundle.schema import ModelSizes


class CrossAttention(NamedTuple):
    """Cross-attention of a layer: queries `[n, d]`, keys `[b, h, s, k]` and output `[n, d]`."""

    query: ir.Value
    key: ir.Value
    context: ir.Value


def write_mixture(
    w: Writer,
    lowering: Lowering,
    mechanism: CopyMechanism,
    sizes: ModelSizes,
    logits: ir.Value,
    state: ir.Value,
    read: ir.Value,
    attentions: Mapping[int, CrossAttention],
) -> ir.Value:
    """Return log-probabilities of the mixture, `[n, v]`; see `CopyMechanism.forward`.

    They are computed in float32 in every precision, see `islands.mixture_nodes`.

    Args:
        w: writer of the graph.
        lowering: converts between rows `[n, ...]` and sentences `[b, t, ...]`.
        mechanism: module to write.
        sizes: of the model.
        logits: `[n, v]`.
        state: `[n, d]`, decoder states before the projection.
        read: `[n, d]`, embeddings of the decoder's input tokens.
        attentions: cross-attention by layer, for the layers of the mechanism.
    """
    with w.module("copying"):
        context = attentions[mechanism.layers[-1]].context
        gate = w.op("Add", _linear(w, context, mechanism, "context"), _linear(w, state, mechanism, "state"))
        gate = w.op("Add", gate, _linear(w, read, mechanism, "input"))  # [n, 1]
        shifted, log_sum = log_softmax_parts(w, logits)
        generated = w.op("Sub", shifted, w.op("Add", log_sum, w.op("Softplus", w.op("Neg", gate))))
        ids = w.op("Gather", w.inputs[CROSS_IDS], 0, axis=1)  # [b, s, 1]
        ids_of_row = w.op("Transpose", ids, perm=[0, 2, 1])
        equal = w.op("Where", w.op("Equal", ids, ids_of_row), 1.0, 0.0)
        # 1 - p_gen, but not by Sigmoid: ONNX Runtime's has an error of up to 1e-8, which may be as large as the result.
        copies = lowering.by_sentence(w.op("Exp", w.op("Neg", w.op("Softplus", gate))), 1)
        attention = _average_attention(w, lowering, mechanism, sizes, attentions)
        copied = w.op("Mul", w.op("MatMul", attention, equal), copies)
        pointed = w.op("Relu", w.op("Sub", copied, MIN_PROBABILITY))
        generated = lowering.by_sentence(generated, sizes.target_vocabulary)  # [b, t, v]
        places = lowering.for_each_token(ids_of_row)  # [b, t, s]
        alone = w.op("GatherElements", generated, places, axis=2)
        # Other positions, such as padding, must keep their value even if the probability is 0 in float32.
        log_mixture = w.op("Max", alone, w.op("Log", w.op("Add", w.op("Exp", alone), pointed)))
        mixture = w.op("ScatterElements", generated, places, log_mixture, axis=2)
        return w.op("Reshape", mixture, [-1, sizes.target_vocabulary])


def log_softmax_parts(w: Writer, logits: ir.Value) -> tuple[ir.Value, ir.Value]:
    """Return logits `[n, v]` less their maximum, and the logarithm of the sum of exponentials of these, `[n, 1]`.

    Written as separate operators, because TensorRT's LogSoftmax and ReduceLogSumExp may take the logarithm of 0.
    """
    shifted = w.op("Sub", logits, w.reduce("ReduceMax", logits, keepdims=1))
    return shifted, w.op("Log", w.op("ReduceSum", w.op("Exp", shifted), [-1], keepdims=1))


def _linear(w: Writer, x: ir.Value, mechanism: CopyMechanism, name: str) -> ir.Value:
    return w.linear(x, w.tensors.linear(getattr(mechanism, name)), name)


def _average_attention(
    w: Writer,
    lowering: Lowering,
    mechanism: CopyMechanism,
    sizes: ModelSizes,
    attentions: Mapping[int, CrossAttention],
) -> ir.Value:
    """Return the average of the copy heads' weights, `[b, t, s]`."""
    bias = w.op("Gather", w.inputs["cross_bias"], 0, axis=1)
    total: ir.Value | None = None
    for layer, head in mechanism.heads:
        query, key, _ = attentions[layer]
        query = w.op("Gather", w.op("Reshape", query, [-1, sizes.heads, sizes.head_dim]), head, axis=1)
        key = w.op("Transpose", w.op("Gather", key, head, axis=1), perm=[0, 2, 1])
        scores = w.op("Add", w.op("MatMul", lowering.by_sentence(query, sizes.head_dim), key), bias)
        weights = w.op("Softmax", scores, axis=-1)
        if total is None:
            total = weights
        else:
            total = w.op("Add", total, weights)
    assert total is not None
    if len(mechanism.heads) == 1:
        return total
    return w.op("Mul", total, 1 / len(mechanism.heads))
