"""Checks for NaN and infinity, which end a run and keep its last saved state."""

import math

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor
from txport.runtime.errors import TxportError
from txport.training.run.agreement import said_once
from txport.training.run.interruption import Interruption


class DivergenceError(TxportError):
    """The loss, or a weight, is NaN or infinite."""


class DivergenceCheck(Callback):
    """Check of each loss before its gradient is computed, and of each validation loss before the state is saved."""

    def __init__(self, interruption: Interruption) -> None:
        self._interruption = interruption
        self._unread: list[tuple[int, Tensor]] = []

    def on_before_backward(self, trainer: Trainer, pl_module: LightningModule, loss: Tensor) -> None:
        self._unread.append((trainer.global_step + 1, loss.detach()))
        # On a GPU, reading a loss would wait for it, so the loss of the previous batch is checked.
        if loss.device.type == "cpu" or len(self._unread) > 1:
            step, value = self._unread.pop(0)
            self._check(trainer, f"the loss of step {step}", float(value))

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        loss = trainer.callback_metrics.get("validation/loss")
        if loss is not None and not trainer.sanity_checking:
            self._check(trainer, f"the validation loss of step {trainer.global_step}", float(loss))

    def _check(self, trainer: Trainer, quantity: str, value: float) -> None:
        if not _on_all(trainer, math.isfinite(value)):
            raise _divergence_error(trainer, self._interruption, quantity, value)


def check_weights(trainer: Trainer, interruption: Interruption) -> None:
    """Check that all weights are finite before they are saved.

    Raises:
        DivergenceError: a weight on any device is NaN or infinite.
    """
    finite = all(bool(torch.isfinite(each).all()) for each in trainer.lightning_module.parameters())
    if not _on_all(trainer, finite):
        raise _divergence_error(trainer, interruption, f"a weight after step {trainer.global_step}", math.nan)


def _on_all(trainer: Trainer, is_finite: bool) -> bool:
    """Return whether the check passed on all devices. So all processes end together, instead of in a deadlock."""
    if trainer.world_size > 1:
        return trainer.strategy.reduce_boolean_decision(is_finite, all=True)
    return is_finite


def _divergence_error(trainer: Trainer, interruption: Interruption, quantity: str, value: float) -> BaseException:
    if math.isinf(value):
        name = "is infinite"
    else:
        name = "is NaN"
    saved = interruption.saved
    way_out = "start again with a lower training.learning_rate or a longer warm-up"
    if saved:
        way_out += (
            f", or stop at step {saved}, the last saved state, to get a checkpoint of it: "
            f"--resume --set training.max_steps={saved} --set training.keep=last"
        )
    return said_once(trainer, DivergenceError(f"{quantity} {name}, the training diverged: {way_out}"))
