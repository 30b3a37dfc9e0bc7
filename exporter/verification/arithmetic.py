"""Reference model with the rounding of a bundle's precision, which shows how much rounding alone changes the logits.

It does not use the bundle's graphs or weights, so it cannot hide errors in them. PyTorch operators are rounded as in
each format:

* float32: results of all operators get random errors of the size of engines' errors (`_RandomSingle`);
* float16: weights and results of all operators are rounded to float16. Values that overflow stay unchanged: a bundle
  has float32 islands for them, which only make it more exact;
* int8: weights of linear layers and embedding tables are rounded per channel. Inputs of linear layers are rounded per
  row or, after a norm, with one scale. This scale comes from the maximum of the current batch; that of a bundle comes
  from calibration (`txport.exporter.graphs.int8`).

The mixture of the copy mechanism is computed in float32 in every format (in float32 with the same random errors).

Rounding can also be random in all formats (`RoundedReference.random_logits`): Monte Carlo arithmetic (Parker 1997,
"Monte Carlo Arithmetic: exploiting randomness in floating-point arithmetic"). Repetitions show how much rounding can
change a logit.
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
from txport.models.positions import RelativePositions
from txport.models.transformer import Transformer

_HALF_MOST = torch.finfo(torch.float16).max
# Functions of `Attention.weights`. In models that copy, their results are not rounded to float16, since the copy
# mechanism uses these weights in float32. Other models call it for Shaw's positions.
_MIXTURE = {torch.Tensor.matmul, torch.Tensor.__matmul__, torch.Tensor.div, torch.Tensor.__truediv__, torch.softmax}
_LEVELS = 127
# Error of a product of vectors of norm 1 whose terms are added in sequence: measured root mean square of 1.8e-8, for 64
# to 4,096 terms, times the square root of 3 for uniform noise.
_SUM_ERROR = 0.52 * 2.0**-24
# Maximum absolute errors of sigmoid and the normal distribution function, by which activations multiply their input.
# Measured for ONNX Runtime: 1.2e-7 and 3e-8. The fused engine's erf is within 4e-7, and the distribution function is
# (1 + erf) / 2, so half of this error: 2e-7.
_GATE_ERRORS = {"silu": 2.0**-23, "gelu": 2.0**-22}
_HALF_BITS = 13  # fraction bits of float32 that float16 lacks
# Names of functions and operators with rounded results, without underscores.
_ROUNDING = frozenset(
    "linear matmul scaled_dot_product_attention softmax layer_norm add radd sub rsub mul rmul div truediv pow mean "
    "rsqrt sqrt exp log logsumexp sigmoid tanh gelu silu".split()
)

Function = Callable[..., Any]


class RoundedReference:
    """Model with the rounding of a format.

    Args:
        model: the reference, float32.
        precision: precision of the weights, as in the manifest: "float32", "float16" or "int8".
    """

    def __init__(self, model: Transformer, precision: str) -> None:
        self._model = model
        self._nearest: _Arithmetic | None = None
        if precision in _NEAREST:
            self._nearest = _NEAREST[precision]()
        self._random = _RANDOM[precision]

    @torch.inference_mode()
    def logits(self, batch: Batch) -> Logits:
        """Return logits `[b, longest target, vocabulary]`, float32, like `Answer.logits`.

        Rounding is to nearest, except in float32, where PyTorch itself rounds to nearest: there, errors are random.
        """
        return self._logits(batch, self._random(batch.indices[0]) if self._nearest is None else self._nearest)

    @torch.inference_mode()
    def random_logits(self, batch: Batch, seed: int) -> Logits:
        """Return logits like `logits`, with randomly rounded results of all operators."""
        return self._logits(batch, self._random(seed))

    def _logits(self, batch: Batch, arithmetic: "_Arithmetic") -> Logits:
        with arithmetic.enabled(self._model):
            _, logits = teacher_forcing(self._model, batch)
        return arithmetic.output(logits).numpy()


def allowance(config: Config, *, sums_in_format: bool = False) -> float:
    """Return the allowed ratio of a bundle's average error to that of this reference.

    Rounding errors are nearly independent, so they grow with the square root of their number. A lowering may have four
    operators where PyTorch has one: a factor of 2. A sum of n terms in the format itself is rounded n times (Higham,
    "Accuracy and Stability of Numerical Algorithms", 2002, chapter 4). PyTorch adds in many parts, with fewer
    roundings.

    Args:
        config: of the model.
        sums_in_format: whether a device may add in the format, one term after another.
    """
    if sums_in_format:
        return 2.0 * math.sqrt(max(config.d_model, config.ffn, config.decoder_ffn or 0))
    return 2.0


class _Arithmetic(TorchFunctionMode):
    """PyTorch functions as called by the model. Subclasses change the results for their formats."""

    def __init__(self) -> None:
        super().__init__()
        self._enabled = True
        self._exact = False
        self._copies = False

    @contextmanager
    def enabled(self, model: Transformer) -> Iterator[None]:
        """Apply this arithmetic to the model except its copy mechanism, while the context is active."""
        self._copies = model.copying is not None
        with ExitStack() as stack:
            if model.copying is not None:
                stack.callback(model.copying.register_forward_pre_hook(lambda *_: self._switch(False)).remove)
                stack.callback(model.copying.register_forward_hook(lambda *_: self._switch(True)).remove)
            for table in (module for module in model.modules() if isinstance(module, RelativePositions)):
                # Set on the instance, which hides the method until the attribute is deleted.
                stack.callback(delattr, table, "buckets")
                table.buckets = self._exactly(table.buckets)  # type: ignore[method-assign, assignment]
            for norm in (module for module in model.modules() if isinstance(module, nn.LayerNorm | RMSNorm)):
                stack.callback(norm.register_forward_hook(_mark_normalised).remove)
            stack.enter_context(self)
            yield

    def _switch(self, enabled: bool) -> None:
        self._enabled = enabled

    def __torch_function__(
        self, function: Function, types: Iterable[type], args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        options = kwargs or {}
        if self._exact or not self._enabled:
            return function(*args, **options)
        return self.call(function, args, options)

    def _exactly(self, buckets: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
        """Return `buckets` without rounding, since bundles have exact tables of the buckets."""

        def compute(distances: Tensor) -> Tensor:
            self._exact = True
            try:
                return buckets(distances)
            finally:
                self._exact = False

        return compute

    def call(self, function: Function, args: tuple[Any, ...], options: Mapping[str, Any]) -> Any:
        """Call a function in this arithmetic."""
        return function(*args, **options)

    def attention(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, causal: bool) -> Tensor:
        """Compute attention by separate operators: queries `[b, h, t, k]`, keys and values `[b, h, s, k]`."""
        scaled = self.call(torch.div, (query, math.sqrt(query.shape[-1])), {})
        scores = self.call(torch.matmul, (scaled, key.transpose(-1, -2)), {})
        if causal:
            mask = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
        if mask is not None and mask.dtype == torch.bool:
            scores = scores.masked_fill(~mask, -math.inf)
        elif mask is not None:  # a bias that includes the mask
            scores = self.call(torch.add, (scores, mask), {})
        context: Tensor = self.call(torch.matmul, (self.call(F.softmax, (scores,), {"dim": -1}), value), {})
        return context

    def output(self, logits: Tensor) -> Tensor:
        """Return logits as a graph of this precision outputs them, also those of the copy mechanism."""
        return logits


class _RandomSingle(_Arithmetic):
    """float32 with random errors of the size of engines' errors.

    * A product adds terms in sequence, so n partial sums are rounded. The error is that of independent terms (Higham
      2002, section 4.2): `_SUM_ERROR` times the norms of both factors. It does not depend on the sum.
    * SiLU and GELU multiply their input by a sigmoid or a distribution function, which has an absolute error
      (`_GATE_ERRORS`).
    * All other results have a relative error of at most one unit in the last place.
    """

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._generator = torch.Generator().manual_seed(seed)

    def _switch(self, enabled: bool) -> None:
        """Do nothing: results of the copy mechanism get random errors as well."""

    def call(self, function: Function, args: tuple[Any, ...], options: Mapping[str, Any]) -> Any:
        if function is F.scaled_dot_product_attention:
            query, key, value = args
            return self.attention(query, key, value, options["attn_mask"], options["is_causal"])
        name = getattr(function, "__name__", "").strip("_")
        result = function(*args, **options)
        if name not in _ROUNDING or result.dtype != torch.float32:
            return result
        if name in ("linear", "matmul"):
            x, other = args[0], args[1].transpose(-1, -2) if name == "linear" else args[1]
            norms = x.norm(dim=-1, keepdim=True) * other.norm(dim=-2, keepdim=True)
            return result.addcmul_(norms, self._noise(result), value=_SUM_ERROR)
        if name in _GATE_ERRORS:
            result = result + _GATE_ERRORS[name] * args[0] * self._noise(result)
        return result * (1.0 + torch.finfo(torch.float32).eps * self._noise(result))  # infinite results stay infinite

    def _noise(self, like: Tensor) -> Tensor:
        """Return uniform noise between -1 and 1."""
        return torch.rand(like.shape, generator=self._generator).mul_(2.0).sub_(1.0)


class _Half(_Arithmetic):
    """Results in float16, computed with float32 sums, as on GPUs."""

    def call(self, function: Function, args: tuple[Any, ...], options: Mapping[str, Any]) -> Any:
        if function is F.scaled_dot_product_attention:
            query, key, value = args
            return self.attention(query, key, value, options["attn_mask"], options["is_causal"])
        rounded = [_to_half(each) if isinstance(each, nn.Parameter) else each for each in args]
        result = function(*rounded, **options)
        if self._copies and function in _MIXTURE:
            return result
        return self.round(result)

    def round(self, value: Any) -> Any:
        """Round the result of an operator to float16, as float32. Other values are unchanged."""
        return _to_half(value)

    def output(self, logits: Tensor) -> Tensor:
        rounded: Tensor = _to_half(logits)
        return rounded


def _to_half(value: Any) -> Any:
    if not isinstance(value, Tensor) or value.dtype != torch.float32:
        return value
    return torch.where(value.abs() <= _HALF_MOST, value.half().float(), value)


class _RandomHalf(_Half):
    """Stochastic rounding to one of the two nearest float16 values, with a higher probability for the nearer one."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._generator = torch.Generator().manual_seed(seed)

    def round(self, value: Any) -> Any:
        if not isinstance(value, Tensor) or value.dtype != torch.float32:
            return value
        noise = torch.randint(1 << _HALF_BITS, value.shape, generator=self._generator, dtype=torch.int32)
        # The noise carries into the bits of float16 with a probability proportional to the bits that are dropped.
        bits = (value.contiguous().view(torch.int32) + noise) & -(1 << _HALF_BITS)
        return torch.where(value.abs() <= _HALF_MOST, _to_half(bits.view(torch.float32)), value)


