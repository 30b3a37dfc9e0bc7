"""Cross-entropy with label smoothing."""

import torch.nn.functional as F
from torch import Tensor
from txport.models.transformer import Transformer


def logits_at(
    positions: Tensor,
    model: Transformer,
    target_ids: Tensor,
    memory: Tensor,
    source_lengths: Tensor,
    source_ids: Tensor | None = None,
) -> Tensor:
    """Return logits `[n, v]` of the n positions that are true in `positions`, bool `[b, t]`.

    For the other arguments see `txport.models.transformer.Transformer.decode`.
    """
    if model.copying is not None:
        return model.decode(target_ids, memory, source_lengths, source_ids)[positions]
    states = model.decoder_states(target_ids, memory, source_lengths)
    # Select by indices, since the gradient of boolean indexing is slow.
    chosen = states.flatten(0, 1).index_select(0, positions.flatten().nonzero()[:, 0])
    return model.projection(chosen)  # type: ignore[no-any-return]


def smoothed_cross_entropy(logits: Tensor, targets: Tensor, smoothing: float, banned: Tensor | None = None) -> Tensor:
    """Return the mean cross-entropy over tokens (Szegedy et al. 2016; Vaswani et al. 2017, section 5.4).

    The true token has the probability `1 - smoothing`. `smoothing` is spread evenly over the vocabulary, without banned
    ids.

    Args:
        logits: `[n, v]`.
        targets: int64 `[n]`, without padding.
        smoothing: at least 0, less than 1.
        banned: bool `[v]`, ids that the model never generates, with probability 0; None for none.

    Returns:
        a float32 scalar, in nats per token.
    """
    if banned is None or not smoothing:
        return F.cross_entropy(logits.float(), targets, label_smoothing=smoothing)
    log_probabilities = F.log_softmax(logits.float(), dim=-1)
    mean_log_probability = log_probabilities.masked_fill(banned, 0.0).sum(-1) / (~banned).sum()
    return -(
        (1 - smoothing) * log_probabilities.gather(1, targets[:, None])[:, 0] + smoothing * mean_log_probability
    ).mean()
