"""What a run may expect of its machine: how much of it is left by others, and how many steps the time allows."""

import logging
import time
from dataclasses import dataclass

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from txport.training.run.lightning_module import TranslationModule

_log = logging.getLogger("txport")
# Below this share of its time a thread that computes without a pause is kept waiting by others.
BUSY = 0.7
# The part of a run after which it is compared with what was foreseen, and the part of those steps below which this is
# said.
LOOK, LEAST = 0.1, 0.5


class Share:
    """How much of the time since it was made this thread has computed: processor time over wall-clock time, 0 to 1."""

    def __init__(self) -> None:
        self._began = time.monotonic(), time.thread_time()

    def measured(self) -> float:
        """Until now."""
        wall, processor = self._began
        return min(1.0, (time.thread_time() - processor) / max(1e-9, time.monotonic() - wall))


@dataclass
class Outlook:
    """What was measured before a run.

    Attributes:
        steps: how many it will make; None if no time ends it.
        busy: whether it was said that the machine is.
    """

    steps: float | None = None
    busy: bool = False

    def look_at(self, share: float) -> None:
        """Say once that the machine is busy, if this thread had so small a share of its time."""
        if share < BUSY and not self.busy:
            self.busy = True
            _log.warning("this machine is busy: training gets %.0f%% of the time that it could use", 100 * share)


class Lookout(Callback):
    """Says, after a tenth of a run, whether the machine is busy and whether it will make half of the steps foreseen."""

    def __init__(self, outlook: Outlook) -> None:
        self._outlook = outlook
        self._share: Share | None = None
        self._began = 0.0, 0  # seconds and steps

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        assert isinstance(pl_module, TranslationModule)
        if trainer.is_global_zero and pl_module.own_progress() < LOOK:
            self._share, self._began = Share(), (pl_module.clock.seconds, trainer.global_step)

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *rest: object) -> None:
        assert isinstance(pl_module, TranslationModule)
        if self._share is None or pl_module.own_progress() < LOOK:
            return
        if trainer.strategy.root_device == torch.device("cpu"):  # else the thread waits for its device
            self._outlook.look_at(self._share.measured())
        self._share = None
        seconds, steps = self._began
        clock, foreseen = pl_module.clock, self._outlook.steps
        if clock.limit is None or foreseen is None:
            return
        rate = (trainer.global_step - steps) / max(1e-9, clock.seconds - seconds)
        expected = trainer.global_step + rate * max(0.0, clock.limit - clock.reserve - clock.seconds)
        if expected <= LEAST * foreseen:
            _log.warning(
                "at this speed the run will make about %.0f steps instead of the %.0f that its sizes were chosen for: "
                "give it more max_minutes, or start it again with --force when the machine is less busy",
                expected, foreseen,
            )  # fmt: skip
