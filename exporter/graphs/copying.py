"""The copy mechanism of `txport.models.copying` in graphs: a mixture without a scatter that adds.

TensorRT 8.6 has no such scatter. Every source position gets the weight of all positions with its id, by a product with
a matrix of equalities, and with it the probability that its id has in the mixture. Positions of one id then hold one
value, so that a plain ScatterElements writes them over those of the vocabulary. Shapes: b batch, t target (1 in
a step), s source, d d_model, v vocabulary, n = b * t.
"""

from collections.abc import Mapping
from typing import NamedTuple

import onnx_ir as ir
from txport.exporter.graphs.lowerings import Lowering
from txport.exporter.graphs.writer import Writer
from txport.models.copying import NOTHING, CopyMechanism
from txport.runtime.bundle.interface import CROSS_IDS
from txport.runtime.bundle.schema import ModelSizes


class CrossAttention(NamedTuple):
    """One layer's cross-attention: its query `[n, d]`, the keys `[b, h, s, k]` and what it added `[n, d]`."""

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
    """Logarithms of the mixture's probabilities `[n, v]`; see `CopyMechanism.forward`.

    They are computed in float32 in every precision, see `islands.mixture_nodes`.

    Args:
        w: of the graph.
        lowering: merges b and t into one dimension.
        mechanism: what is written.
        sizes: of the model.
        logits: `[n, v]`.
        state: `[n, d]`, of which the logits are made.
        read: `[n, d]`, embeddings of the tokens that the decoder read.
        attentions: of each of the mechanism's layers.
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
        # 1 - p_gen: ONNX Runtime's Sigmoid is exact to 1e-8 only, which may be as much as all of it.
        copies = lowering.by_sentence(w.op("Exp", w.op("Neg", w.op("Softplus", gate))), 1)
        attention = _average_attention(w, lowering, mechanism, sizes, attentions)
        copied = w.op("Mul", w.op("MatMul", attention, equal), copies)
        pointed = w.op("Relu", w.op("Sub", copied, NOTHING))
        generated = lowering.by_sentence(generated, sizes.target_vocabulary)  # [b, t, v]
        places = lowering.for_each_token(ids_of_row)  # [b, t, s]
        alone = w.op("GatherElements", generated, places, axis=2)
        # What is not pointed to, padding for one, stays as it is even where its probability is 0 in float32.
        both = w.op("Max", alone, w.op("Log", w.op("Add", w.op("Exp", alone), pointed)))
        mixture = w.op("ScatterElements", generated, places, both, axis=2)
        return w.op("Reshape", mixture, [-1, sizes.target_vocabulary])


def log_softmax_parts(w: Writer, logits: ir.Value) -> tuple[ir.Value, ir.Value]:
    """logits `[n, v]` -> those less their largest, and the logarithm of the sum of the exponentials of that `[n, 1]`.

    Written out, because TensorRT's LogSoftmax and ReduceLogSumExp take the logarithm of what may be 0.
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
    """Average of the heads that copy, `[b, t, s]`."""
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
