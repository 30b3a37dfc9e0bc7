"""State of a run on disk, saved at each validation, every few minutes, at the last step, and after a signal."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback, Checkpoint
from txport.runtime.errors import InputError
from txport.training.run.directory import RunDirectory
from txport.training.run.divergence import check_weights
from txport.training.run.interruption import Interruption
from txport.training.run.pacing import validation_is_due

# Minimum seconds between two states. More if saving takes more than a fiftieth of this time.
SAVE_EVERY = 180.0


class StateSaver(Checkpoint):
    """Callback that writes `state/last.ckpt`, from which a run resumes exactly. Lightning calls it after all others.

    It saves only between steps, because the state does not include accumulated gradients.
    """

    def __init__(self, run: RunDirectory, interruption: Interruption) -> None:
        self._run = run
        self._interruption = interruption
        self._next = time.monotonic() + SAVE_EVERY
        self._step = 0

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._step = self._interruption.step = trainer.global_step
        self._interruption.saved = trainer.global_step or None
        self._interruption.deferred = True
        self._interruption.take()

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *rest: Any) -> None:
        if trainer.global_step == self._step:  # the step is not complete, gradients accumulate
            return
        self._step = self._interruption.step = trainer.global_step
        if validation_is_due(trainer):  # a run resumed from this state would skip the validation
            return
        stop = self._any_process_wants(trainer, self._interruption.received is not None)
        if stop or self._any_process_wants(trainer, time.monotonic() >= self._next) or _last(trainer):
            self._save(trainer)
        if stop:
            raise self._interruption.error()

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._save(trainer)
        if self._any_process_wants(trainer, self._interruption.received is not None):
            raise self._interruption.error()

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._interruption.deferred = False

    def _save(self, trainer: Trainer) -> None:
        start = time.monotonic()
        check_weights(trainer, self._interruption)
        trainer.save_checkpoint(self._run.last)
        self._interruption.saved = trainer.global_step
        self._next = time.monotonic() + max(SAVE_EVERY, 50 * (time.monotonic() - start))

    @staticmethod
    def _any_process_wants(trainer: Trainer, decision: bool) -> bool:
        """Return whether any device wants to save, since all devices must save together."""
        if trainer.world_size > 1:
            return trainer.strategy.reduce_boolean_decision(decision, all=False)
        return decision


def _last(trainer: Trainer) -> bool:
    """Return whether this was the last step."""
    loop = trainer.fit_loop
    is_last_step = loop.epoch_loop.batch_progress.is_last_batch and trainer.current_epoch + 1 == trainer.max_epochs
    return trainer.should_stop or trainer.global_step == trainer.max_steps or is_last_step


class StatePaths(Callback):
    """Callback that refuses a state with checkpoint paths outside of its directory."""

    def on_load_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Check the states of all callbacks before they are loaded.

        Raises:
            InputError: a path is outside of the directory.
        """
        for state in checkpoint.get("callbacks", {}).values():
            if not isinstance(state, dict) or not isinstance(state.get("dirpath"), str):
                continue
            folder = Path(state["dirpath"]).resolve()
            for path in _paths(state):
                if not Path(path).resolve().is_relative_to(folder):
                    raise InputError(
                        f"the state of the run names {path}, outside of {folder}: start again with --force"
                    )


def _paths(state: dict[str, Any]) -> Iterator[str]:
    names = ("best_model_path", "kth_best_model_path", "last_model_path")
    yield from (path for name in names if (path := state.get(name)))
    yield from state.get("best_k_models") or ()
