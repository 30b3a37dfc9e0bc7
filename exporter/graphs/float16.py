"""Conversion of a graph to float16: every float tensor becomes float16 except in listed nodes, the float32 islands.

The graph is strongly typed, so that precision does not depend on builder flags or the runtime: TensorRT 11 has no such
flags, and elsewhere they may silently have no effect. ONNX Runtime's CPU provider computes a float16 graph in float32
without intermediate rounding, so values that overflow on a GPU do not overflow on a CPU. `round_results` changes a
graph so that a CPU rounds every result to float16 as well.
"""

from collections.abc import Collection
from functools import partial
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray
from txport.exporter.graphs.lowerings import LOWERINGS, Ort, Scatter
from txport.exporter.graphs.norms import in_norm, module_of
from txport.exporter.graphs.weights import remove_unused_weights
from txport.runtime.bundle.interface import FEATURES, MASKED, MASKED_HALF

HALF = ir.DataType.FLOAT16
SINGLE = ir.DataType.FLOAT
_NAMES = {HALF: "float16", SINGLE: "float32"}

# Operators that only move values, so their results need no rounding if their inputs are rounded.
_MOVES = set(
    "Concat Expand Gather Reshape ScatterElements Slice Split Squeeze TensorScatter Transpose Unsqueeze Where".split()
)

# Outputs for users, not for other graphs. Float16 would give only three digits of a score or a weight.
SINGLE_OUTPUTS = ("log_probabilities", "cross_attention", "self_attention", "memory", "top_logits", "normaliser")

# ONNX Runtime's fused norms, and the index of their bias input.
_BIAS = {"SkipLayerNormalization": 4, "SkipSimplifiedLayerNormalization": 3}


def final_nodes(model: ir.Model) -> set[str]:
    """Return the names of the nodes between the last products and `SINGLE_OUTPUTS`, which stay in float32 as well.

    For attention weights, these nodes begin with the softmax; for logits and scores, after the output projection.
    """
    nodes: set[ir.Node] = set()
    values = [value for value in model.graph.outputs if value.name in SINGLE_OUTPUTS]
    while values:
        node = values.pop().producer()
        if node is None or node in nodes or node.op_type in ("Gemm", "MatMul") or in_norm(node):
            continue
        nodes.add(node)
        if node.op_type != "Softmax":
            values += [value for value in node.inputs if value is not None]
    floats = (node for node in nodes if any(value.dtype == SINGLE for value in node.outputs))
    return {node.name or "" for node in floats}


def to_float16(model: ir.Model, islands: Collection[str]) -> None:
    """Convert a graph in place. Inputs and outputs become float16. Casts surround float32 islands.

    Feature vectors, and the outputs in `SINGLE_OUTPUTS`, stay in float32.

    Args:
        model: float32 graph in topological order, with dtypes for all values.
        islands: names of nodes that stay in float32. Weights that only these nodes use stay in float32 as well.
    """
    graph = model.graph
    masks = _masks(model.graph)
    variants: dict[tuple[ir.Value, ir.DataType], ir.Value] = {}
    for graph_input in graph.inputs:
        if graph_input.dtype == SINGLE and graph_input.name != FEATURES:
            graph_input.dtype = HALF
    for node in list(graph):
        precision = SINGLE if node.name in islands else HALF
        for index, value in enumerate(node.inputs):
            if value is not None and value.dtype in (HALF, SINGLE) and value.dtype != precision:
                if (value, precision) not in variants:
                    variant = _variant(graph, value, precision)
                    variants[value, precision] = (
                        _float32_mask(graph, variant) if value in masks and precision == SINGLE else variant
                    )
                node.replace_input_with(index, variants[value, precision])
        for output in node.outputs:
            if output.dtype == SINGLE:
                output.dtype = precision
        if node.op_type == "Cast" and node.attributes["to"].as_int() == SINGLE:
            node.attributes["to"] = ir.AttrInt64("to", precision)
    for index, graph_output in enumerate(graph.outputs):
        precision = SINGLE if graph_output.name in SINGLE_OUTPUTS else HALF
        if graph_output.dtype in (HALF, SINGLE) and graph_output.dtype != precision:
            # The graph output keeps its name, and the value before the Cast gets another one.
            name = str(graph_output.name)
            graph_output.name = f"{graph_output.name}.{_NAMES[graph_output.dtype]}"
            cast = _cast(graph_output, precision, name)
            graph.append(cast)
            graph.outputs[index] = cast.outputs[0]
    remove_unused_weights(graph)


