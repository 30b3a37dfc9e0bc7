"""End a run whose loss is not a number, and keep its last saved state."""

import math

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor
from txport.runtime.errors import TxportError
from txport.training.run.agreement import said_once
from txport.training.run.interruption import Interruption


class Diverged(TxportError):
    """The loss, or a weight, is NaN or infinite."""


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
        if not _on_all(trainer, math.isfinite(value)):
            raise _diverged(trainer, self._interruption, what, value)


def check_weights(trainer: Trainer, interruption: Interruption) -> None:
    """True if the weights may be saved.

    Raises:
        Diverged: one of them, on any device, is NaN or infinite.
    """
    finite = all(bool(torch.isfinite(each).all()) for each in trainer.lightning_module.parameters())
    if not _on_all(trainer, finite):
        raise _diverged(trainer, interruption, f"a weight after step {trainer.global_step}", math.nan)


def _on_all(trainer: Trainer, good: bool) -> bool:
    """Return whether all devices find it good: they end together, or wait for each other for ever."""
    if trainer.world_size > 1:
        return trainer.strategy.reduce_boolean_decision(good, all=True)
    return good


def _diverged(trainer: Trainer, interruption: Interruption, what: str, value: float) -> BaseException:
    if math.isinf(value):
        name = "is infinite"
    else:
        name = "is no number"
    saved = interruption.saved
    way_out = "start again with a lower training.learning_rate or a longer warm-up"
    if saved:
        way_out += (
            f", or make a checkpoint of step {saved}, the last that was saved, with "
            f"--resume --set training.max_steps={saved} --set training.keep=last"
        )
    return said_once(trainer, Diverged(f"{what} {name}, the training diverged: {way_out}"))
