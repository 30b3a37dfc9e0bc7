"""A look at a run after its first tenth: is the machine busy, and will it make the steps that were foreseen?"""

import logging

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from txport.training.outlook import Outlook, Share
from txport.training.run.lightning_module import TranslationModule

_log = logging.getLogger("txport")
# The part of a run after which it is compared with what was foreseen, and the part of those steps below which this is
# said.
LOOK, LEAST = 0.1, 0.5


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
