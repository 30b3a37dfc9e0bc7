"""Int8 written into the graph: weights of every matrix product and every embedding table, activations as they come.

Weights are rounded per output channel, symmetrically, to -127..127 (Jacob et al. 2018, section 2; Wu et al. 2020,
section 5). Activations are rounded per row and never across rows: what a sentence gives must not depend on the rest of
its batch, which `quantize_dynamic`, with one scale for a whole tensor, cannot promise. After a LayerNorm all rows have
one scale already, and one constant, taken from calibration, serves them all; elsewhere the graph computes each row's.

An embedding table that is also the output projection stands once, as `[vocabulary, d_model]` with a scale for each
token: a channel of the projection, a row of the table.
"""

from collections.abc import Collection, Mapping

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

CONTRIB = "com.microsoft"
# What calibration did not see may be this much larger before it is cut off.
MARGIN = 1.25
_LEVELS = 127
_NORMS = ("LayerNormalization", "SkipLayerNormalization")

Float32 = npt.NDArray[np.float32]
Int8 = npt.NDArray[np.int8]


def quantised(weight: Float32) -> tuple[Int8, Float32]:
    """float32 `[n, k]` -> int8 `[n, k]` and float32 scales `[n]`, so that their product is near `weight`."""
    scales = np.abs(weight).max(axis=1) / _LEVELS
    scales = np.where(scales == 0, 1, scales).astype(np.float32)
    return np.rint(weight / scales[:, None]).astype(np.int8), scales


def to_int8(model: ir.Model, largest: Mapping[str, float], keep: Collection[str] = ()) -> None:
    """Convert a float32 graph in place; its inputs and outputs stay float32.

    Args:
        model: An encoder or a decoder step of the `ort` lowering.
        largest: The largest magnitude that each value of the graph took in calibration, by name.
        keep: Names of nodes that stay in float32.
    """
    conversion = _Conversion(model, largest)
    for node in convertible(model):
        if node.name not in keep:
            conversion.matmul(node) if node.op_type != "Gather" else conversion.gather(node)
    for name in [name for name, value in model.graph.initializers.items() if not value.uses()]:
        del model.graph.initializers[name]


def convertible(model: ir.Model) -> list[ir.Node]:
    """The nodes that int8 is for: products with a matrix of weights, and lookups of tokens in an embedding table."""
    return [
        node
        for node in model.graph
        if (node.op_type in ("MatMul", "Gemm") and _is_matrix(node.inputs[1])) or _is_lookup(node)
    ]


def _is_matrix(value: ir.Value | None) -> bool:
    return value is not None and value.const_value is not None and len(value.const_value.shape) == 2


def _is_lookup(node: ir.Node) -> bool:
    """Token ids are inputs of the graph; positions stay as they are."""
    if node.op_type != "Gather" or not _is_matrix(node.inputs[0]):
        return False
    ids = node.inputs[1]
    return ids is not None and ids.name in ("input_ids", "token_ids")


