"""Cross-entropy with label smoothing."""

import torch.nn.functional as F
from torch import Tensor
from txport.training.tokenizers import PAD


def smoothed_cross_entropy(
    logits: Tensor, targets: Tensor, smoothing: float, pad: int = PAD, banned: Tensor | None = None
) -> Tensor:
    """Mean over all tokens that are not padding (Szegedy et al. 2016; Vaswani et al. 2017, section 5.4).

    The true token has the probability `1 - smoothing`, and `smoothing` is spread evenly over the whole vocabulary, or
    what of it is not banned.

    Args:
        logits: `[b, t, v]`.
        targets: int64 `[b, t]`, pad where there is nothing to predict.
        smoothing: from 0, below 1.
        pad: the id of padding.
        banned: bool `[v]`, ids that the model can never say, whose probability is 0; None for none.

    Returns:
        a float32 scalar, in nats per token.
    """
    flat, true = logits.flatten(0, 1).float(), targets.flatten()
    if banned is None or not smoothing:
        return F.cross_entropy(flat, true, ignore_index=pad, label_smoothing=smoothing)
    said = F.log_softmax(flat[true != pad], dim=-1)
    spread = said.masked_fill(banned, 0.0).sum(-1) / (~banned).sum()
    return -((1 - smoothing) * said.gather(1, true[true != pad, None])[:, 0] + smoothing * spread).mean()
