"""Norms in graphs.

A norm that shares one scale among all tokens is affine, and disappears in the linear layers that alone read it. That
is so before every sublayer of a pre-norm model; where the residual stream itself is normalised, or where a projection
is tied to an embedding and must not change, Mul and Add remain.
"""

import onnx_ir as ir
from torch import nn
from txport.exporter.graphs.writer import Writer
from txport.models.norms import NoNorm, RMSNorm, SharedNorm

# RMSNormalization is a standard operator from this opset on.
RMS_OPSET = 23


def write_norm(w: Writer, x: ir.Value, norm: nn.Module, name: str) -> ir.Value:
    """Return a norm of `txport.models.norms` over `[..., d]`, as the module `name`."""
    if isinstance(norm, NoNorm):
        return x
    with w.module(name):
        if isinstance(norm, SharedNorm):
            scale, shift = w.tensors.affine(norm)
            return w.op("Add", w.op("Mul", x, w.weight("scale", scale)), w.weight("shift", shift))
        if isinstance(norm, RMSNorm):
            return _rms_norm(w, x, norm)
        assert isinstance(norm, nn.LayerNorm)
        weight, bias = (w.weight(name, w.tensors.parameter(getattr(norm, name))) for name in ("weight", "bias"))
        return w.op("LayerNormalization", x, weight, bias, axis=-1, epsilon=norm.eps)


def _rms_norm(w: Writer, x: ir.Value, norm: RMSNorm) -> ir.Value:
    weight = w.weight("weight", w.tensors.parameter(norm.weight))
    if w.opset >= RMS_OPSET:
        return w.op("RMSNormalization", x, weight, axis=-1, epsilon=norm.eps)
    # ONNX Runtime fuses this pattern into one operator; it would not match with x * x or Reciprocal.
    square = w.reduce("ReduceMean", w.op("Pow", x, 2.0), keepdims=1)
    root = w.op("Sqrt", w.op("Add", square, norm.eps))
    return w.op("Mul", w.op("Div", x, root), weight)


def foldable(norm: nn.Module) -> SharedNorm | None:
    """Return the norm if linear layers that read it can do its work, else None."""
    if isinstance(norm, SharedNorm):
        return norm
    return None


def remaining(norm: nn.Module) -> nn.Module:
    """Return the norm that is left to write where linear layers may do its work."""
    if foldable(norm):
        return NoNorm()
    return norm


def in_norm(node: ir.Node) -> bool:
    """Return whether a node of a graph is of the module of a norm."""
    return module_of(node).endswith("norm")


def module_of(node: ir.Node) -> str:
    """Return the module that a node of a graph is of; "" for those of the graph itself."""
    return (node.name or "").rpartition("/")[0]