def round_results(model: ir.Model) -> None:
    """Change a float16 graph in place so that it computes in float32 and casts every result to float16 and back.

    It then rounds on every device. Names, dtypes and order of inputs and outputs do not change, so the graph can
    replace the original.
    """
    graph = model.graph
    _widen_weights(graph)
    first = graph[0]
    half_inputs = [value for value in graph.inputs if value.dtype == HALF]
    for value in graph.inputs:
        if value.dtype == HALF:
            users = list(value.uses())
            cast = _cast(value, SINGLE, f"{value.name}.wide")
            graph.insert_before(first, cast)
            for user, index in users:
                user.replace_input_with(index, cast.outputs[0])
    for node in list(graph):
        if node.op_type == "Cast" and node.inputs[0] in half_inputs:
            continue
        if node.op_type == "Cast" and node.attributes["to"].as_int() == HALF:
            node.attributes["to"] = ir.AttrInt64("to", SINGLE)
        for output in node.outputs:
            if output.dtype == HALF and output.name:
                _round_output(graph, node, output)


def fold_biases(graph: ir.Graph) -> None:
    """Move the bias of a Gemm into the fused norm after it, if that is its only reader; in place.

    The norm adds it in the same pass. On a GPU a bias of Gemm needs an extra copy (one row) or kernel (several rows).
    """
    for norm in graph:
        index = _BIAS.get(norm.op_type)
        if index is not None and norm.inputs[0] is not None:
            product = norm.inputs[0].producer()
        else:
            product = None
        if index is None or product is None or product.op_type != "Gemm" or len(product.inputs) < 3:
            continue
        if len(product.outputs[0].uses()) == 1 and not product.outputs[0].is_graph_output():
            bias = product.inputs[2]
            product.resize_inputs(2)
            norm.resize_inputs(index + 1)
            norm.replace_input_with(index, bias)


def fold_relu_biases(graph: ir.Graph) -> None:
    """Write relu(W x + c) as max(W x, -c) + c, and fold the sum into the bias of the next layer; in place.

    The inner product then has no bias, which would be an extra kernel on a GPU, see `fold_biases`.
    """
    for relu in graph:
        inner, outer = _layers_around(relu)
        if inner is None or outer is None:
            continue
        inner_bias, weight, outer_bias = (_constant(value) for value in (inner.inputs[2], *outer.inputs[1:3]))
        shapes = [ir.Shape(bias.shape.numpy()) for bias in (inner_bias, outer_bias)]
        negative = ir.LazyTensor(partial(_negative, inner_bias), SINGLE, shapes[0])
        following = ir.LazyTensor(partial(_bias_after, weight, inner_bias, outer_bias), SINGLE, shapes[1])
        inner.resize_inputs(2)
        relu.op_type = "Max"
        relu.name = relu.outputs[0].name = f"{module_of(relu)}/Max"
        relu.resize_inputs(2)
        relu.replace_input_with(1, _add_constant(graph, f"{module_of(inner)}.negative_bias", negative))
        outer.replace_input_with(2, _add_constant(graph, f"{module_of(outer)}.folded_bias", following))
    remove_unused_weights(graph)


def _layers_around(relu: ir.Node) -> tuple[ir.Node | None, ir.Node | None]:
    """Return the Gemm with a bias before a ReLU and the Gemm that is its only reader, otherwise None for both."""
    if relu.op_type != "Relu" or relu.inputs[0] is None:
        return None, None
    inner = relu.inputs[0].producer()
    readers = [user.node for user in relu.outputs[0].uses()]
    layers = [inner, *readers]
    alone = len(relu.inputs[0].uses()) == 1 and len(readers) == 1
    if not alone or any(each is None or each.op_type != "Gemm" or len(each.inputs) < 3 for each in layers):
        return None, None
    return inner, readers[0]


