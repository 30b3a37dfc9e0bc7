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
from txport.training.loss import logits_at, smoothed_cross_entropy
from txport.training.options import TrainingOptions
from txport.training.run.clock import Clock
from txport.training.run.lightning_module import TranslationModule


def by_hand(logits: list[list[float]], targets: list[int], smoothing: float) -> float:
    """Cross-entropy of the smoothed distribution, in double precision and plain Python."""
    losses = []
    for row, target in zip(logits, targets, strict=True):
        total = math.log(sum(math.exp(value) for value in row))
        for token, value in enumerate(row):
            wanted = smoothing / len(row) + (1 - smoothing if token == target else 0)
            losses.append(-wanted * (value - total))
    return sum(losses) / len(targets)


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.4])
def test_equals_the_definition(smoothing: float) -> None:
    torch.manual_seed(0)
    logits, targets = 3 * torch.randn(15, 11), torch.randint(0, 11, (15,))
    expected = by_hand(logits.tolist(), targets.tolist(), smoothing)
    assert smoothed_cross_entropy(logits, targets, smoothing).item() == pytest.approx(expected, rel=1e-5)


def test_logits_of_some_positions() -> None:
    """What padding would say is not computed, and changes no gradient."""
    gradients = []
    for some in (False, True):
        torch.manual_seed(0)
        model = Transformer(preset("tiny", source_vocabulary=16, target_vocabulary=16, dropout=0.0)).train()
        ids, lengths = torch.tensor([[5, 6, 3], [7, 3, 0]]), torch.tensor([3, 2])
        target = torch.tensor([[2, 5, 6, 3], [2, 7, 3, 0]])
        memory, said = model.encode(ids, lengths), target[:, 1:] != 0
        if some:
            logits = logits_at(said, model, target[:, :-1], memory, lengths)
        else:
            logits = model.decode(target[:, :-1], memory, lengths)[said]
        assert logits.shape == (5, 16)
        smoothed_cross_entropy(logits, target[:, 1:][said], 0.1).backward()
        gradients.append({name: parameter.grad for name, parameter in model.named_parameters()})
    for name, gradient in gradients[0].items():
        torch.testing.assert_close(gradients[1][name], gradient, msg=name)


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
