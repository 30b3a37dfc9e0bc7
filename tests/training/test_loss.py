"""Label smoothing against a computation by hand, token by token."""

import math

import pytest
import torch
from txport.training.loss import smoothed_cross_entropy


def by_hand(logits: list[list[float]], targets: list[int], smoothing: float) -> float:
    """Cross-entropy of the smoothed distribution, in double precision and plain Python."""
    losses = []
    for row, target in zip(logits, targets, strict=True):
        if target == 0:
            continue
        total = math.log(sum(math.exp(value) for value in row))
        for token, value in enumerate(row):
            wanted = smoothing / len(row) + (1 - smoothing if token == target else 0)
            losses.append(-wanted * (value - total))
    return sum(losses) / sum(target != 0 for target in targets)


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.4])
def test_equals_the_definition(smoothing: float) -> None:
    torch.manual_seed(0)
    logits, targets = 3 * torch.randn(3, 5, 11), torch.randint(0, 11, (3, 5))
    assert (targets == 0).any()
    expected = by_hand(logits.flatten(0, 1).tolist(), targets.flatten().tolist(), smoothing)
    assert smoothed_cross_entropy(logits, targets, smoothing).item() == pytest.approx(expected, rel=1e-5)


def test_padding_gives_no_gradient() -> None:
    logits = torch.randn(1, 3, 7, requires_grad=True)
    smoothed_cross_entropy(logits, torch.tensor([[5, 3, 0]]), 0.1).backward()
    assert logits.grad is not None
    assert (logits.grad[0, 2] == 0).all() and (logits.grad[0, :2] != 0).all()
