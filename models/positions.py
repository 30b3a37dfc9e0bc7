"""Positions of tokens: sinusoids, which are added to embeddings, and relative positions, which are added to scores.

Shapes: n batch (1 for all alike), t queries, s keys, d d_model, h heads.
"""

import math

import torch
from torch import Tensor, nn
from txport.models.config import Config, Side


def sinusoids(length: int, d_model: int) -> Tensor:
    """Positions of Vaswani et al. (2017), section 3.5: float32 `[length, d_model]`, sine and cosine interleaved."""
    table = torch.zeros(length, d_model, dtype=torch.float64)
    if table.is_meta:  # only sizes are wanted: PyTorch would spend a second on imports for the rest
        return table.float()
    position = torch.arange(length, dtype=torch.float64)[:, None]
    frequency = torch.exp(torch.arange(0, d_model, 2, dtype=torch.float64) * (-math.log(10000.0) / d_model))
    table[:, 0::2] = torch.sin(position * frequency)
    table[:, 1::2] = torch.cos(position * frequency)
    return table.float()


class RelativePositions(nn.Module):
    """Biases of attention by the distance of a key from a query, of one stack: Raffel et al. (2020), section 2.1 (T5).

    Near distances have a bias of their own, far ones share one with others, in buckets whose width grows with the
    logarithm, up to a distance from which on all are one. An encoder has half of the buckets for keys that follow.

    Args:
        config: of the model.
        side: whose layers have it: all one table, or each one of its own (UMT5: Chung et al. 2023).
        causal: keys never follow their query.
    """

    def __init__(self, config: Config, side: Side, *, causal: bool) -> None:
        super().__init__()
        self.causal = causal
        self.layers = side.layers
        self.farthest = config.position_distance
        tables = side.layers if config.position_tables == "layer" else 1
        self.weight = nn.Parameter(torch.empty(tables, config.position_buckets, side.heads))

    def forward(self, distances: Tensor) -> list[Tensor]:
        """Key less query, int64 `[n, t, s]` -> what is added to the scores of each layer, `[n, h, t, s]`."""
        biases = self.weight[:, self.buckets(distances)].permute(0, 1, 4, 2, 3)
        return [biases[min(layer, len(biases) - 1)] for layer in range(self.layers)]

    def buckets(self, distances: Tensor) -> Tensor:
        """Key less query, int64 -> the bucket of each, int64; in float32, as mesh TensorFlow and Hugging Face do it."""
        count = self.weight.shape[1]
        if self.causal:
            first: Tensor | int = 0
            distances = -distances.clamp(max=0)
        else:
            count //= 2
            first = (distances > 0) * count
            distances = distances.abs()
        near = count // 2
        growth = torch.log(distances.clamp(min=near).float() / near) / math.log(self.farthest / near)
        far = (near + (growth * (count - near)).long()).clamp(max=count - 1)
        return first + torch.where(distances < near, distances, far)

    def table(self, length: int) -> Tensor:
        """All biases that sequences of up to `length` tokens need: float32 `[distances, tables * h]`.

        Row i is of the key i before its query where that is causal, else of the key i - length + 1 after it.
        """
        distances = -torch.arange(length) if self.causal else torch.arange(1 - length, length)
        return self.weight[:, self.buckets(distances)].transpose(0, 1).flatten(1)
