"""Writer of a graph: nodes in order, with names from modules of the model."""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager

import numpy as np
import onnx_ir as ir
import onnx_ir.passes.common as passes
from onnx_ir.tape import Tape
from txport.exporter.graphs.tensors import Linear, ModelTensors
from txport.runtime.bundle.interface import Interface

CONTRIB = "com.microsoft"
# IR version for each opset. With a newer one, older parsers would refuse files that they can read.
IR_VERSIONS = {17: 8, 24: 12}
# From this opset on, ReduceMean and ReduceMax have axes as an input, and Split needs the number of outputs. TensorRT's
# parsers of 8.6 and 9 ignore this input and reduce over all axes (NVIDIA/TensorRT#3467).
AXES_OPSET = 18

BOOL = ir.DataType.BOOL
FLOAT = ir.DataType.FLOAT
INT32 = ir.DataType.INT32
INT64 = ir.DataType.INT64
_TYPES = {"float32": FLOAT, "int64": INT64, "bool": BOOL}
# Operators whose output dtype differs from that of their first input.
_OUTPUTS = {
    **dict.fromkeys(("Equal", "GreaterOrEqual", "Less", "LessOrEqual"), BOOL),
    **dict.fromkeys(("ArgMax", "Shape"), INT64),
}

# Operand of an operator: a value of the graph, a weight, a constant, or nothing.
Operand = ir.Value | ir.LazyTensor | np.ndarray | int | float | Sequence[int] | None


