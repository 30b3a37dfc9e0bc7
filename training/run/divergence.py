"""A run whose loss is no number any more ends there, and what it saved before stays as it is."""

import math

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor
from txport.runtime.errors import TxportError
from txport.training.run.agreement import said_once
from txport.training.run.interruption import Interruption


class Diverged(TxportError):
    """The loss is NaN or infinite."""


class Divergence(Callback):
    """Looks at each loss before its gradient is computed, and at each validation before anything is saved after it."""

    def __init__(self, interruption: Interruption) -> None:
        self._interruption = interruption
        self._unread: list[tuple[int, Tensor]] = []

    def on_before_backward(self, trainer: Trainer, pl_module: LightningModule, loss: Tensor) -> None:
        self._unread.append((trainer.global_step + 1, loss.detach()))
        # To read a loss of a GPU is to wait for it; that of the batch before is there.
        if len(self._unread) > (loss.device.type != "cpu"):
            step, value = self._unread.pop(0)
            self._check(trainer, f"the loss of step {step}", float(value))

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        loss = trainer.callback_metrics.get("validation/loss")
        if loss is not None and not trainer.sanity_checking:
            self._check(trainer, f"the validation loss of step {trainer.global_step}", float(loss))

    def _check(self, trainer: Trainer, what: str, value: float) -> None:
        finite = math.isfinite(value)
        if trainer.strategy.reduce_boolean_decision(finite, all=True) if trainer.world_size > 1 else finite:
            return
        saved, name = self._interruption.saved, "is nan" if math.isnan(value) else "is infinite"
        kept = (
            ", or make a checkpoint of the last state that was saved with "
            f"--resume --set training.max_steps={saved} --set training.keep=last"
        )
        error = Diverged(
            f"{what} {name if not finite else 'is no number on another device'}, the training diverged: start again "
            f"with a lower training.learning_rate or a longer warm-up{kept if saved else ''}"
        )
        raise said_once(trainer, error)


def finite_weights(model: torch.nn.Module) -> bool:
    """Whether no parameter holds NaN or infinity."""
    return all(bool(torch.isfinite(parameter).all()) for parameter in model.parameters())
