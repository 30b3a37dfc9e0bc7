"""Scheduled sampling: in training the decoder sometimes reads its own predictions, as in translation.

Bengio et al. (2015), arXiv:1506.03099. In training, a Transformer decodes all positions at once, so its predictions are
available only after a first pass: Mihaylova and Martins (2019), arXiv:1906.07651.
"""

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from txport.models.transformer import Transformer

Kind = Literal["none", "linear", "exponential", "inverse_sigmoid"]


@dataclass(frozen=True)
class Schedule:
    """Probability that the decoder reads the true token: the epsilon of Bengio et al. (2015), section 2.4.

    Attributes:
        kind: family of functions; "none" is always 1.
        start: number of steps with true tokens only; i counts the steps after them, from 0.
        least: minimum probability.
        steps: time constant T: linear 1 - i / T, exponential k**i with k = exp(-1 / T), inverse sigmoid
            T / (T + exp(i / T)).
    """

    kind: Kind = "none"
    start: int = 0
    least: float = 0.0
    steps: float = 1.0

    def true_token_probability(self, step: int) -> float:
        """Return the probability of a true token at a step, counted from 0."""
        done = step - self.start
        if self.kind == "none" or done < 0:
            return 1.0
        return max(self.least, self._decay(done / self.steps))

    def _decay(self, time: float) -> float:
        if self.kind == "linear":
            return 1.0 - time
        if self.kind == "exponential":
            return math.exp(-time)
        # exp(700) is near the largest float.
        return self.steps / (self.steps + math.exp(min(time, 700.0)))


def time_constant(kind: Kind, half: float) -> float:
    """Return `Schedule.steps` for a probability of one half after `half` steps; at least 1."""
    if kind == "linear":
        return max(1.0, 2 * half)
    if kind == "exponential":
        return max(1.0, half / math.log(2))
    # Inverse sigmoid: solve T log T = half by Newton's method, starting above the solution, where the function is
    # convex.
    constant = max(math.e, half)
    for _ in range(50):
        constant = (constant + half) / (math.log(constant) + 1)
    return max(1.0, constant)


def mixed_inputs(
    model: Transformer,
    target_ids: Tensor,
    memory: Tensor,
    source_lengths: Tensor,
    true_token_probability: float,
    seed: int,
    source_ids: Tensor | None = None,
) -> Tensor:
    """Return the inputs of the decoder: each token except the first is the true one or a prediction of the model.

    A prediction is the most likely token after the true tokens before it, without dropout, as in translation. It has no
    gradient. (Bengio et al. 2015 sample it or use the most likely token.)

    Args:
        model: in training mode.
        target_ids: int64 `[b, t]`, bos and the true tokens.
        memory: `[b, s, d]`, the encoder's states.
        source_lengths: int64 `[b]`.
        true_token_probability: probability of a true token. If it is 1, nothing is computed.
        seed: seed of the random choices. A CPU draws them, so they do not depend on the kind of device.
        source_ids: int64 `[b, s]`; needed by models with a copy mechanism.

    Returns:
        int64 `[b, t]`.
    """
    if true_token_probability >= 1 or target_ids.shape[1] < 2:
        return target_ids
    predicted = _predict(model, target_ids[:, :-1], memory, source_lengths, source_ids)
    # Generators of GPUs give other numbers than the CPU's.
    draw = torch.rand(predicted.shape, generator=torch.Generator().manual_seed(seed)).to(predicted.device)
    mixed = torch.where(draw < true_token_probability, target_ids[:, 1:], predicted)
    return torch.cat([target_ids[:, :1], mixed], dim=1)


def _predict(
    model: Transformer, target_ids: Tensor, memory: Tensor, source_lengths: Tensor, source_ids: Tensor | None
) -> Tensor:
    """Return the most likely token after each of `target_ids` `[b, t]`: int64 `[b, t]`."""
    model.eval()
    try:
        with torch.no_grad():
            return model.decode(target_ids, memory, source_lengths, source_ids=source_ids).argmax(dim=-1)
    finally:
        model.train()
        # Autocast caches converted weights, here without gradients. The next pass needs them with gradients.
        torch.clear_autocast_cache()
