"""Positions of tokens: sinusoids, added to embeddings; relative ones, added to scores; rotary ones, which turn queries.

Shapes: b or n batch (1 for all alike), t queries, s keys, d d_model, h heads, k head_dim.
"""

import math
from functools import lru_cache

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


def rotations(length: int, head_dim: int) -> tuple[Tensor, Tensor]:
    """Rotary positions of Su et al. (2021), arXiv:2104.09864, equation 34: cosines and sines, float32 `[length, k]`.

    The numbers 2i and 2i + 1 of a query or key are a vector, which is turned by its position times 10000^(-2i / k). The
    sine of the first is negative: so x is turned to x cos + x' sin, where x' is x with the two of each pair exchanged.
    """
    table = sinusoids(length, head_dim)
    sines = table[:, 0::2]
    cosines = table[:, 1::2]
    return cosines.repeat_interleave(2, dim=1), torch.stack([-sines, sines], dim=2).flatten(1)


@lru_cache(maxsize=16)
@torch.inference_mode(False)  # training may follow, and take them from the cache
def _turns(length: int, head_dim: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    """`rotations` as complex numbers `[length, k / 2]`, whose parts are float32 or float64, by `dtype`."""
    cosines, sines = (table[:, 1::2].to(device, dtype) for table in rotations(length, head_dim))
    return torch.complex(cosines, sines)


def rotated(x: Tensor, positions: Tensor | None = None) -> Tensor:
    """Queries or keys `[b, h, t, k]` turned by their positions, int64 `[b]` where t is 1, else 0 and on.

    The result has their dtype, and is computed in float32 at least.
    """
    if positions is None:
        most = x.shape[2]
    else:
        most = int(positions.max()) + 1
    real = torch.promote_types(x.dtype, torch.float32)
    # In steps of 256 positions, so that a search, whose every step is longer, computes few tables.
    turns = _turns(-(-most // 256) * 256, x.shape[3], x.device, real)
    if positions is None:
        turns = turns[:most]
    else:
        turns = turns[positions][:, None, None]
    # As complex numbers, which PyTorch multiplies in one pass: training takes half the time of reals for it.
    pairs = torch.view_as_complex(x.to(real).reshape(*x.shape[:3], -1, 2))
    return torch.view_as_real(pairs * turns).flatten(3).to(x.dtype)


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
        if config.position_tables == "layer":
            tables = side.layers
        else:
            tables = 1
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
        """Return all biases that sequences of up to `length` tokens need: float32 `[distances, tables * h]`.

        Row i is of the key i before its query where that is causal, else of the key i - length + 1 after it.
        """
        if self.causal:
            distances = -torch.arange(length)
        else:
            distances = torch.arange(1 - length, length)
        return self.weight[:, self.buckets(distances)].transpose(0, 1).flatten(1)
