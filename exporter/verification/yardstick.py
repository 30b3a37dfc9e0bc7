"""PyTorch once more, in the arithmetic of a bundle: how far rounding alone takes the logits.

It knows nothing of the bundle's graphs and weights, so that a fault in them excuses nothing. It rounds where the format
does, by PyTorch's own operators:

* float32: PyTorch computes in float64, and its difference from float32 is what float32 rounds away;
* float16: weights and the result of every operator are rounded to float16, but not what float16 cannot hold (that is
  for islands, which only make a bundle more exact);
* int8: weights of products and embedding tables are rounded per channel, what products read per row, or, where a norm
  has made it, by one scale, as `txport.exporter.graphs.int8` has it.

The mixture of a model that copies is float32 in every format.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from txport.exporter.graphs.int8 import MARGIN
from txport.exporter.reference import Batch, Logits, teacher_forcing
from txport.models.config import Config
from txport.models.norms import RMSNorm
from txport.models.transformer import Transformer

_HALF_MOST = torch.finfo(torch.float16).max
# What only `Attention.weights` calls, whose weights the mixture reads.
_MIXTURE = {torch.Tensor.matmul, torch.Tensor.__matmul__, torch.Tensor.div, torch.Tensor.__truediv__, torch.softmax}
_LOOKUPS = {F.embedding, torch.Tensor.__getitem__}
_LEVELS = 127
_OUTPUTS = 1024  # of a product at once

Function = Callable[..., Any]


class Yardstick:
    """A model in the arithmetic of a format.

    Args:
        model: the reference, float32.
        weights: "float32", "float16" or "int8", as in a manifest's precision.
    """

    def __init__(self, model: Transformer, weights: str) -> None:
        self._model = model
        self._arithmetic = {"float32": _Double, "float16": _Half, "int8": _Int8}[weights]()

    @torch.inference_mode()
    def logits(self, batch: Batch) -> Logits:
        """`[b, longest target, vocabulary]`, as `Answer.logits`: float64 of float32, else float32."""
        with self._arithmetic.on(self._model):
            _, logits = teacher_forcing(self._model, batch)
        return self._arithmetic.output(logits).numpy()


def allowance(weights: str, config: Config, *, sums_in_format: bool = False) -> float:
    """Factor by which errors of a bundle may exceed the yardstick's.

    Roundings are nearly independent, so that errors grow with the square root of their number. A lowering may
    write four operators where PyTorch has one, which makes a factor of 2. Where products are summed in the format
    itself, as float32 always is, a sum of n terms one by one rounds n times, and PyTorch in blocks fewer times: a
    large bias only once (Higham, "Accuracy and Stability of Numerical Algorithms", 2002, chapter 4): both count.
    """
    sums = math.sqrt(max(config.d_model, config.ffn)) if weights == "float32" or sums_in_format else 1.0
    return 2.0 * sums


class _Arithmetic(TorchFunctionMode):
    """PyTorch's functions as the model calls them; formats replace some."""

    def __init__(self) -> None:
        super().__init__()
        self._on = True

    @contextmanager
    def on(self, model: Transformer) -> Iterator[None]:
        """Apply to all of the model but its mixture."""
        with ExitStack() as stack:
            if model.copying is not None:
                stack.callback(model.copying.register_forward_pre_hook(lambda *_: self._switch(False)).remove)
                stack.callback(model.copying.register_forward_hook(lambda *_: self._switch(True)).remove)
            for norm in (module for module in model.modules() if isinstance(module, nn.LayerNorm | RMSNorm)):
                stack.callback(norm.register_forward_hook(_mark_normalised).remove)
            stack.enter_context(self)
            yield

    def _switch(self, on: bool) -> None:
        self._on = on

    def __torch_function__(
        self, function: Function, types: Iterable[type], args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        options = kwargs or {}
        return self.call(function, args, options) if self._on else function(*args, **options)

    def call(self, function: Function, args: tuple[Any, ...], options: Mapping[str, Any]) -> Any:
        """Call a function in this arithmetic."""
        return function(*args, **options)

    def output(self, logits: Tensor) -> Tensor:
        """Logits as a graph of this precision gives them, those of a mixture too."""
        return logits


class _Double(_Arithmetic):
    """float64, also where the model asks for float32 at least; weights one at a time, when they are used."""

    def __init__(self) -> None:
        super().__init__()
        self._memory = torch.empty(0, dtype=torch.float64)

    def _switch(self, on: bool) -> None:
        """The mixture is float64, too."""

    def call(self, function: Function, args: tuple[Any, ...], options: Mapping[str, Any]) -> Any:
        if function is torch.Tensor.float:
            return args[0]
        if function in _LOOKUPS:  # exact, and of a whole table
            return function(*args, **options)
        if function is F.linear:
            return self._linear(*args)
        return function(*map(_wide, args), **{name: _wide(value) for name, value in options.items()})

    def _linear(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """Some outputs after the other, their weights always in the same memory.

        A projection to a large vocabulary would be most of an export's memory, and what the allocator keeps of freed
        blocks of so many sizes half of the weights.
        """
        wide = x.double()
        result = wide.new_empty(*x.shape[:-1], len(weight))
        for first in range(0, len(weight), _OUTPUTS):
            part = slice(first, first + _OUTPUTS)
            weights = self._copy(weight[part])
            result[..., part] = F.linear(wide, weights, None if bias is None else bias[part].double())
        return result

    def _copy(self, weight: Tensor) -> Tensor:
        """The weights as float64, until the next call."""
        if self._memory.numel() < weight.numel():
            self._memory = torch.empty(weight.numel(), dtype=torch.float64)
        return self._memory[: weight.numel()].view_as(weight).copy_(weight)


def _wide(value: Any) -> Any:
    return value.double() if isinstance(value, Tensor) and value.dtype == torch.float32 else value


class _Half(_Arithmetic):
    """Results in float16, computed in float32 as on hardware that sums in it."""

    def call(self, function: Function, args: tuple[Any, ...], options: Mapping[str, Any]) -> Any:
        if function is F.scaled_dot_product_attention:
            query, key, value = args
            return self._attention(query, key, value, options["attn_mask"], options["is_causal"])
        rounded = [_to_half(each) if isinstance(each, nn.Parameter) else each for each in args]
        result = function(*rounded, **options)
        return result if function in _MIXTURE else _to_half(result)

    def output(self, logits: Tensor) -> Tensor:
        rounded: Tensor = _to_half(logits)
        return rounded

    @staticmethod
    def _attention(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, causal: bool) -> Tensor:
        """Attention in its parts: `[b, h, t, k]` queries, `[b, h, s, k]` keys and values."""
        scores = _to_half(_to_half(query / math.sqrt(query.shape[-1])) @ key.transpose(-1, -2))
        if causal:
            mask = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
        if mask is not None:  # or a bias with the mask in it
            bool_mask = mask.dtype == torch.bool
            scores = scores.masked_fill(~mask, -math.inf) if bool_mask else _to_half(scores + mask)
        context: Tensor = _to_half(_to_half(scores.softmax(dim=-1)) @ value)
        return context


def _to_half(value: Any) -> Any:
    if not isinstance(value, Tensor) or value.dtype != torch.float32:
        return value
    return torch.where(value.abs() <= _HALF_MOST, value.half().float(), value)


class _Int8(_Arithmetic):
    """Products and lookups of rounded weights."""

    def __init__(self) -> None:
        super().__init__()
        self._weights: dict[int, Tensor] = {}

    def call(self, function: Function, args: tuple[Any, ...], options: Mapping[str, Any]) -> Any:
        if function is F.linear:
            x, weight, *bias = args
            return F.linear(_rounded_rows(x), self._rounded(weight), *bias, **options)
        if function is F.embedding:
            ids, table, *rest = args
            return F.embedding(ids, self._rounded(table), *rest, **options)
        if function is F.dropout:  # of a model in evaluation mode: it would hide whose result this is
            return args[0]
        result = function(*args, **options)
        if function is F.relu:
            result.of_relu = True
        return result

    def _rounded(self, weight: Tensor) -> Tensor:
        if id(weight) not in self._weights:
            self._weights[id(weight)] = _rounded(weight, weight.abs().amax(-1, keepdim=True) / _LEVELS)
        return self._weights[id(weight)]


def _mark_normalised(norm: nn.Module, inputs: Any, result: Any) -> None:
    result.of_norm = True


def _rounded_rows(x: Tensor) -> Tensor:
    if hasattr(x, "of_norm"):
        return _rounded(x, x.abs().amax() * MARGIN / _LEVELS)
    levels = 2 * _LEVELS + 1 if hasattr(x, "of_relu") else _LEVELS
    return _rounded(x, x.abs().amax(-1, keepdim=True) / levels)


def _rounded(x: Tensor, scale: Tensor) -> Tensor:
    return torch.round(x / torch.where(scale == 0, 1.0, scale)) * scale
