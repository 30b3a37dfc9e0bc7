"""Scheduled sampling: a decoder in training also reads its own tokens, as it does when it translates.

Bengio et al. (2015), arXiv:1506.03099. A Transformer decodes all positions at once, so that its predictions are known
after a first pass only: Mihaylova and Martins (2019), arXiv:1906.07651.
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
        kind: the family; "none" is always 1.
        start: steps that are made with true tokens only; i counts the steps after them, from 0.
        least: the least probability.
        steps: the time constant T: linear 1 - i / T, exponential k**i with k = exp(-1 / T), inverse sigmoid
            T / (T + exp(i / T)).
    """

    kind: Kind = "none"
    start: int = 0
    least: float = 0.0
    steps: float = 1.0

    def true_token(self, step: int) -> float:
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
    """Return the `Schedule.steps` with which the probability is one half after `half` steps, but at least 1."""
    if kind == "linear":
        return max(1.0, 2 * half)
    if kind == "exponential":
        return max(1.0, half / math.log(2))
    # Inverse sigmoid: T log T = half, by Newton's method from above, where the left side is convex.
    found = max(math.e, half)
    for _ in range(50):
        found = (found + half) / (math.log(found) + 1)
    return max(1.0, found)


def mixed_inputs(
    model: Transformer,
    target_ids: Tensor,
    memory: Tensor,
    source_lengths: Tensor,
    true_token: float,
    seed: int,
    source_ids: Tensor | None = None,
) -> Tensor:
    """Return the inputs of the decoder: each token except the first is the true one or a prediction of the model.

    That is its most probable token after the true tokens before it, without dropout, as in a translation; no gradient
    flows through the choice. (Bengio et al. 2015 draw it or take the most probable one.)

    Args:
        model: in training mode.
        target_ids: int64 `[b, t]`, bos and the true tokens.
        memory: `[b, s, d]`, the encoder's states.
        source_lengths: int64 `[b]`.
        true_token: the probability of a true token; with 1 nothing is computed.
        seed: decides the draw, on all devices alike.
        source_ids: int64 `[b, s]`, which only a model that copies needs.

    Returns:
        int64 `[b, t]`.
    """
    if true_token >= 1 or target_ids.shape[1] < 2:
        return target_ids
    said = _said(model, target_ids[:, :-1], memory, source_lengths, source_ids)
    # On the CPU: generators of other devices draw other numbers.
    draw = torch.rand(said.shape, generator=torch.Generator().manual_seed(seed)).to(said.device)
    return torch.cat([target_ids[:, :1], torch.where(draw < true_token, target_ids[:, 1:], said)], dim=1)


def _said(
    model: Transformer, target_ids: Tensor, memory: Tensor, source_lengths: Tensor, source_ids: Tensor | None
) -> Tensor:
    """Return the most probable token after each of `target_ids` `[b, t]`: int64 `[b, t]`."""
    model.eval()
    try:
        with torch.no_grad():
            return model.decode(target_ids, memory, source_lengths, source_ids=source_ids).argmax(dim=-1)
    finally:
        model.train()
        # Autocast keeps the weights that it converted here, which have no gradient, for the pass that needs one.
        torch.clear_autocast_cache()
