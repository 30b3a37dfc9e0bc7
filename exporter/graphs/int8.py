"""Quantisation of a float32 ONNX graph to int8: weights and embeddings at export, activations at run time.

Weights are quantised per output channel, symmetrically, to -127..127 (Jacob et al. 2018, section 2; Wu et al. 2020,
section 5). Activations are quantised per row, never across rows: a sentence's result must not depend on the rest of
its batch, which `quantize_dynamic`, with one scale per tensor, cannot guarantee. After LayerNorm or RMSNorm all rows
have about the same magnitude, so one scale from calibration serves them all, and the MatMul node can also add the bias.
Elsewhere the graph computes a scale for each row, and an Add follows the MatMul. After a ReLU no value is negative:
quantising to 0..255 saturates at 0, which replaces the ReLU. A packed projection followed by Split is replaced by
separate MatMuls.

An embedding table that is also the output projection is stored once, as `[vocabulary, d_model]` with a scale for each
token: a token is an output channel of the projection and a row of the table.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
from txport.exporter.graphs.norms import in_norm
from txport.exporter.graphs.weights import remove_unused_weights
from txport.exporter.graphs.writer import AXES_OPSET, CONTRIB

# Allowance for values larger than the maximum in calibration, before they are clipped.
MARGIN = 1.25
_LEVELS = 127
# Norms whose output rows have similar magnitudes. Those of a SharedNorm need not: its scale and shift are constants.
_NORMS = ("LayerNormalization", "SkipLayerNormalization", "SkipSimplifiedLayerNormalization", "RMSNormalization")

Float32 = npt.NDArray[np.float32]
Int8 = npt.NDArray[np.int8]


def quantised(weight: Float32) -> tuple[Int8, Float32]:
    """Quantise float32 `[n, k]` to int8 `[n, k]` and float32 scales `[n]`, whose product approximates `weight`."""
    scales = np.abs(weight).max(axis=1) / _LEVELS
    scales = np.where(scales == 0, 1, scales).astype(np.float32)
    return np.rint(weight / scales[:, None]).astype(np.int8), scales


def to_int8(model: ir.Model, largest: Mapping[str, float], keep: Collection[str] = ()) -> None:
    """Convert a float32 graph in place. Its inputs and outputs stay float32.

    Args:
        model: encoder or decoder step of the `ort` lowering.
        largest: maximum magnitude of each value in calibration, by name.
        keep: names of nodes that stay in float32.
    """
    conversion = _Conversion(model, largest)
    for node in convertible(model):
        if node.name not in keep:
            if node.op_type == "Gather":
                conversion.gather(node)
            else:
                conversion.matmul(node)
    for node in [node for node in model.graph if node.op_type == "SkipLayerNormalization"]:
        conversion.norm(node)
    for node in [node for node in model.graph if node.op_type == "Relu" and not _is_read(node.outputs[0])]:
        model.graph.remove(node, safe=True)
    remove_unused_weights(model.graph)


def convertible(model: ir.Model) -> list[ir.Node]:
    """Return the nodes that can be quantised: MatMuls with a weight matrix, and lookups of token embeddings."""
    return [node for node in model.graph if _is_product(node) or _is_lookup(node)]


def _is_product(node: ir.Node) -> bool:
    return node.op_type in ("MatMul", "Gemm") and _is_matrix(node.inputs[1]) and not _is_gate(node)


def _is_matrix(value: ir.Value | None) -> bool:
    return value is not None and value.const_value is not None and len(value.const_value.shape) == 2


def _is_gate(node: ir.Node) -> bool:
    """Return whether a MatMul is the gate of the copy mechanism. Quantising its input would cost more than it saves."""
    return (node.name or "").startswith("copying.")


def _is_lookup(node: ir.Node) -> bool:
    """Return whether a node looks up token embeddings, not positions."""
    table = node.inputs[0]
    # In a model of feature vectors, the first lookup is that of positions.
    positions = table is not None and (table.name or "").endswith("positions")
    return node.name == "embedding/Gather" and _is_matrix(table) and not positions


def norm_outputs(model: ir.Model) -> list[str]:
    """Return the outputs of LayerNorms and RMSNorms, in an order that all graphs of a decoder (or encoder) share."""
    return [node.outputs[0].name or "" for node in model.graph if _is_norm(node)]


def _is_norm(node: ir.Node) -> bool:
    """Return whether a node ends a LayerNorm or RMSNorm, so that its output rows can share one scale."""
    if node.inputs and node.inputs[0] is not None:
        first = node.inputs[0].producer()
    else:
        first = None
    is_decomposed_norm = node.op_type == "Mul" and in_norm(node) and first is not None and first.op_type == "Div"
    return node.op_type in _NORMS or is_decomposed_norm


class _Quantised(NamedTuple):
    """An activation quantised to 8 bits.

    Attributes:
        values: uint8 `[..., k]`.
        scale: a constant for all rows.
        zero_point: the integer that represents 0, a constant.
        factor: float32 `[..., 1]`, scale of each row, for the output of the MatMul; None if `scale` is enough.
    """

    values: ir.Value
    scale: ir.Value
    zero_point: ir.Value
    factor: ir.Value | None


class _Conversion:
    """Conversion of one graph."""

    def __init__(self, model: ir.Model, largest: Mapping[str, float]) -> None:
        self._graph = model.graph
        self._largest = largest
        self._weights: dict[tuple[str, bool], tuple[ir.Value, ir.Value]] = {}
        self._quantised: dict[str, _Quantised] = {}
        self._count = 0  # number of added values, for names
        self._tables = {node.inputs[0] for node in model.graph if _is_lookup(node)}
        self._opset = model.opset_imports[""]
        model.opset_imports[CONTRIB] = 1

    def matmul(self, node: ir.Node) -> None:
        x = node.inputs[0]
        weight = node.inputs[1]
        assert x is not None and weight is not None
        transposed = node.op_type == "Gemm" and node.attributes["transB"].as_int() == 1
        rows = self._activation(x, node)
        tied = weight in self._tables
        bias, last = _bias(node)
        outputs = _chunks(last)
        for part, output in enumerate(outputs):
            columns = _ColumnBlock(part, len(outputs))
            weights = self._weight(weight, columns, outputs_first=tied, transposed=transposed)
            self._replace(output, self._linear(node, rows, *weights, self._columns_of(bias, columns), tied))
        self._remove(node)

    def gather(self, node: ir.Node) -> None:
        table = node.inputs[0]
        ids = node.inputs[1]
        assert table is not None
        ints, scales = self._weight(table, _ColumnBlock(0, 1), outputs_first=True, transposed=True)
        rows = self._node(node, "", "Gather", [ints, ids], dtype=ir.DataType.INT8)
        float_rows = self._node(node, "", "Cast", [rows], [ir.AttrInt64("to", ir.DataType.FLOAT)])
        column = self._constant(f"{scales.name}.column", _array(scales)[:, None])
        factor = self._node(node, "", "Gather", [column, ids])
        self._replace(node.outputs[0], self._node(node, "", "Mul", [float_rows, factor]))
        self._remove(node)

    def norm(self, node: ir.Node) -> None:
        """Replace SkipLayerNormalization by Add and LayerNormalization.

        The kernel of SkipLayerNormalization in ONNX Runtime 1.31 updates the mean with a division for each element
        (Welford 1962). It is so slow that it cancels the gain of int8.
        """
        x, residual, *parameters = node.inputs
        total = self._node(node, "", "Add", [x, residual])
        attributes = [ir.AttrInt64("axis", -1), node.attributes["epsilon"]]
        normalised = self._node(node, "", "LayerNormalization", [total, *parameters], attributes)
        self._replace(node.outputs[0], normalised)
        if len(node.outputs) == 4:
            self._replace(node.outputs[3], total)
        self._remove(node)

    def _activation(self, x: ir.Value, node: ir.Node) -> _Quantised:
        assert x.name is not None
        if x.name not in self._quantised:
            producer = x.producer()
            if producer is not None:
                kind = producer.op_type
            else:
                kind = ""
            if producer is not None and _is_norm(producer):
                self._quantised[x.name] = self._by_one_scale(x, node)
            elif kind == "Relu":
                assert producer is not None and producer.inputs[0] is not None
                self._quantised[x.name] = self._positive(producer.inputs[0], node)
            else:
                sizes = self._node(node, "", "Abs", [x])
                self._quantised[x.name] = self._by_row(x, self._largest_of_row(sizes, node), _LEVELS, 128, node)
        return self._quantised[x.name]

    def _by_one_scale(self, x: ir.Value, node: ir.Node) -> _Quantised:
        scale = self._constant(f"{x.name}.scale", np.float32(self._largest[str(x.name)] * MARGIN / _LEVELS))
        zero_point = self._zero_point(128)
        rounded = self._node(node, "", "QuantizeLinear", [x, scale, zero_point], dtype=ir.DataType.UINT8)
        return _Quantised(rounded, scale, zero_point, None)

    def _positive(self, x: ir.Value, node: ir.Node) -> _Quantised:
        """Quantise Relu(x) without a Relu: negative values saturate at 0, and all 256 levels are for positive ones."""
        # Positive, also for rows without a positive value, whose integers must saturate at 0.
        smallest_scale = self._constant("int8.smallest_scale", np.float32(np.finfo(np.float32).tiny))
        largest = self._node(node, "", "Max", [self._largest_of_row(x, node), smallest_scale])
        return self._by_row(x, largest, 2 * _LEVELS + 1, 0, node)

    def _largest_of_row(self, x: ir.Value, node: ir.Node) -> ir.Value:
        keep = ir.AttrInt64("keepdims", 1)
        if self._opset < AXES_OPSET:
            return self._node(node, "", "ReduceMax", [x], [keep, ir.AttrInt64s("axes", [-1])])
        axes = self._constant("int8.last", np.array([-1], np.int64))
        return self._node(node, "", "ReduceMax", [x, axes], [keep])

    def _zero_point(self, integer: int) -> ir.Value:
        return self._constant(f"int8.zero_point_{integer}", np.uint8(integer))

    def _by_row(self, x: ir.Value, largest: ir.Value, levels: int, zero: int, node: ir.Node) -> _Quantised:
        """Quantise each row with a separate scale.

        In a row of zeros, 0 * (1 / 0) is NaN. Its integers are arbitrary, but the row's factor is 0, as is the result.
        """
        scale = self._constant(f"int8.unit{levels}", np.float32(1 / levels))
        zero_point = self._zero_point(zero)
        value = self._node(node, "", "Mul", [x, self._node(node, "", "Reciprocal", [largest])])
        rounded = self._node(node, "", "QuantizeLinear", [value, scale, zero_point], dtype=ir.DataType.UINT8)
        return _Quantised(rounded, scale, zero_point, largest)

    def _linear(
        self,
        node: ir.Node,
        rows: _Quantised,
        ints: ir.Value,
        scales: ir.Value,
        bias: ir.Value | None,
        outputs_first: bool,
    ) -> ir.Value:
        """Return the product, times the factors of its rows, if there are any, plus the bias, if there is one."""
        bias_last = rows.factor is not None or outputs_first  # otherwise the factor would also multiply the bias
        product = self._product(node, rows, ints, scales, None if bias_last else bias, outputs_first)
        if rows.factor is not None:
            product = self._node(node, "", "Mul", [product, rows.factor])
        if bias is not None and bias_last:
            product = self._node(node, "", "Add", [product, bias])
        return product

    def _product(
        self,
        node: ir.Node,
        rows: _Quantised,
        ints: ir.Value,
        scales: ir.Value,
        bias: ir.Value | None,
        outputs_first: bool,
    ) -> ir.Value:
        if outputs_first:
            zeros = self._constant(f"{ints.name}.zeros", np.zeros(_array(scales).shape, np.int8))
            attributes = [ir.AttrInt64("transB", 1)]
            return self._node(
                node, CONTRIB, "QGemm", [rows.values, rows.scale, rows.zero_point, ints, scales, zeros], attributes
            )
        inputs: list[ir.Value | None] = [rows.values, ints, rows.scale, scales, rows.zero_point, None, bias]
        return self._node(node, CONTRIB, "MatMulIntegerToFloat", inputs if bias else inputs[:5])

    def _weight(
        self, weight: ir.Value, columns: "_ColumnBlock", *, outputs_first: bool, transposed: bool
    ) -> tuple[ir.Value, ir.Value]:
        """Return an int8 weight and its scales `[n]`.

        Args:
            weight: float32 `[k, n]`, or `[n, k]` if `transposed`.
            columns: the block of outputs.
            outputs_first: whether to return int8 `[n, k]` instead of `[k, n]`.
            transposed: see `weight`.
        """
        name = columns.name_for(weight)
        if (name, outputs_first) not in self._weights:
            array = columns.slice(_array(weight) if transposed else _array(weight).T)
            ints, scales = quantised(array)
            self._weights[name, outputs_first] = (
                self._constant(f"{name}.int8", ints if outputs_first else np.ascontiguousarray(ints.T)),
                self._constant(f"{name}.scales", scales),
            )
        return self._weights[name, outputs_first]

    def _columns_of(self, bias: ir.Value | None, columns: "_ColumnBlock") -> ir.Value | None:
        if bias is None or columns.parts == 1:
            return bias
        return self._constant(columns.name_for(bias), columns.slice(_array(bias)))

    def _constant(self, name: str, array: npt.NDArray[np.generic] | np.generic) -> ir.Value:
        if name not in self._graph.initializers:
            shape = ir.Shape(np.shape(array))
            tensor = ir.Tensor(np.asarray(array), name=name)
            value = ir.Value(name=name, type=ir.TensorType(tensor.dtype), shape=shape, const_value=tensor)
            self._graph.initializers[name] = value
        return self._graph.initializers[name]

    def _node(
        self,
        before: ir.Node,
        domain: str,
        kind: str,
        inputs: list[ir.Value | None],
        attributes: list[ir.Attr] | None = None,
        dtype: ir.DataType = ir.DataType.FLOAT,
    ) -> ir.Value:
        """Add a node before another node, and return its output."""
        self._count += 1
        name = f"{before.name}/{kind}.{self._count}"
        node = ir.Node(domain, kind, inputs, attributes or [], num_outputs=1, name=name)
        (output,) = node.outputs
        output.name, output.type = name, ir.TensorType(dtype)
        self._graph.insert_before(before, node)
        return output

    @staticmethod
    def _replace(old: ir.Value, new: ir.Value) -> None:
        """Replace a value by another, which gets its name."""
        new.shape = old.shape
        old.replace_all_uses_with(new, replace_graph_outputs=True)
        old.name, new.name = None, old.name or new.name  # unused outputs have no name

    def _remove(self, node: ir.Node) -> None:
        """Remove a node and, first, the nodes that read it (Add, Split), whose outputs are no longer used."""
        for reader, _ in list(node.outputs[0].uses()):
            self._remove(reader)
        self._graph.remove(node, safe=True)


class _ColumnBlock(NamedTuple):
    """One of several equal blocks of a weight's output columns."""

    part: int
    parts: int

    def slice(self, array: Float32) -> Float32:
        """Return this part of float32 `[n, ...]`: `[n / parts, ...]`."""
        return np.split(array, self.parts)[self.part]

    def name_for(self, value: ir.Value) -> str:
        if self.parts == 1:
            return f"{value.name}"
        return f"{value.name}.{self.part}"


