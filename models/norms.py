"""Norms: LayerNorm and RMSNorm, which scale each token separately; PowerNorm and BatchNorm, which use running means.

Shapes: `...` are batch and length, d is d_model.
"""

from abc import ABC, abstractmethod
from typing import Any

import torch
import torch.distributed
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from txport.models.config import Config

# Weight of a new batch in a running mean: 1 - alpha of Shen et al. (2020), whose alphas are both 0.9.
MOMENTUM = 0.1


class NoNorm(nn.Identity):
    """Identity instead of a norm."""


class RMSNorm(nn.Module):
    """RMSNorm (Zhang and Sennrich, 2019): divides each token by its root mean square. A weight, no bias, as in T5."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        """Normalise x `[..., d]`, and return float32 `[..., d]`."""
        x = x.float()
        return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + self.eps) * self.weight


class SharedNorm(nn.Module, ABC):
    """Norm with statistics of many tokens. In evaluation they are constant, and the norm is affine.

    Attributes:
        lengths: int64 `[b]`, number of tokens of each row of `[b, t, d]` that count for the statistics; None for all.
            Set by `txport.models.padding`.
    """

    lengths: Tensor | None

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width))
        self.lengths = None

    @abstractmethod
    def affine(self) -> tuple[Tensor, Tensor]:
        """Return (a, b), each `[d]`: in evaluation mode the norm is x * a + b."""

    @abstractmethod
    def learn(self, x: Tensor, tokens: Tensor | None) -> Tensor:
        """Normalise float32 `x` in training mode. Running means are updated from `tokens`, bool `[b, t]`; None: all."""

    def forward(self, x: Tensor) -> Tensor:
        """Normalise x `[..., d]`, and return float32 `[..., d]`."""
        x = x.float()
        if self.training:
            return self.learn(x, self._tokens(x))
        scale, shift = self.affine()
        return x * scale + shift

    def _tokens(self, x: Tensor) -> Tensor | None:
        """Return bool `[b, t]`, false for padding, or None if all tokens count."""
        if self.lengths is None:
            return None
        return torch.arange(x.shape[1], device=x.device) < self.lengths[:, None]


class PowerNorm(SharedNorm):
    """PowerNorm of Shen et al. (2020), arXiv:2003.07845, Algorithm 2: divides channels by a running root mean square.

    The published code differs: its first 4,000 steps use the mean square of the batch, and a norm over groups of
    channels precedes it. Here the running mean starts at 1, close to the initial mean square of the residual stream.

    Attributes:
        running_square: float32 `[d]`, psi squared.
        running_gradient: float32 `[d]`, nu: running mean of normalised tokens times their gradients, for the loss over
            all devices.
    """

    running_square: Tensor
    running_gradient: Tensor

    def __init__(self, width: int, eps: float) -> None:
        super().__init__(width, eps)
        self.register_buffer("running_square", torch.ones(width))
        self.register_buffer("running_gradient", torch.zeros(width))

    def affine(self) -> tuple[Tensor, Tensor]:
        return self.weight * torch.rsqrt(self.running_square + self.eps), self.bias

    def learn(self, x: Tensor, tokens: Tensor | None) -> Tensor:
        inverse = torch.rsqrt(self.running_square + self.eps)
        with torch.no_grad():
            (squares,) = _means(tokens, x * x)
            self.running_square.lerp_(squares, MOMENTUM)
        return _Scaled.apply(x, inverse, self.running_gradient, tokens) * self.weight + self.bias  # type: ignore[no-any-return, no-untyped-call]


class _Scaled(torch.autograd.Function):
    """x / psi. Its gradient contains an approximation of the dependence of psi on x."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, inverse: Tensor, running_gradient: Tensor, tokens: Tensor | None) -> Tensor:
        y = x * inverse
        ctx.save_for_backward(y, inverse)
        # An attribute, since saved tensors must not be modified, and backward updates this one.
        ctx.running_gradient = running_gradient
        ctx.tokens = tokens
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        y, inverse = ctx.saved_tensors
        nu = ctx.running_gradient
        tokens = ctx.tokens
        # The loss over all devices is the mean of their losses.
        devices = _devices()
        straight = gradient - devices * nu * y
        if tokens is not None:  # psi does not depend on padding
            straight = straight.masked_fill(~tokens[..., None], 0.0)
        squares, products = _means(tokens, y * y, gradient * y)
        new = nu * (1 - MOMENTUM * squares) + MOMENTUM * products / devices
        # In FP16 some steps overflow; the gradient scaler skips them, so their values must not reach nu.
        nu.copy_(torch.where(torch.isfinite(new), new, nu))
        return straight * inverse, None, None, None


