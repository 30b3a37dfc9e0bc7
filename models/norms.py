"""Norms: LayerNorm, RMSNorm, and the two that share one scale among all tokens, PowerNorm and BatchNorm.

Shapes: `...` are batch and length, d is d_model.
"""

from abc import ABC, abstractmethod
from typing import Any

import torch
import torch.distributed
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from txport.models.config import Config

# What a new batch weighs in a running mean; 1 - alpha of Shen et al. (2020), who have 0.9 forward and backward.
MOMENTUM = 0.1


class NoNorm(nn.Identity):
    """Identity instead of a norm."""


class RMSNorm(nn.Module):
    """Zhang and Sennrich (2019): each token by the root of its own mean square, with a weight and no bias (as T5)."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        """x `[..., d]` -> `[..., d]`."""
        x = x.float()
        return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + self.eps) * self.weight


class SharedNorm(nn.Module, ABC):
    """A norm with statistics of many tokens, which are fixed in translation: it is affine then.

    Attributes:
        lengths: int64 `[b]`, how many tokens of each row of `[b, t, d]` to learn from, or None for all; set by
            `txport.models.padding`.
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
        """(a, b), each `[d]`: in evaluation mode the norm is x * a + b."""

    @abstractmethod
    def learn(self, x: Tensor, tokens: Tensor | None) -> Tensor:
        """The norm in training mode, of float32 `x`; running means take in `tokens`, bool `[b, t]`, None for all."""

    def forward(self, x: Tensor) -> Tensor:
        """x `[..., d]` -> `[..., d]`."""
        x = x.float()
        if self.training:
            return self.learn(x, self._tokens(x))
        scale, shift = self.affine()
        return x * scale + shift

    def _tokens(self, x: Tensor) -> Tensor | None:
        """bool `[b, t]`, false for padding."""
        if self.lengths is None:
            return None
        return torch.arange(x.shape[1], device=x.device) < self.lengths[:, None]


class PowerNorm(SharedNorm):
    """Shen et al. (2020), arXiv:2003.07845, Algorithm 2: every channel by the root of its mean square in past batches.

    The published code differs: its first 4,000 steps take the batch's own mean square, and a norm over the groups of
    each token stands before it. Here the running mean begins with 1, near which the residual stream begins too.

    Attributes:
        running_square: float32 `[d]`, psi squared.
        running_gradient: float32 `[d]`, nu: the mean of the normalised tokens times their gradients, of the loss of all
            devices.
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
    """x times 1/psi, with the approximate gradient of psi's own dependence on x."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, inverse: Tensor, running_gradient: Tensor, tokens: Tensor | None) -> Tensor:
        y = x * inverse
        ctx.save_for_backward(y, inverse)
        # Not saved with them: backward is to change it.
        ctx.running_gradient = running_gradient
        ctx.tokens = tokens
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        y, inverse = ctx.saved_tensors
        nu = ctx.running_gradient
        tokens = ctx.tokens
        # The loss of all devices is the mean of theirs.
        devices = _devices()
        straight = gradient - devices * nu * y
        if tokens is not None:  # padding has no part in psi
            straight = straight.masked_fill(~tokens[..., None], 0.0)
        squares, products = _means(tokens, y * y, gradient * y)
        new = nu * (1 - MOMENTUM * squares) + MOMENTUM * products / devices
        # In FP16 some steps overflow, and are left out by the gradients' scaler.
        nu.copy_(torch.where(torch.isfinite(new), new, nu))
        return straight * inverse, None, None, None


class BatchNorm(SharedNorm):
    """Ioffe and Szegedy (2015) over all tokens of a batch, as `nn.BatchNorm1d` has it; for comparison.

    Attributes:
        running_mean, running_variance: float32 `[d]`, of the batches so far; the variance is the unbiased one.
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
    """float32 `[1]`: how many tokens `x` `[..., d]` has here."""
    if tokens is None:
        return x.new_full((1,), x[..., 0].numel())
    return tokens.sum().to(x)[None]


def _means(tokens: Tensor | None, *values: Tensor) -> list[Tensor]:
    """Over the tokens of all devices: each of the values `[..., d]` -> `[d]`."""
    if tokens is not None:
        values = tuple(value.masked_fill(~tokens[..., None], 0.0) for value in values)
    sums = _summed(torch.cat([*(value.flatten(0, -2).sum(0) for value in values), _count(tokens, values[0])]))
    return list((sums[:-1] / sums[-1]).chunk(len(values)))


def _summed(x: Tensor) -> Tensor:
    """Over all devices."""
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