def _constant(value: ir.Value | None) -> ir.TensorProtocol:
    assert value is not None and value.const_value is not None
    return value.const_value


def _add_constant(graph: ir.Graph, name: str, tensor: ir.LazyTensor) -> ir.Value:
    value = ir.Value(name=name, type=ir.TensorType(tensor.dtype), shape=tensor.shape, const_value=tensor)
    graph.initializers[name] = value
    return value


def _negative(bias: ir.TensorProtocol) -> ir.TensorProtocol:
    return ir.Tensor(-bias.numpy())


def _bias_after(weight: ir.TensorProtocol, inner: ir.TensorProtocol, outer: ir.TensorProtocol) -> ir.TensorProtocol:
    """Return an outer bias `[outputs]` plus the product of the weight `[outputs, inputs]` and an inner bias."""
    exact = weight.numpy().astype(np.float64) @ inner.numpy() + outer.numpy()
    return ir.Tensor(exact.astype(np.float32))


def _widen_weights(graph: ir.Graph) -> None:
    for value in list(graph.initializers.values()):
        if value.dtype == HALF:
            value.replace_all_uses_with(_initializer(graph, value, SINGLE))
            del graph.initializers[value.name or ""]


def _round_output(graph: ir.Graph, node: ir.Node, output: ir.Value) -> None:
    """Round an output of a node by a Cast to float16 and back.

    Results of `_MOVES` need none, except that graph outputs are cast to float16, their original dtype.
    """
    users = list(output.uses())
    name = output.name
    is_output = output.is_graph_output()
    output.dtype = SINGLE
    if node.op_type in _MOVES and not is_output:
        return
    output.name = f"{name}_exact"
    down = _cast(output, HALF, str(name), "round")
    (half,) = down.outputs
    graph.insert_after(node, down)
    if is_output:
        graph.outputs[list(graph.outputs).index(output)] = half
    if node.op_type in _MOVES:
        return
    up = _cast(half, SINGLE, f"{name}_rounded", "rounded")
    graph.insert_after(down, up)
    for user, index in users:
        user.replace_input_with(index, up.outputs[0])


def _variant(graph: ir.Graph, value: ir.Value, dtype: ir.DataType) -> ir.Value:
    """Return a value in another precision: a converted weight, or the output of a Cast."""
    if value.const_value is not None and value.producer() is None:
        return _initializer(graph, value, dtype)
    cast = _cast(value, dtype, f"{value.name}.{_NAMES[dtype]}")
    if producer := value.producer():
        graph.insert_after(producer, cast)
    else:
        graph.insert_before(graph[0], cast)
    return cast.outputs[0]


def _initializer(graph: ir.Graph, value: ir.Value, dtype: ir.DataType) -> ir.Value:
    assert value.const_value is not None and value.name is not None
    name = f"{value.name}.{_NAMES[dtype]}"
    shape = ir.Shape(value.const_value.shape.numpy())
    tensor = ir.LazyTensor(partial(_converted, value.const_value, dtype), dtype, shape)
    converted = ir.Value(name=name, type=ir.TensorType(dtype), shape=shape, const_value=tensor)
    graph.initializers[name] = converted
    return converted


def _converted(tensor: ir.TensorProtocol, dtype: ir.DataType) -> ir.TensorProtocol:
    array = tensor.numpy()
    if dtype == HALF:
        array = np.where(is_masked(array), np.float32(MASKED_HALF), array)
    with np.errstate(over="ignore"):  # weights that overflow need an island; verification detects them
        return ir.Tensor(array.astype(np.float16 if dtype == HALF else np.float32))


def is_masked(array: NDArray[Any]) -> NDArray[np.bool_]:
    """Return a bool array, true for values that mask a position, also after additions."""
    masked: NDArray[np.bool_] = array < MASKED / 2
    return masked


