"""Label smoothing against a computation by hand, token by token; what a training step leaves out."""

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from txport.models.config import preset
from txport.models.norms import SharedNorm
from txport.models.transformer import Transformer
from txport.training.examples import TrainingBatch
from txport.training.loss import smoothed_cross_entropy
from txport.training.recipe import TrainingOptions
from txport.training.run.clock import Clock
from txport.training.run.lightning_module import TranslationModule


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


@pytest.mark.parametrize("kind", ["power", "batch"])
def test_norms_learn_from_no_padding_in_a_training_step(kind: str) -> None:
    """Columns of padding change neither the loss nor what the norms keep."""
    ids, lengths = torch.tensor([[5, 6, 7, 3], [8, 9, 3, 0]]), torch.tensor([4, 3])
    target = torch.tensor([[2, 5, 6, 3], [2, 7, 3, 0]])
    seen = []
    for extra in (0, 3):
        torch.manual_seed(0)
        model = Transformer(
            preset("tiny", source_vocabulary=16, target_vocabulary=16, norm_kind=kind, dropout=0.0)
        ).train()
        unused: Any = SimpleNamespace()
        module = TranslationModule(model, TrainingOptions(), unused, [], Clock(None), lambda done, total: None)
        source_ids, target_ids = (F.pad(x, (0, extra), value=0) for x in (ids, target))
        loss = module.loss(TrainingBatch(source_ids, lengths, target_ids), 0.0)
        seen.append((loss.detach(), dict(model.named_buffers())))
        assert all(norm.lengths is None for norm in model.modules() if isinstance(norm, SharedNorm))
    (one, kept), (two, kept_two) = seen
    torch.testing.assert_close(one, two)
    for name, value in kept.items():
        torch.testing.assert_close(kept_two[name], value, msg=name)
