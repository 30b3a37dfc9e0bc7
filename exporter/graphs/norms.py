"""Norms in graphs.

A `SharedNorm` is affine, and can be folded into the linear layers after it, if they are its only readers. This is true
before every sublayer of a pre-norm model. If the residual stream itself is normalised, or a projection is tied to an
embedding and must not change, the norm is written as Mul and Add.
"""

import onnx_ir as ir
from torch import nn
from txport.exporter.graphs.writer import Writer
from txport.models.norms import NoNorm, RMSNorm, SharedNorm

# RMSNormalization is a standard operator from this opset on.
RMS_OPSET = 23


def write_norm(w: Writer, x: ir.Value, norm: nn.Module, name: str) -> ir.Value:
    """Write a norm of `txport.models.norms` over `[..., d]`, as the module `name`."""
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
    # ONNX Runtime fuses this pattern into one operator. It would not recognise x * x or Reciprocal.
    square = w.reduce("ReduceMean", w.op("Pow", x, 2.0), keepdims=1)
    root = w.op("Sqrt", w.op("Add", square, norm.eps))
    return w.op("Mul", w.op("Div", x, root), weight)


def foldable(norm: nn.Module) -> SharedNorm | None:
    """Return the norm if it can be folded into linear layers after it, otherwise None."""
    if isinstance(norm, SharedNorm):
        return norm
    return None


def remaining(norm: nn.Module) -> nn.Module:
    """Return the norm to write before linear layers: none if it is folded into them."""
    if foldable(norm):
        return NoNorm()
    return norm


def in_norm(node: ir.Node) -> bool:
    """Return whether a node belongs to the module of a norm."""
    return module_of(node).endswith("norm")


def module_of(node: ir.Node) -> str:
    """Return the module of a node; empty for nodes outside of modules."""
    return (node.name or "").rpartition("/")[0]