def _masks(graph: ir.Graph) -> set[ir.Value]:
    """Return masks that are added to scores.

    These are the graph input `cross_bias`, the results of Where with a masking constant, and the results of moves and
    sums of masks.
    """
    found = {value for value in graph.inputs if value.name == "cross_bias"}
    for node in graph:
        constants = [value.const_value for value in node.inputs if value is not None and value.const_value is not None]
        creates_mask = node.op_type == "Where" and any(
            constant.size == 1 and is_masked(constant.numpy()) for constant in constants
        )
        # Biases of relative positions are added to a mask. Scores, which are products, are not masks themselves.
        has_no_product = not any(value is not None and _is_product(value) for value in node.inputs)
        passes_mask = node.op_type in ("Add", "Gather", "Unsqueeze", "Where") and has_no_product
        if creates_mask or (passes_mask and any(value in found for value in node.inputs)):
            found.update(node.outputs)
    return found


def _is_product(value: ir.Value) -> bool:
    producer = value.producer()
    return producer is not None and producer.op_type in ("MatMul", "Gemm")


def _float32_mask(graph: ir.Graph, cast: ir.Value) -> ir.Value:
    """Return a mask for a float32 island: a float16 mask after its Cast, with `MASKED` instead of `MASKED_HALF`.

    In float32, scores may be larger than `MASKED_HALF`.
    """
    producer = cast.producer()
    assert producer is not None
    values = [
        ir.Value(name=f"{cast.name}.{suffix}", const_value=ir.Tensor(np.array(number, np.float32)), shape=ir.Shape(()))
        for suffix, number in (("least", MASKED_HALF / 2), ("masked", MASKED))
    ]
    for value in values:
        value.dtype = SINGLE
        graph.initializers[value.name or ""] = value
    low = ir.Value(name=f"{cast.name}.low", type=ir.TensorType(ir.DataType.BOOL), shape=cast.shape)
    mask = ir.Value(name=f"{cast.name}.wide", type=ir.TensorType(SINGLE), shape=cast.shape)
    comparison = ir.Node("", "Less", [cast, values[0]], outputs=[low], name=f"{cast.name}/Less")
    selection = ir.Node("", "Where", [low, values[1], cast], outputs=[mask], name=f"{cast.name}/Where")
    graph.insert_after(producer, [comparison, selection])
    return mask


def _cast(value: ir.Value, dtype: ir.DataType, name: str, suffix: str = "Cast") -> ir.Node:
    """Return a new node, not yet in the graph, that casts `value` to another precision under a name."""
    output = ir.Value(name=name, type=ir.TensorType(dtype), shape=value.shape)
    return ir.Node("", "Cast", [value], [ir.AttrInt64("to", dtype)], outputs=[output], name=f"{name}/{suffix}")


# Larger than any limit of a translation's length.
BEYOND = 1 << 62


class OrtCuda(Ort):
    """Lowering `ort` with fewer kernels, for the CUDA provider: a small kernel costs 1 or 2 µs at batch 1.

    MultiHeadAttention would add transposes of the query, which has one position, and of the context. A Reshape is
    enough for both. On a GPU, ArgMax alone is as fast as the first of the two steps of `Ort.best`. GroupQueryAttention
    supports no bias on GPUs, and no float32, so only float16 bundles use this lowering. Biases are folded into the
    following norms, or into the layer after a ReLU.
    """

    fused_bias = False
    cross_attention = Scatter.cross_attention
    best = Scatter.best

    def advance(self, token: ir.Value, eos: int, vocabulary: int) -> tuple[ir.Value, ir.Value]:
        """Find the end of sentences by lookup in a table: after `eos` the position is larger than every limit."""
        w = self._w
        steps = np.ones(vocabulary, np.int64)
        steps[eos] = BEYOND
        following = w.op("Add", w.inputs["positions"], w.op("Gather", steps, token))
        return following, w.op("Or", w.inputs["finished"], w.op("GreaterOrEqual", following, w.inputs["target_limits"]))

    def finish(self, graph: ir.Graph) -> None:
        fold_relu_biases(graph)
        fold_biases(graph)


# Lowerings of float16 bundles, which run on GPUs. The name of OrtCuda is also `ort`, so it replaces Ort.
HALF_LOWERINGS = LOWERINGS | {OrtCuda.name: OrtCuda}
