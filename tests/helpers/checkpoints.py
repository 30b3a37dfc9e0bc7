"""Random weights of models, and a bitwise comparison of checkpoints."""

from pathlib import Path

import torch
from txport.models.checkpoint import load_checkpoint
from txport.models.transformer import Transformer


def randomised(model: Transformer, seed: int = 0) -> Transformer:
    """Randomise all parameters, including biases and norms, so that a test notices if one is ignored."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            spread = 0.3 if parameter.dim() == 1 else parameter.shape[-1] ** -0.5
            centre = 1.0 if "norm" in name and name.endswith("weight") else 0.0
            parameter.copy_(centre + spread * torch.randn(parameter.shape, generator=generator))
    return model.eval()


def weights(checkpoint: Path) -> dict[str, torch.Tensor]:
    return dict(load_checkpoint(checkpoint).model.named_parameters())


def changed(one: Path, other: Path) -> set[str]:
    """Return the names of the weights in which two checkpoints of the same architecture differ."""
    first, second = weights(one), weights(other)
    assert first.keys() == second.keys()
    return {name for name, value in first.items() if not torch.equal(value, second[name])}
