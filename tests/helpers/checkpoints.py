"""The weights of checkpoints, compared bit by bit."""

from pathlib import Path

import torch
from txport.models.checkpoint import load_checkpoint


def weights(checkpoint: Path) -> dict[str, torch.Tensor]:
    return dict(load_checkpoint(checkpoint).model.named_parameters())


def changed(one: Path, other: Path) -> set[str]:
    """The names of those in which two checkpoints of one architecture differ."""
    first, second = weights(one), weights(other)
    assert first.keys() == second.keys()
    return {name for name, value in first.items() if not torch.equal(value, second[name])}
