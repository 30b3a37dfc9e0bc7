"""The copy mechanism of `txport.models.copying` in graphs: a mixture without a scatter that adds.

TensorRT 8.6 has no such scatter. Every source position gets the weight of all positions with its id, by a product with
a matrix of equalities, and with it the probability that its id has in the mixture. Positions of one id then hold one
value, so that a plain ScatterElements puts them in the place of the vocabulary's own. Shapes: b batch, t target (1 in
a step), s source, d d_model, v vocabulary, n = b * t.
"""

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor, nn
from txport.exporter.graphs.lowerings import Lowering
from txport.models.copying import NOTHING, CopyMechanism
from txport.models.transformer import KeyValue


class Looked(NamedTuple):
    """What one layer's cross-attention looked for, and what it added."""

    query: Tensor  # [n, d]
    cross: KeyValue
    context: Tensor  # [n, d]


class CopyGraph(nn.Module):
    """The logarithm of the mixture. It is computed in float32 in every precision, see `islands.mixture_nodes`."""

    def __init__(self, mechanism: CopyMechanism, heads: int) -> None:
        super().__init__()
        self.layers = mechanism.layers
        self._pointers, self._heads = mechanism.heads, heads
        self.context, self.state, self.input = mechanism.context, mechanism.state, mechanism.input

    def forward(
        self,
        logits: Tensor,
        state: Tensor,
        read: Tensor,
        looked: Mapping[int, Looked],
        bias: Tensor,
        source_ids: Tensor,
        lowering: Lowering,
    ) -> Tensor:
        """See `CopyMechanism.forward`.

        Args:
            logits: `[n, v]`.
            state: `[n, d]`.
            read: `[n, d]`.
            looked: of each of `layers`.
            bias: `[b, 1, 1, s]`.
            source_ids: int64 `[b, 1, s, 1]`.
            lowering: knows how b and t are one dimension.
        """
        gate = self.context(looked[self.layers[-1]].context) + self.state(state) + self.input(read)  # [n, 1]
        shifted = logits - logits.amax(dim=-1, keepdim=True)
        said = shifted - (shifted.exp().sum(dim=-1, keepdim=True).log() + _softplus(-gate))
        ids = source_ids[:, 0]  # [b, s, 1]
        equal = torch.where(ids == ids.transpose(1, 2), 1.0, 0.0)
        # 1 - p_gen: ONNX Runtime's Sigmoid is exact to 1e-8 only, which may be as much as all of it.
        copies = (-_softplus(gate)).exp()
        copied = _matmul(self._attention(looked, bias, lowering), equal) * lowering.apart(copies)
        pointed = torch.relu(copied - NOTHING)
        said = lowering.apart(said)  # [b, t, v]
        places = lowering.for_each_token(ids.transpose(1, 2), said)  # [b, t, s]
        alone = said.gather(2, places)
        # What is not pointed to, padding for one, stays as it is even where its probability is 0 in float32.
        both = torch.maximum(alone, (alone.exp() + pointed).log())
        return said.scatter(2, places, both).reshape(-1, logits.shape[1])

    def _attention(self, looked: Mapping[int, Looked], bias: Tensor, lowering: Lowering) -> Tensor:
        """The average of the heads: [b, t, s]."""
        weights = []
        for layer, head in self._pointers:
            query, (key, _), _ = looked[layer]
            one = query.reshape(-1, self._heads, query.shape[1] // self._heads)[:, head]
            scores = _matmul(lowering.apart(one), key[:, head].transpose(1, 2)) + bias[:, 0]
            weights.append(torch.softmax(scores, dim=-1))
        return sum(weights[1:], weights[0]) * (1 / len(weights)) if len(weights) > 1 else weights[0]


def _softplus(x: Tensor) -> Tensor:
    """log(1 + exp(x)): torch's own becomes three more operators, for a threshold that ONNX has no need of."""
    return torch.onnx.ops.symbolic("Softplus", (x,), dtype=x.dtype, shape=x.shape)


def _matmul(x: Tensor, y: Tensor) -> Tensor:
    """x [b, t, k], y [b, k, s] -> [b, t, s]."""
    return torch.onnx.ops.symbolic("MatMul", (x, y), dtype=x.dtype, shape=(*x.shape[:-1], y.shape[-1]))