class _Int8(_Arithmetic):
    """Linear layers with rounded weights and inputs, and lookups in rounded embedding tables."""

    def __init__(self) -> None:
        super().__init__()
        self._weights: dict[int, Tensor] = {}

    def call(self, function: Function, args: tuple[Any, ...], options: Mapping[str, Any]) -> Any:
        if function is F.linear:
            x, weight, *bias = args
            return F.linear(self._rounded_rows(x), self._rounded(weight), *bias, **options)
        if function is F.embedding:
            ids, table, *rest = args
            return F.embedding(ids, self._rounded(table), *rest, **options)
        if function is F.dropout:  # no effect in evaluation, but a new tensor would lose the mark `of_norm`
            return args[0]
        result = function(*args, **options)
        if function is F.relu:
            result.of_relu = True
        return result

    def _rounded(self, weight: Tensor) -> Tensor:
        if id(weight) not in self._weights:
            scale = weight.abs().amax(-1, keepdim=True) / _LEVELS
            self._weights[id(weight)] = torch.round(_in_steps(weight, scale)) * scale
        return self._weights[id(weight)]

    def _rounded_rows(self, x: Tensor) -> Tensor:
        if hasattr(x, "of_norm"):
            scale = x.abs().amax() * MARGIN / _LEVELS
        else:
            if hasattr(x, "of_relu"):
                levels = 2 * _LEVELS + 1
            else:
                levels = _LEVELS
            scale = x.abs().amax(-1, keepdim=True) / levels
        return self.round(_in_steps(x, scale)) * scale

    def round(self, steps: Tensor) -> Tensor:
        """Round inputs of linear layers, in units of their scale, to integers."""
        return torch.round(steps)


class _RandomInt8(_Int8):
    """Stochastic rounding of inputs of linear layers. Weights are rounded to nearest, as in the bundle."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._generator = torch.Generator().manual_seed(seed)

    def round(self, steps: Tensor) -> Tensor:
        return torch.floor(steps + torch.rand(steps.shape, generator=self._generator))


def _mark_normalised(norm: nn.Module, inputs: Any, result: Any) -> None:
    result.of_norm = True


def _in_steps(x: Tensor, scale: Tensor) -> Tensor:
    return x / torch.where(scale == 0, 1.0, scale)


# In float32, PyTorch itself rounds to nearest.
_NEAREST: dict[str, type[_Arithmetic]] = {"float16": _Half, "int8": _Int8}
_RANDOM: dict[str, Callable[[int], _Arithmetic]] = {
    "float32": _RandomSingle,
    "float16": _RandomHalf,
    "int8": _RandomInt8,
}
