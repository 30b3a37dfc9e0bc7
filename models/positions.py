"""Positions of tokens: sinusoids (added to embeddings), relative (added to scores), rotary (rotate queries and keys),
and Shaw's (added to keys and values).

Shapes: b or n batch (1 if equal for all rows), t queries, s keys, d d_model, h heads, k head_dim.
"""

import math
from functools import lru_cache

import torch
from torch import Tensor, nn
from txport.models.config import Config, Side


def sinusoids(length: int, d_model: int) -> Tensor:
    """Return positions of Vaswani et al. (2017), section 3.5: float32 `[length, d_model]`, sines at even columns."""
    table = torch.zeros(length, d_model, dtype=torch.float64)
    if table.is_meta:  # only shapes are needed; computing on meta tensors would import PyTorch modules for a second
        return table.float()
    position = torch.arange(length, dtype=torch.float64)[:, None]
    frequency = torch.exp(torch.arange(0, d_model, 2, dtype=torch.float64) * (-math.log(10000.0) / d_model))
    table[:, 0::2] = torch.sin(position * frequency)
    table[:, 1::2] = torch.cos(position * frequency)
    return table.float()


def rotations(length: int, head_dim: int) -> tuple[Tensor, Tensor]:
    """Return cosines and sines of rotary positions, float32 `[length, k]`: Su et al. (2021), arXiv:2104.09864, (34).

    Elements 2i and 2i + 1 of a query or key are a 2D vector, rotated by its position times 10000^(-2i / k). The sine of
    the first has a minus sign, so that the result is x cos + x' sin, where x' is x with elements of pairs exchanged.
    """
    table = sinusoids(length, head_dim)
    sines = table[:, 0::2]
    cosines = table[:, 1::2]
    return cosines.repeat_interleave(2, dim=1), torch.stack([-sines, sines], dim=2).flatten(1)


@lru_cache(maxsize=16)
@torch.inference_mode(False)  # training may use the cached tensors later
def _turns(length: int, head_dim: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    """Return `rotations` as complex numbers `[length, k / 2]`, with parts in `dtype` (float32 or float64)."""
    cosines, sines = (table[:, 1::2].to(device, dtype) for table in rotations(length, head_dim))
    return torch.complex(cosines, sines)


def rotated(x: Tensor, positions: Tensor | None = None) -> Tensor:
    """Rotate queries or keys `[b, h, t, k]` by their positions: int64 `[b]` if t is 1; None for 0, 1, 2, ...

    The result has the dtype of x. It is computed in float32 or more.
    """
    if positions is None:
        length = x.shape[2]
    else:
        length = int(positions.max()) + 1
    real_type = torch.promote_types(x.dtype, torch.float32)
    # Lengths are rounded up to multiples of 256, so that a search, whose length grows by 1, computes few tables.
    turns = _turns(-(-length // 256) * 256, x.shape[3], x.device, real_type)
    if positions is None:
        turns = turns[:length]
    else:
        turns = turns[positions][:, None, None]
    # PyTorch multiplies complex numbers in one pass. This takes half the time of the formula with real numbers.
    pairs = torch.view_as_complex(x.to(real_type).reshape(*x.shape[:3], -1, 2))
    return torch.view_as_real(pairs * turns).flatten(3).to(x.dtype)


class RelativePositions(nn.Module):
    """Biases of attention scores by the distance from query to key, as in T5: Raffel et al. (2020), section 2.1.

    Each short distance has a separate bias. Longer distances share biases in buckets whose width grows logarithmically,
    and distances from `position_distance` on share one. An encoder uses half of the buckets for keys after the query.

    Args:
        config: of the model.
        side: the stack of layers. They share one table, or have one each (UMT5: Chung et al. 2023).
        causal: whether keys never follow their query.
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
        """Return the bias of scores for each layer, `[n, h, t, s]`, for distances (key - query), int64 `[n, t, s]`."""
        biases = self.weight[:, self.buckets(distances)].permute(0, 1, 4, 2, 3)
        return [biases[min(layer, len(biases) - 1)] for layer in range(self.layers)]

    def buckets(self, distances: Tensor) -> Tensor:
        """Return the bucket of each distance (key - query), int64. Computed in float32, as by Hugging Face."""
        count = self.weight.shape[1]
        if self.causal:
            first: Tensor | int = 0
            distances = -distances.clamp(max=0)
        else:
            count //= 2
            first = (distances > 0) * count
            distances = distances.abs()
        exact_count = count // 2
        growth = torch.log(distances.clamp(min=exact_count).float() / exact_count) / math.log(
            self.farthest / exact_count
        )
        logarithmic = (exact_count + (growth * (count - exact_count)).long()).clamp(max=count - 1)
        return first + torch.where(distances < exact_count, distances, logarithmic)

    def table(self, length: int) -> Tensor:
        """Return all biases for sequences of up to `length` tokens: float32 `[distances, tables * h]`.

        If causal, row i belongs to distance -i (key - query), otherwise to distance i - length + 1.
        """
        if self.causal:
            distances = -torch.arange(length)
        else:
            distances = torch.arange(1 - length, length)
        return self.weight[:, self.buckets(distances)].transpose(0, 1).flatten(1)


class ShawPositions(nn.Module):
    """Vectors by the distance from query to key, added to keys and values: Shaw et al. (2018), arXiv:1803.02155.

    Distances (key - query) from `position_distance` on share one vector, on each side of the query. All heads of a
    layer share the vectors.

    Args:
        config: of the model.
        side: sizes of the stack.
    """

    def __init__(self, config: Config, side: Side) -> None:
        super().__init__()
        self.farthest = config.position_distance
        rows = 2 * self.farthest + 1
        self.keys = nn.Parameter(torch.empty(rows, side.head_dim))
        self.values = nn.Parameter(torch.empty(rows, side.head_dim))

    def scores(self, query: Tensor, distances: Tensor) -> Tensor:
        """Return products `[b, h, t, s]` of queries `[b, h, t, k]` and key vectors, for distances int64 `[n, t, s]`."""
        return self._product(query, self.keys[self._rows(distances)].transpose(-1, -2))

    def context(self, weights: Tensor, distances: Tensor) -> Tensor:
        """Return sums of value vectors `[b, h, t, k]`, for attention weights `[b, h, t, s]`, distances `[n, t, s]`."""
        return self._product(weights, self.values[self._rows(distances)])

    def _rows(self, distances: Tensor) -> Tensor:
        return distances.clamp(-self.farthest, self.farthest) + self.farthest

    def _product(self, x: Tensor, vectors: Tensor) -> Tensor:
        """Multiply x `[b, h, t, m]` by the vectors of each query, `[n, t, m, p]`: `[b, h, t, p]`."""
        return (x.transpose(1, 2) @ vectors.to(x.dtype)).transpose(1, 2)
