"""Cross-entropy with label smoothing."""

import torch.nn.functional as F
from torch import Tensor
from txport.training.tokenizers import PAD


def smoothed_cross_entropy(logits: Tensor, targets: Tensor, smoothing: float) -> Tensor:
    """Mean over all tokens that are not padding (Szegedy et al. 2016; Vaswani et al. 2017, section 5.4).

    The true token has the probability `1 - smoothing`, and `smoothing` is spread evenly over the whole vocabulary.

    Args:
        logits: `[b, t, v]`.
        targets: int64 `[b, t]`, pad where there is nothing to predict.
        smoothing: from 0, below 1.

    Returns:
        a float32 scalar, in nats per token.
    """
    return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten(), ignore_index=PAD, label_smoothing=smoothing)