class BatchNorm(SharedNorm):
    """BatchNorm of Ioffe and Szegedy (2015) over all tokens of a batch, as `nn.BatchNorm1d`; for comparisons.

    Attributes:
        running_mean, running_variance: float32 `[d]`, running means over batches; the variance is unbiased.
    """

    running_mean: Tensor
    running_variance: Tensor

    def __init__(self, width: int, eps: float) -> None:
        super().__init__(width, eps)
        self.register_buffer("running_mean", torch.zeros(width))
        self.register_buffer("running_variance", torch.ones(width))

    def affine(self) -> tuple[Tensor, Tensor]:
        scale = self.weight * torch.rsqrt(self.running_variance + self.eps)
        return scale, self.bias - self.running_mean * scale

    def learn(self, x: Tensor, tokens: Tensor | None) -> Tensor:
        (mean,) = _means(tokens, x)
        (variance,) = _means(tokens, (x - mean) ** 2)
        with torch.no_grad():
            count = _summed(_count(tokens, x))
            self.running_mean.lerp_(mean, MOMENTUM)
            self.running_variance.lerp_(variance * count / (count - 1).clamp(min=1), MOMENTUM)
        return (x - mean) * torch.rsqrt(variance + self.eps) * self.weight + self.bias


NORM_CLASSES: dict[str, type[nn.LayerNorm | RMSNorm | SharedNorm]] = {
    "layer": nn.LayerNorm,  # Ba et al. (2016): each token by its own mean and variance
    "rms": RMSNorm,
    "power": PowerNorm,
    "batch": BatchNorm,
}


def new_norm(config: Config) -> nn.Module:
    """Return a norm of the config's kind over `[..., d_model]`."""
    return NORM_CLASSES[config.norm_kind](config.d_model, config.layer_norm_epsilon)


def _devices() -> int:
    """Return the number of devices that train together."""
    ready = torch.distributed.is_available() and torch.distributed.is_initialized()
    if ready:
        return torch.distributed.get_world_size()
    return 1


def _count(tokens: Tensor | None, x: Tensor) -> Tensor:
    """Return the number of tokens in `x` `[..., d]` on this device, float32 `[1]`."""
    if tokens is None:
        return x.new_full((1,), x[..., 0].numel())
    return tokens.sum().to(x)[None]


def _means(tokens: Tensor | None, *values: Tensor) -> list[Tensor]:
    """Return the mean `[d]` of each of the values `[..., d]` over the tokens of all devices."""
    if tokens is not None:
        values = tuple(value.masked_fill(~tokens[..., None], 0.0) for value in values)
    sums = _summed(torch.cat([*(value.flatten(0, -2).sum(0) for value in values), _count(tokens, values[0])]))
    return list((sums[:-1] / sums[-1]).chunk(len(values)))


def _summed(x: Tensor) -> Tensor:
    """Return the sum over all devices."""
    return _Sum.apply(x) if _devices() > 1 else x  # type: ignore[no-untyped-call]


class _Sum(torch.autograd.Function):
    """Sum over devices. The gradient on each is the sum of the gradients of the result on all devices."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        total = x.clone()
        torch.distributed.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        total = gradient.clone()
        torch.distributed.all_reduce(total)
        return total
