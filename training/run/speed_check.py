"""Check of a run's speed after its first tenth: warns if the machine is busy, or the run slower than estimated."""

import logging

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from txport.runtime.console.words import plural
from txport.training.fitting import FEWEST_STEPS, TOO_FEW
from txport.training.run.lightning_module import TranslationModule
from txport.training.speed_estimate import ProcessorShare, SpeedEstimate

_log = logging.getLogger("txport")
# Share of a run before its speed is checked, and share of the estimated steps below which a warning is logged.
LOOK = 0.1
MINIMUM_SHARE = 0.5


class SpeedCheck(Callback):
    """Warning after a tenth of a run if the machine is busy, or less than half of the estimated steps are possible.

    At the end it also warns if a run had too few steps to learn anything.
    """

    def __init__(self, estimate: SpeedEstimate) -> None:
        self._estimate = estimate
        self._share: ProcessorShare | None = None
        self._began = 0.0, 0  # seconds and steps
        self._look = LOOK

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        assert isinstance(pl_module, TranslationModule)
        if not trainer.is_global_zero:
            return
        clock = pl_module.clock
        done = pl_module.own_progress()
        if clock.limit is not None and clock.before:
            _log.info("of %g minutes, %s are used", clock.limit / 60, _minutes(clock.seconds))
        # Work before the first step, such as reading the corpus, may have taken more than a tenth.
        self._look = done + LOOK * (1 - done)
        self._share = ProcessorShare()
        self._began = (clock.seconds, trainer.global_step)

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *rest: object) -> None:
        assert isinstance(pl_module, TranslationModule)
        if self._share is None or pl_module.own_progress() < self._look:
            return
        if trainer.strategy.root_device == torch.device("cpu"):  # with a GPU the thread waits
            self._estimate.look_at(self._share.measured())
        self._share = None
        seconds, steps = self._began
        clock = pl_module.clock
        estimated = self._estimate.steps
        if clock.limit is None or estimated is None:
            return
        rate = (trainer.global_step - steps) / max(1e-9, clock.seconds - seconds)
        expected = trainer.global_step + rate * max(0.0, clock.limit - clock.reserve - clock.seconds)
        if expected <= MINIMUM_SHARE * estimated:
            _log.warning(
                "at this speed the run will make about %.0f steps instead of the %.0f that its sizes were chosen for: "
                "give it more max_minutes, or start it again with --force when the machine is less busy",
                expected, estimated,
            )  # fmt: skip

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        assert isinstance(pl_module, TranslationModule)
        too_few = trainer.global_step < TOO_FEW and pl_module.clock.done() >= 1
        if trainer.is_global_zero and too_few:
            _log.warning(
                "the run made %s, and a model needs some %d: continue with --resume and a higher --max-minutes",
                plural(trainer.global_step, "step"), FEWEST_STEPS,
            )  # fmt: skip


def _minutes(seconds: float) -> str:
    """Return seconds as minutes and seconds, as in 2:17."""
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"
