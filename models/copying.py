"""Copy mechanism: the model can copy a word of the source by attending to it.

See et al. (2017), "Get To The Point: Summarization with Pointer-Generator Networks", arXiv:1704.04368, equations 8 and
9, with one vocabulary for both sides: P(w) = p_gen P_vocab(w) + (1 - p_gen) * (sum of attention on source positions
with w). The attention is the mean of the heads in `copy_heads`; OpenNMT-py uses the first head of the last layer.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from inspect import signature
from typing import Any, TypeVar, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from txport.models.config import Config

Method = TypeVar("Method", bound=Callable[..., Tensor])

# Copy probabilities below this are treated as 0. It is far below relevant probabilities. Smaller float32 values have
# rounding errors that would make their logarithms differ between engines.
MIN_PROBABILITY = 1e-30


class CopyMechanism(nn.Module):
    """Mixture of the decoder's distribution over the vocabulary and the distribution over source words.

    p_gen is a sigmoid of a linear function of the cross-attention output (the context), the last decoder state and the
    embedding of the input token.
    """

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.heads = config.copy_heads
        self.context = nn.Linear(config.d_model, 1, bias=False)
        self.state = nn.Linear(config.d_model, 1)
        self.input = nn.Linear(config.d_model, 1, bias=False)

    @property
    def layers(self) -> list[int]:
        """Decoder layers of the copy heads, sorted. The context is taken from the last one."""
        return sorted({layer for layer, _ in self.heads})

    @contextmanager
    def watching(self, model: Any) -> Iterator[dict[Any, Any]]:
        """Record what `forward` needs of a `Transformer`, while the context is active.

        The values are the inputs and the last states of the decoder, "input" and "state" `[b, t, d]`, and for each of
        `layers` the output `[b, t, d]` and the weights `[b, h, t, s]` of cross-attention.
        """
        values: dict[Any, Any] = {}

        def keep(name: str) -> Callable[..., None]:
            return lambda module, inputs, output: values.update({name: output})

        def keep_attention(layer: int) -> Callable[..., None]:
            return lambda attention, inputs, options, output: values.update(
                {layer: (output, attention.weights(*inputs, **options))}
            )

        with ExitStack() as hooks:
            for name, module in (("input", model.target_embedding), ("state", model.decoder_norm)):
                hooks.callback(module.register_forward_hook(keep(name)).remove)
            for layer in self.layers:
                attention = model.decoder[layer].cross_attention
                hooks.callback(attention.register_forward_hook(keep_attention(layer), with_kwargs=True).remove)
            yield values

    def forward(self, logits: Tensor, values: dict[Any, Any], source_ids: Tensor) -> Tensor:
        """Return log-probabilities of the mixture, always float32, in the shape of the logits.

        Args:
            logits: `[b, t, v]`, or `[b, v]` of a step.
            values: from `watching`.
            source_ids: int64 `[b, s]`; padding may have any id, since its weights are 0.
        """
        with torch.autocast(logits.device.type, enabled=False):
            context = values[self.layers[-1]][0]
            gate = _product(self.context, context) + _product(self.state, values["state"])
            gate = gate + _product(self.input, values["input"])
            heads = [values[layer][1][:, head].float() for layer, head in self.heads]
            copied = torch.sigmoid(-gate) * torch.stack(heads).mean(dim=0)
            words = logits.float().view(*context.shape[:2], -1)
            log_generated = F.log_softmax(words, dim=-1) + F.logsigmoid(gate)
            places = source_ids[:, None].expand(-1, log_generated.shape[1], -1)
            pointed = F.relu(torch.zeros_like(log_generated).scatter_add(2, places, copied) - MIN_PROBABILITY)
            tiny = torch.finfo(torch.float32).tiny
            mixture = torch.logaddexp(log_generated, pointed.clamp(min=tiny).log())
            return torch.where(pointed > 0, mixture, log_generated).view(logits.shape)


def with_copying(method: Method) -> Method:
    """Let `decode` or `decode_step` of a model that copies return log-probabilities of the mixture instead of logits.

    Raises:
        ValueError: the model copies, and there are no `source_ids`.
    """
    parameters = signature(method)

    @wraps(method)
    def mixed(model: Any, *arguments: Any, **named: Any) -> Tensor:
        if model.copying is None:
            return method(model, *arguments, **named)
        source_ids = parameters.bind(model, *arguments, **named).arguments.get("source_ids")
        if source_ids is None:
            raise ValueError("a model that copies needs source_ids")
        with model.copying.watching(model) as values:
            logits = method(model, *arguments, **named)
        return cast(Tensor, model.copying(logits, values, source_ids))

    return cast(Method, mixed)


def _product(linear: nn.Linear, x: Tensor) -> Tensor:
    """Return `linear(x)` in float32."""
    if linear.bias is None:
        bias = None
    else:
        bias = linear.bias.float()
    return F.linear(x.float(), linear.weight.float(), bias)
