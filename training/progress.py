"""What people see of a run: one bar for all of it on a terminal, one line a validation everywhere."""

import logging
import sys
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from txport.training.lightning_module import TranslationModule

_log = logging.getLogger("txport")


class RunProgress(Callback):
    """A bar from the first step to the last, with the loss; nothing where standard error is no terminal."""

    def __init__(self) -> None:
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.percentage:>3.0f}%"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[figures]}"),
        )
        self._progress = Progress(*columns, console=Console(stderr=True), disable=not sys.stderr.isatty())
        self._task = self._progress.add_task("training", total=1.0, figures="")

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.is_global_zero:
            self._progress.start()

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *rest: Any) -> None:
        assert isinstance(pl_module, TranslationModule)
        if trainer.global_step % 10 == 0:
            loss = trainer.callback_metrics.get("training/loss")
            figures = f"step {trainer.global_step}" + (f", loss {float(loss):.3f}" if loss is not None else "")
            self._progress.update(self._task, completed=pl_module.progress(), description="training", figures=figures)

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._progress.update(self._task, description="validating")

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """One line with the figures."""
        assert isinstance(pl_module, TranslationModule)
        scores = pl_module.scores
        if trainer.sanity_checking or not trainer.is_global_zero or scores is None:
            return
        loss = float(trainer.callback_metrics["validation/loss"])
        _log.info(
            "step %d, %.0f s: validation loss %.4f, BLEU %.2f, chrF %.2f, exact match %.1f%%",
            trainer.global_step, pl_module.seconds, loss, scores.bleu, scores.chrf, 100 * scores.exact,
        )  # fmt: skip

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._progress.stop()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        self._progress.stop()
