"""Attention weights of a model.

Shapes: b batch, s source tokens or vectors, t target tokens, h heads.
"""

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from txport.models.transformer import Attention, Transformer, valid_mask


@dataclass(frozen=True)
class BatchMaps:
    """Attention weights of a model and the probabilities of a translation.

    Row i of a target map belongs to the step that predicts target token i. The columns of `decoder` are the inputs of
    the decoder: bos, then the target tokens. Rows of tokens sum to 1. Future columns, and padding, are 0.

    Attributes:
        encoder: float `[layers, b, h, s, s]`, self-attention of the source.
        decoder: float `[layers, b, h, t, t]`, self-attention of the target.
        cross: float `[layers, b, h, t, s]`, of the target to the source.
        log_probabilities: float `[b, t]`, natural logarithms of the target tokens' probabilities; 0 for padding.
    """

    encoder: Tensor
    decoder: Tensor
    cross: Tensor
    log_probabilities: Tensor


def attention_maps(
    model: Transformer, source: Tensor, source_lengths: Tensor, target_ids: Tensor, target_lengths: Tensor
) -> BatchMaps:
    """Return all attention weights for given translations, by teacher forcing. Call `model.eval` first.

    Args:
        source: padded ids or vectors, as for `encode`.
        source_lengths: int64 `[b]`.
        target_ids: int64 `[b, t]`, padded translations without bos.
        target_lengths: int64 `[b]`.
    """
    bos = torch.full_like(target_ids[:, :1], model.config.bos_id)
    attentions = [module for module in model.modules() if isinstance(module, Attention)]
    with recorded_weights(attentions) as weights:
        logits = model(source, source_lengths, torch.cat([bos, target_ids[:, :-1]], dim=1))
    valid = valid_mask(source_lengths, source.shape[1]).transpose(2, 3)
    target = valid_mask(target_lengths, target_ids.shape[1]).transpose(2, 3)
    chosen = torch.log_softmax(logits, dim=-1).gather(2, target_ids[..., None])[..., 0]

    def maps(attentions: list[nn.Module], rows: Tensor) -> Tensor:
        if not attentions:  # a model that reads encoder states has no encoder layers
            return source.new_zeros(0, len(source), model.config.heads, source.shape[1], source.shape[1])
        return torch.stack([weights[attention] for attention in attentions]).masked_fill(~rows, 0.0)

    return BatchMaps(
        encoder=maps([layer.attention for layer in model.encoder], valid),  # type: ignore[misc]
        decoder=maps([layer.self_attention for layer in model.decoder], target),  # type: ignore[misc]
        cross=maps([layer.cross_attention for layer in model.decoder], target),  # type: ignore[misc]
        log_probabilities=chosen.masked_fill(~target[:, 0, :, 0], 0.0),
    )


@contextmanager
def recorded_weights(attentions: Iterable[nn.Module]) -> Iterator[dict[nn.Module, Tensor]]:
    """Record the weights of the given `Attention` modules, with gradients, while the context is active.

    Other attention modules are not slowed down.
    """
    weights: dict[nn.Module, Tensor] = {}

    def record(attention: nn.Module, inputs: tuple[Any, ...], options: dict[str, Any]) -> None:
        assert isinstance(attention, Attention)
        weights[attention] = attention.weights(*inputs, **options)

    with ExitStack() as hooks:
        for attention in attentions:
            hooks.callback(attention.register_forward_pre_hook(record, with_kwargs=True).remove)
        yield weights