def _is_read(value: ir.Value) -> bool:
    return bool(value.uses()) or value.is_graph_output()


def _bias(node: ir.Node) -> tuple[ir.Value | None, ir.Node]:
    """Return the bias of a MatMul or Gemm, and the node that adds it."""
    if len(node.inputs) > 2:
        return node.inputs[2], node
    reader = _only_reader(node)
    if node.op_type == "MatMul" and reader is not None and reader.op_type == "Add":
        (bias,) = [value for value in reader.inputs if value is not node.outputs[0]]
        if bias is not None and bias.const_value is not None and len(bias.const_value.shape) == 1:
            return bias, reader
    return None, node


def _chunks(node: ir.Node) -> Sequence[ir.Value]:
    """Return the outputs of a Split of the last axis, if it is the node's only reader, otherwise the node's output.

    Several smaller MatMuls take the same time as one, and the copies by Split are avoided.
    """
    reader = _only_reader(node)
    if reader is None or reader.op_type != "Split" or len(reader.inputs) > 1:
        return node.outputs[:1]
    rank = len(node.outputs[0].shape or ())
    if reader.attributes["axis"].as_int() in (-1, rank - 1):
        return reader.outputs
    return node.outputs[:1]


def _only_reader(node: ir.Node) -> ir.Node | None:
    uses = list(node.outputs[0].uses())
    if len(uses) == 1 and not node.outputs[0].is_graph_output():
        return uses[0].node
    return None


def _array(value: ir.Value) -> Float32:
    assert value.const_value is not None
    return value.const_value.numpy()
