"""Timing of a run: end by time, and validations that take at most a tenth of the time."""

import time
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from txport.training.run.lightning_module import TranslationModule

# Default number of validations of a run, and minimum ratio of the time between validations to that of a validation.
MAX_VALIDATIONS = 10
APART = 10.0
# A number of batches that no run reaches.
NEVER = 1 << 62


def validation_is_due(trainer: Trainer) -> bool:
    """Return whether a validation follows this batch."""
    assert trainer.val_check_batch is not None
    return trainer.should_stop or (trainer.fit_loop.total_batch_idx + 1) % trainer.val_check_batch == 0


def next_validation(done: float, took: float, used: float) -> float:
    """Return the share of a run, 0 to 1, after which it validates again.

    Args:
        done: completed share after a validation.
        took: seconds of this validation.
        used: seconds of the run so far.
    """
    following = done + max(1 / MAX_VALIDATIONS, APART * took * done / max(used, took, 1e-9))
    # The last validation is after the last step, and none is shortly before it.
    if following < 1 - 0.5 / MAX_VALIDATIONS:
        return following
    return 1.0


class TimeLimit(Callback):
    """Callback that ends the run after the step or validation in which the time limit is reached."""

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *rest: Any) -> None:
        self._end(trainer, pl_module)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._end(trainer, pl_module)

    @staticmethod
    def _end(trainer: Trainer, pl_module: LightningModule) -> None:
        assert isinstance(pl_module, TranslationModule)
        if pl_module.options.max_minutes is not None and pl_module.progress() >= 1:
            trainer.should_stop = True


class TargetReached(Callback):
    """Callback that ends the run if two consecutive validations reach a value.

    Args:
        monitor: name of the metric.
        target: value to reach.
        falling: whether lower values are better.
    """

    def __init__(self, monitor: str, target: float, falling: bool) -> None:
        self._monitor = monitor
        self._target = target
        self._falling = falling
        self._in_a_row = 0

    @property
    def reached(self) -> bool:
        return self._in_a_row >= 2

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        value = float(trainer.callback_metrics[self._monitor])
        if self._falling:
            is_reached = value <= self._target
        else:
            is_reached = value >= self._target
        if is_reached:
            self._in_a_row = self._in_a_row + 1
        else:
            self._in_a_row = 0
        if self.reached:
            trainer.should_stop = True

    def state_dict(self) -> dict[str, int]:
        return {"in_a_row": self._in_a_row}

    def load_state_dict(self, state_dict: dict[str, int]) -> None:
        self._in_a_row = state_dict["in_a_row"]


class Pace(Callback):
    """Callback for validations at equal parts of a run, by steps or time, and after its last step.

    Slow validations are less frequent. Lightning validates after `val_check_batch` batches, which this callback sets.
    It must run before the state is saved, which is delayed until after a validation that is due.
    """

    def __init__(self) -> None:
        self._next: float | None = None  # share of the run after which it validates
        self._began = 0.0

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        assert isinstance(pl_module, TranslationModule)
        trainer.val_check_batch = NEVER
        # Reading the corpus may have taken long, and a finished run may be continued.
        if self._next is None or self._next == 1:
            self._next = min(1.0, pl_module.progress() + 1 / MAX_VALIDATIONS)

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *rest: Any) -> None:
        assert isinstance(pl_module, TranslationModule)
        assert self._next is not None
        if pl_module.progress() >= self._next and not trainer.fit_loop._should_accumulate():
            trainer.val_check_batch = trainer.fit_loop.total_batch_idx + 1

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._began = time.monotonic()

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        assert isinstance(pl_module, TranslationModule)
        trainer.val_check_batch = NEVER
        following = next_validation(pl_module.progress(), time.monotonic() - self._began, pl_module.clock.seconds)
        self._next = trainer.strategy.broadcast(following)

    def state_dict(self) -> dict[str, Any]:
        return {"next": self._next}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._next = float(state_dict["next"])