class Writer:
    """Writer of nodes, weights and names of one graph.

    Args:
        interface: names, dtypes and shapes of its inputs and outputs.
        opset: version of the standard operators.
        tensors: tensors of the model.

    Attributes:
        inputs: input values by name.
    """

    def __init__(self, interface: Interface, opset: int, tensors: ModelTensors) -> None:
        self.inputs = {
            tensor.name: ir.val(tensor.name, dtype=_TYPES[tensor.dtype], shape=tensor.shape)
            for tensor in interface.inputs
        }
        self.tensors = tensors
        self._interface = interface
        self._opsets = {"": opset}
        self._tape = Tape()
        self._scope = ""
        self._names: dict[str, int] = {}
        self._weights: dict[object, ir.Value] = {}

    @property
    def opset(self) -> int:
        return self._opsets[""]

    @contextmanager
    def module(self, name: str) -> Iterator[None]:
        """Prefix names of nodes and weights with this module, while the context is active."""
        outer = self._scope
        self._scope = name
        yield
        self._scope = outer

    def part(self, name: str) -> AbstractContextManager[None]:
        """Prefix names of nodes and weights with this part of the current module, while the context is active."""
        return self.module(f"{self._scope}.{name}".lstrip("."))

    def op(self, kind: str, *inputs: Operand, domain: str = "", **attributes: int | float | Sequence[int]) -> ir.Value:
        """Add a node with one output, and return the output."""
        (output,) = self.ops(kind, 1, *inputs, domain=domain, **attributes)
        return output

    def ops(
        self,
        kind: str,
        outputs: int,
        *inputs: Operand,
        domain: str = "",
        **attributes: int | float | Sequence[int],
    ) -> Sequence[ir.Value]:
        """Add a node and return its outputs. Their dtype is that of the first input, or that of the operator."""
        operands = [self._value(each) for each in inputs]
        if domain:
            self._opsets[domain] = 1
        name = self._name(f"{self._scope}/{kind}".lstrip("/"))
        self._tape.op_multi_out(kind, operands, attributes, domain=domain, num_outputs=outputs, name=name)
        node = self._tape.nodes[-1]
        for index, output in enumerate(node.outputs):
            if outputs == 1:
                output.name = name
            else:
                output.name = f"{name}.{index}"
            output.type = _type(node)
        return node.outputs

    def split(self, x: ir.Value, parts: int, axis: int) -> Sequence[ir.Value]:
        """Return equal parts of x along an axis."""
        if self.opset < AXES_OPSET:
            return self.ops("Split", parts, x, axis=axis)
        return self.ops("Split", parts, x, axis=axis, num_outputs=parts)

    def reduce(self, kind: str, x: ir.Value, *, keepdims: int) -> ir.Value:
        """Apply ReduceMean or ReduceMax over the last axis."""
        if self.opset < AXES_OPSET:
            return self.op(kind, x, axes=[-1], keepdims=keepdims)
        return self.op(kind, x, [-1], keepdims=keepdims)

    def linear(self, x: ir.Value, layer: Linear, name: str) -> ir.Value:
        """Apply a linear layer to x `[n, inputs]`, in one operator: `[n, outputs]`."""
        with self.part(name):
            bias = () if layer.bias is None else (self.weight("bias", layer.bias),)
            return self.op("Gemm", x, self.weight("weight", layer.weight), *bias, transB=1)

    def linear_of_rows(self, x: ir.Value, layer: Linear, name: str) -> ir.Value:
        """Apply a linear layer to x `[..., inputs]`: `[..., outputs]`."""
        with self.part(name):
            y = self.op("MatMul", x, self.weight("weight", layer.transposed))
            if layer.bias is None:
                return y
            return self.op("Add", y, self.weight("bias", layer.bias))

    def weight(self, name: str, tensor: ir.TensorProtocol) -> ir.Value:
        """Return a weight. On later use it keeps its first name."""
        if id(tensor) not in self._weights:
            value = self._initializer(self._name(f"{self._scope}.{name}".lstrip(".")), tensor)
            self._weights[id(tensor)] = value
        return self._weights[id(tensor)]

    def model(self, outputs: Sequence[ir.Value]) -> ir.Model:
        """Return the graph with outputs in the order of the interface."""
        for value, tensor in zip(outputs, self._interface.outputs, strict=True):
            value.name = tensor.name
            value.dtype = _TYPES[tensor.dtype]
            value.shape = ir.Shape(tensor.shape)
        inputs = [value for value in self.inputs.values() if value.uses()]
        graph = ir.Graph(
            inputs,
            outputs,
            nodes=self._tape.nodes,
            initializers=self._tape.initializers,
            opset_imports=self._opsets,
            name="graph",
        )
        model = ir.Model(graph, ir_version=IR_VERSIONS[self.opset])
        passes.CommonSubexpressionEliminationPass()(model)
        passes.RemoveUnusedNodesPass()(model)
        for node in model.graph:
            for output in node.outputs:
                if not output.uses() and not output.is_graph_output():
                    output.name = ""  # an unused optional output
        return model

    def _name(self, name: str) -> str:
        self._names[name] = self._names.get(name, 0) + 1
        if self._names[name] == 1:
            return name
        return f"{name}_{self._names[name]}"

    def _value(self, operand: Operand) -> ir.Value | None:
        if operand is None or isinstance(operand, ir.Value):
            return operand
        if isinstance(operand, ir.LazyTensor):  # not the protocol, whose check is slow
            return self.weight("weight", operand)
        array = np.asarray(operand)
        if array.dtype == np.float64:
            array = array.astype(np.float32)
        key = array.dtype.str, array.shape, array.tobytes()
        if key not in self._weights:
            if array.size > 4:
                name = "x".join(map(str, array.shape))
            else:
                name = ",".join(map(str, array.ravel().tolist()))
            self._weights[key] = self._initializer(self._name(f"constant.{name}"), ir.Tensor(array))
        return self._weights[key]

    def _initializer(self, name: str, tensor: ir.TensorProtocol) -> ir.Value:
        return self._tape.initializer(tensor, name=name)


def _type(node: ir.Node) -> ir.TypeProtocol | None:
    if node.op_type in _OUTPUTS:
        return ir.TensorType(_OUTPUTS[node.op_type])
    if node.op_type == "Cast":
        return ir.TensorType(ir.DataType(node.attributes["to"].as_int()))
    first = node.inputs[1 if node.op_type == "Where" else 0]
    if first is None or first.dtype is None:
        return None
    return ir.TensorType(first.dtype)
