"""Tensors of a model in the form of its graphs: packed, folded, transposed, truncated; computed when written.

Graphs of one export share these objects. Their values are computed on each use and not kept, so an export needs
little more memory than the model.
"""

from collections.abc import Callable, Hashable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
import torch
from torch import Tensor, nn
from txport.models.norms import SharedNorm
from txport.models.positions import RelativePositions, rotations
from txport.models.transformer import Attention

Float32 = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Linear:
    """Linear layer in the form of graphs.

    Attributes:
        weight: `[outputs, inputs]`, for Gemm.
        transposed: `[inputs, outputs]`, for MatMul.
        bias: `[outputs]`, or None.
    """

    weight: ir.LazyTensor
    transposed: ir.LazyTensor
    bias: ir.LazyTensor | None


class ModelTensors:
    """Tensors that the graphs of one export share: one object for each, in all graphs."""

    def __init__(self) -> None:
        self._tensors: dict[Hashable, ir.LazyTensor] = {}

    def parameter(self, parameter: Tensor, rows: int | None = None) -> ir.LazyTensor:
        """Return a parameter or buffer, or its first `rows` rows."""
        # Tied parameters are one object, so `id` finds the tensor that the other graph uses already.
        shape = parameter.shape if rows is None else (min(rows, len(parameter)), *parameter.shape[1:])
        return self._tensor((id(parameter), rows), shape, lambda: _array(parameter[:rows]))

    def relative(self, positions: RelativePositions, length: int) -> ir.LazyTensor:
        """Return the table of relative positions for sequences of up to `length` tokens."""
        if positions.causal:
            rows = length
        else:
            rows = 2 * length - 1
        tables, _, heads = positions.weight.shape
        return self._tensor((id(positions), length), (rows, tables * heads), lambda: _array(positions.table(length)))

    def rotations(self, head_dim: int, length: int) -> tuple[ir.LazyTensor, ir.LazyTensor]:
        """Return cosines and sines of rotary positions, each `[length, k]`."""
        shape = length, head_dim
        key: Hashable = ("rotations", *shape)
        cosines = self._tensor((key, "cosines"), shape, lambda: _array(rotations(*shape)[0]))
        return cosines, self._tensor((key, "sines"), shape, lambda: _array(rotations(*shape)[1]))

    def affine(self, norm: SharedNorm) -> tuple[ir.LazyTensor, ir.LazyTensor]:
        """Return scale and shift of an affine norm, each `[d]`."""
        shape = norm.weight.shape
        scale = self._tensor((id(norm), "scale"), shape, lambda: _array(norm.affine()[0]))
        return scale, self._tensor((id(norm), "shift"), shape, lambda: _array(norm.affine()[1]))

    def linear(self, *layers: nn.Linear, norm: SharedNorm | None = None, scale: float = 1.0) -> Linear:
        """Return linear layers with the same input as one layer.

        Args:
            layers: either all have a bias, or none has.
            norm: norm that was not applied to the input and is folded in.
            scale: factor of the first layer's output.
        """
        key: Hashable = (*map(id, layers), id(norm), scale)
        shape = sum(layer.out_features for layer in layers), layers[0].in_features
        if len(layers) == 1 and norm is None and scale == 1.0:
            weight = self.parameter(layers[0].weight)
        else:
            weight = self._tensor((key, "weight"), shape, lambda: _packed(layers, norm, scale)[0])
        transposed = self._tensor((key, "transposed"), shape[::-1], lambda: weight.numpy().T)
        bias = None
        if layers[0].bias is not None or norm is not None:
            bias = self._tensor((key, "bias"), shape[:1], lambda: _packed(layers, norm, scale)[1])
        return Linear(weight, transposed, bias)

    def _tensor(self, key: Hashable, shape: tuple[int, ...], compute: Callable[[], Float32]) -> ir.LazyTensor:
        if key not in self._tensors:
            self._tensors[key] = ir.LazyTensor(
                lambda: ir.Tensor(np.ascontiguousarray(compute())), ir.DataType.FLOAT, ir.Shape(shape)
            )
        return self._tensors[key]


def query_scale(attention: Attention) -> float:
    """Return the factor of queries, 1/sqrt(head_dim), that is folded into their projection."""
    return float((attention.query.out_features // attention.heads) ** -0.5)


def folded_into(linear: nn.Linear, norm: SharedNorm | None) -> tuple[Tensor, Tensor | None]:
    """Return weight and bias of a linear layer with a norm folded in; unchanged if it is None."""
    if norm is None:
        return linear.weight, linear.bias
    # In float64, so that the folded weights are rounded only once.
    scale, shift = (value.double() for value in norm.affine())
    weight = linear.weight.double()
    if linear.bias is None:
        bias = weight @ shift
    else:
        bias = weight @ shift + linear.bias.double()
    return (weight * scale).float(), bias.float()


@torch.no_grad()
def _packed(layers: tuple[nn.Linear, ...], norm: SharedNorm | None, scale: float) -> tuple[Float32, Float32]:
    """Return weights `[outputs, inputs]` and biases `[outputs]` of all layers; biases `[0]` if there are none."""
    parts = [folded_into(layer, norm) for layer in layers]
    factors = [scale] + [1.0] * (len(layers) - 1)
    weights = [weight * factor for (weight, _), factor in zip(parts, factors, strict=True)]
    biases = [bias * factor for (_, bias), factor in zip(parts, factors, strict=True) if bias is not None]
    return _array(torch.cat(weights)), _array(torch.cat(biases) if biases else torch.zeros(0))


def _array(tensor: Tensor) -> Float32:
    array: Float32 = tensor.detach().float().numpy()
    return array
