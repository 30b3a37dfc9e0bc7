"""Average of the weights at several points of a run (Vaswani et al. 2017, section 6.1)."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import Tensor


class LastValidations(ModelCheckpoint):
    """Callback that keeps the weights of the last `count` validations, in `directory`/validated-step=N.ckpt."""

    def __init__(self, directory: Path, count: int) -> None:
        super().__init__(
            directory,
            filename="validated-{step}",
            monitor="step",
            mode="max",
            save_top_k=count,
            save_weights_only=True,
            enable_version_counter=False,
        )

    def states(self, last: Path) -> list[dict[str, Any]]:
        """Load the states to average, oldest first: the last validations, then the last state of the run, `last`."""
        files = [Path(file) for file in self.best_k_models if Path(file).exists()]
        states = (torch.load(file, map_location="cpu", weights_only=True) for file in [*files, last])
        by_step = {state["global_step"]: state for state in states}
        return [by_step[step] for step in sorted(by_step)][-self.save_top_k :]


def average_weights(weights: Sequence[dict[str, Tensor]]) -> dict[str, Tensor]:
    """Return the mean of each tensor, added in float64. Of integer tensors the last is returned.

    Args:
        weights: at least one state, with the same names and shapes.
    """
    mean = dict(weights[-1])
    for name, last in mean.items():
        if last.is_floating_point():
            mean[name] = torch.stack([each[name].double() for each in weights]).mean(dim=0).to(last.dtype)
    return mean
