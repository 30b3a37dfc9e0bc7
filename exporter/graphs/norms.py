"""Norms as graphs have them.

A norm that shares one scale among all tokens is affine, and disappears in the linear layers that alone read it. That
is so before every sublayer of a pre-norm model; where the residual stream itself is normalised, or where a projection
is tied to an embedding and must not change, Mul and Add remain.
"""

import onnx_ir as ir
import torch
from torch import Tensor, nn
from txport.models.norms import NoNorm, RMSNorm, SharedNorm

# RMSNormalization is a standard operator from this opset on.
RMS_OPSET = 23


class Affine(nn.Module):
    """A norm with one scale and shift for each channel."""

    def __init__(self, norm: SharedNorm) -> None:
        super().__init__()
        scale, shift = norm.affine()
        self.scale, self.shift = nn.Parameter(scale.detach()), nn.Parameter(shift.detach())

    def forward(self, x: Tensor) -> Tensor:
        """`[..., d]` -> `[..., d]`."""
        return x * self.scale + self.shift


class RootMeanSquare(nn.Module):
    """RMSNorm as one standard operator, where the opset has it, or in the parts that ONNX Runtime makes one of."""

    def __init__(self, norm: RMSNorm, opset: int) -> None:
        super().__init__()
        self.weight, self.eps = norm.weight, norm.eps
        self._whole = opset >= RMS_OPSET

    def forward(self, x: Tensor) -> Tensor:
        """`[..., d]` -> `[..., d]`."""
        if self._whole:
            return torch.onnx.ops.symbolic(
                "RMSNormalization",
                (x, self.weight),
                {"axis": -1, "epsilon": self.eps},
                dtype=x.dtype,
                shape=x.shape,
                version=RMS_OPSET,
            )
        # Pow, ReduceMean, Add, Sqrt, Div, Mul: with x * x or rsqrt it would not know the pattern.
        return x / torch.sqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * self.weight


def graph_norm(norm: nn.Module, opset: int) -> nn.Module:
    """A norm of `txport.models.norms` to trace for graphs of an opset."""
    if isinstance(norm, SharedNorm):
        return Affine(norm)
    return RootMeanSquare(norm, opset) if isinstance(norm, RMSNorm) else norm


def foldable(norm: nn.Module) -> SharedNorm | None:
    """The norm if linear layers that read it can do its work, else None."""
    return norm if isinstance(norm, SharedNorm) else None


def remaining(norm: nn.Module, opset: int, *, folded: bool) -> nn.Module:
    """What is left to trace of a norm."""
    return NoNorm() if folded and foldable(norm) else graph_norm(norm, opset)


def folded_into(linear: nn.Linear, norm: SharedNorm | None) -> tuple[Tensor, Tensor | None]:
    """Weight and bias of a linear layer that reads what its norm would have read; as they are if there is no norm."""
    if norm is None:
        return linear.weight, linear.bias
    scale, shift = (value.double() for value in norm.affine())
    weight = linear.weight.double()
    bias = weight @ shift if linear.bias is None else weight @ shift + linear.bias.double()
    return (weight * scale).float(), bias.float()


def in_norm(node: ir.Node) -> bool:
    """Whether a node of a traced graph comes from the module of a norm."""
    return (node.name or "").rpartition("/")[0].endswith("norm")
