"""Copy mechanism: the model can copy a word of the source by attending to it.

See et al. (2017), "Get To The Point: Summarization with Pointer-Generator Networks", arXiv:1704.04368, equations 8 and
9, with one vocabulary for both sides: P(w) = p_gen P_vocab(w) + (1 - p_gen) * (sum of attention on source positions
with w). The attention is the mean of the heads in `copy_heads`; OpenNMT-py uses the first head of the last layer.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from txport.models.config import Config

# For each cross-attention that is used for copying: its output `[b, t, d]` and its weights `[b, h, t, s]`.
AttentionOutputs = dict[nn.Module, tuple[Tensor, Tensor]]

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
    def watching(self, decoder: Sequence[nn.Module]) -> Iterator[AttentionOutputs]:
        """Record what `forward` needs of the decoder's cross-attention, while the context is active."""
        outputs: AttentionOutputs = {}

        def keep(attention: nn.Module, inputs: tuple[Any, ...], options: dict[str, Any], output: Tensor) -> None:
            outputs[attention] = output, cast(Any, attention).weights(*inputs, **options)

        with ExitStack() as hooks:
            for layer in self.layers:
                attention = cast(nn.Module, decoder[layer].cross_attention)
                hooks.callback(attention.register_forward_hook(keep, with_kwargs=True).remove)
            yield outputs

    def forward(
        self,
        logits: Tensor,
        state: Tensor,
        read: Tensor,
        decoder: Sequence[nn.Module],
        outputs: AttentionOutputs,
        source_ids: Tensor,
    ) -> Tensor:
        """Return log-probabilities of the mixture, always float32, `[b, t, v]`.

        Args:
            logits: `[b, t, v]`.
            state: `[b, t, d]`, decoder states before the projection.
            read: `[b, t, d]`, embeddings of the decoder's input tokens.
            decoder: layers of the decoder.
            outputs: from `watching`.
            source_ids: int64 `[b, s]`; padding may have any id, since its weights are 0.
        """
        attentions = [cast(nn.Module, layer.cross_attention) for layer in decoder]
        with torch.autocast(logits.device.type, enabled=False):
            context = outputs[attentions[self.layers[-1]]][0]
            gate = _product(self.context, context) + _product(self.state, state) + _product(self.input, read)
            weights = {attention: each for attention, (_, each) in outputs.items()}
            copied = torch.sigmoid(-gate) * self._attention(attentions, weights)
            log_generated = F.log_softmax(logits.float(), dim=-1) + F.logsigmoid(gate)
            places = source_ids[:, None].expand(-1, log_generated.shape[1], -1)
            pointed = F.relu(torch.zeros_like(log_generated).scatter_add(2, places, copied) - MIN_PROBABILITY)
            tiny = torch.finfo(torch.float32).tiny
            mixture = torch.logaddexp(log_generated, pointed.clamp(min=tiny).log())
            return torch.where(pointed > 0, mixture, log_generated)

    def _attention(self, attentions: Sequence[nn.Module], weights: Mapping[nn.Module, Tensor]) -> Tensor:
        """Return the mean of the copy heads' weights, float32 `[b, t, s]`; rows sum to 1."""
        return torch.stack([weights[attentions[layer]][:, head].float() for layer, head in self.heads]).mean(dim=0)


def _product(linear: nn.Linear, x: Tensor) -> Tensor:
    """Return `linear(x)` in float32."""
    if linear.bias is None:
        bias = None
    else:
        bias = linear.bias.float()
    return F.linear(x.float(), linear.weight.float(), bias)
