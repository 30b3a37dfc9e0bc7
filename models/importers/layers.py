"""The sinusoids of fairseq and of what descends from it: other frequencies than the paper's, and an offset."""

import math

import torch
from torch import Tensor

# Rows of a table before the first token's: the padding id, 1 in all of these models, and all before it.
OFFSET = 2


def offset_sinusoids(length: int, d_model: int) -> Tensor:
    """float32 `[length, d_model]`: row i is what the token at i gets, which fairseq calls position i + 2.

    All sines stand before all cosines, and frequencies fall to 1/10000 exactly at the last one: tensor2tensor's
    version, in float32 as there, since at far positions rounding shows.
    """
    half = d_model // 2
    frequencies = torch.exp(torch.arange(half).float() * -(math.log(10000) / max(1, half - 1)))
    angles = torch.arange(OFFSET, length + OFFSET).float()[:, None] * frequencies[None]
    return torch.cat([torch.sin(angles), torch.cos(angles)], dim=1)