class _Conversion:
    """The graph under change, and what was made for it so far."""

    def __init__(self, model: ir.Model, largest: Mapping[str, float]) -> None:
        self._graph, self._largest = model.graph, largest
        self._weights: dict[tuple[str, bool], tuple[ir.Value, ir.Value]] = {}
        self._rounded: dict[str, tuple[ir.Value, ir.Value, ir.Value | None]] = {}
        self._made = 0  # for names
        self._tables = {node.inputs[0] for node in model.graph if _is_lookup(node)}
        model.opset_imports[CONTRIB] = 1

    def matmul(self, node: ir.Node) -> None:
        x, weight = node.inputs[0], node.inputs[1]
        assert x is not None and weight is not None
        bias = node.inputs[2] if len(node.inputs) > 2 else None
        transposed = node.op_type == "Gemm" and node.attributes["transB"].as_int() == 1
        rows, scale, row_scale = self._activation(x, node)
        tied = weight in self._tables
        ints, scales = self._weight(weight, rows_first=tied, transposed=transposed)
        product = self._product(node, rows, scale, ints, scales, None if row_scale or tied else bias, tied)
        if row_scale is not None:
            product = self._node(node, "", "Mul", [product, row_scale])
        if bias is not None and (row_scale is not None or tied) and not _left_to_norm(node, bias):
            product = self._node(node, "", "Add", [product, bias])
        self._replace(node, product)

    def gather(self, node: ir.Node) -> None:
        table, ids = node.inputs[0], node.inputs[1]
        assert table is not None
        ints, scales = self._weight(table, rows_first=True, transposed=True)
        found = self._node(node, "", "Gather", [ints, ids], dtype=ir.DataType.INT8)
        wide = self._node(node, "", "Cast", [found], [ir.AttrInt64("to", ir.DataType.FLOAT)])
        column = self._constant(f"{scales.name}.column", _array(scales)[:, None])
        factor = self._node(node, "", "Gather", [column, ids])
        self._replace(node, self._node(node, "", "Mul", [wide, factor]))

    def _activation(self, x: ir.Value, node: ir.Node) -> tuple[ir.Value, ir.Value, ir.Value | None]:
        """uint8 rows around 128, the constant scale, and, where rows differ, the factor `[..., 1]` of each."""
        assert x.name is not None
        if x.name in self._rounded:
            return self._rounded[x.name]
        producer = x.producer()
        factor: ir.Value | None = None
        if producer is not None and producer.op_type in _NORMS:
            scale = self._constant(f"{x.name}.scale", np.float32(self._largest[x.name] * MARGIN / _LEVELS))
            value = x
        else:
            scale = self._constant("int8.unit", np.float32(1 / _LEVELS))
            sizes = x if producer is not None and producer.op_type == "Relu" else self._node(node, "", "Abs", [x])
            axes = self._constant("int8.last", np.array([-1], np.int64))
            # A row of zeros becomes 0/0 here; whatever integers that makes, the factor makes them 0 again.
            factor = self._node(node, "", "ReduceMax", [sizes, axes], [ir.AttrInt64("keepdims", 1)])
            value = self._node(node, "", "Div", [x, factor])
        zero = self._constant("int8.zero", np.uint8(128))
        rows = self._node(node, "", "QuantizeLinear", [value, scale, zero], dtype=ir.DataType.UINT8)
        self._rounded[x.name] = rows, scale, factor
        return self._rounded[x.name]

    def _product(
        self,
        node: ir.Node,
        rows: ir.Value,
        scale: ir.Value,
        ints: ir.Value,
        scales: ir.Value,
        bias: ir.Value | None,
        rows_first: bool,
    ) -> ir.Value:
        zero = self._constant("int8.zero", np.uint8(128))
        if rows_first:
            zeros = self._constant(f"{ints.name}.zeros", np.zeros(_array(scales).shape, np.int8))
            attributes = [ir.AttrInt64("transB", 1)]
            return self._node(node, CONTRIB, "QGemm", [rows, scale, zero, ints, scales, zeros], attributes)
        inputs = [rows, ints, scale, scales, zero, None, bias]
        return self._node(node, CONTRIB, "MatMulIntegerToFloat", inputs if bias else inputs[:5])

    def _weight(self, weight: ir.Value, *, rows_first: bool, transposed: bool) -> tuple[ir.Value, ir.Value]:
        """int8 `[k, n]`, or `[n, k]` with `rows_first`, and scales `[n]`; `transposed`: `weight` is `[n, k]`."""
        assert weight.name is not None
        key = weight.name, rows_first
        if key not in self._weights:
            array = _array(weight) if transposed else _array(weight).T
            ints, scales = quantised(array)
            self._weights[key] = (
                self._constant(f"{weight.name}.int8", ints if rows_first else np.ascontiguousarray(ints.T)),
                self._constant(f"{weight.name}.scales", scales),
            )
        return self._weights[key]

    def _constant(self, name: str, array: npt.NDArray[np.generic] | np.generic) -> ir.Value:
        if name not in self._graph.initializers:
            shape, tensor = ir.Shape(np.shape(array)), ir.tensor(np.asarray(array), name=name)
            value = ir.Value(name=name, type=ir.TensorType(tensor.dtype), shape=shape, const_value=tensor)
            self._graph.initializers[name] = value
        return self._graph.initializers[name]

    def _node(
        self,
        near: ir.Node,
        domain: str,
        kind: str,
        inputs: list[ir.Value | None],
        attributes: list[ir.Attr] | None = None,
        dtype: ir.DataType = ir.DataType.FLOAT,
    ) -> ir.Value:
        self._made += 1
        name = f"{near.name}/{kind}.{self._made}"
        node = ir.Node(domain, kind, inputs, attributes or [], num_outputs=1, name=name)
        (output,) = node.outputs
        output.name, output.type = name, ir.TensorType(dtype)
        self._graph.insert_before(near, node)
        return output

    def _replace(self, node: ir.Node, value: ir.Value) -> None:
        old = node.outputs[0]
        name, value.shape = old.name, old.shape
        old.replace_all_uses_with(value, replace_graph_outputs=True)
        self._graph.remove(node, safe=True)
        value.name = name


def _left_to_norm(node: ir.Node, bias: ir.Value) -> bool:
    """Give a bias to the SkipLayerNormalization that reads the product next, as its fifth input, if one does."""
    users = [user for user, _ in node.outputs[0].uses()]
    if len(users) != 1 or users[0].op_type != "SkipLayerNormalization" or len(users[0].inputs) > 4:
        return False
    users[0].resize_inputs(5)
    users[0].replace_input_with(4, bias)
    return True


def _array(value: ir.Value) -> Float32:
    assert value.const_value is not None
    return value.const_value.numpy()
