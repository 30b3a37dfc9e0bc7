"""Progress of a run: one bar for the whole run on a terminal, otherwise a line every half minute."""

import logging
import time
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from txport.runtime.console.progress import LINE_SECONDS, ProgressLine, bar, minutes
from txport.training.examples import TrainingBatch
from txport.training.run.lightning_module import TranslationModule

_log = logging.getLogger("txport")
# Maximum number of characters of an example.
MAX_SHOWN = 100
# Weight of the newest step in the averages of speed.
NEWEST = 0.05


class RunProgress(Callback):
    """Context that shows progress on standard error. Log messages appear above the bar.

    Args:
        shown: whether this process shows progress.
    """

    def __init__(self, shown: bool) -> None:
        self._shown = shown
        self._bar = ProgressLine(self._text, shown, transient=True)
        self._share = 0.0
        self._phase = ""
        self._lined = time.monotonic()
        self._module: TranslationModule | None = None
        self._step, self._loss = 0, float("nan")
        # moving averages for a step
        self._tokens = 0.0
        self._seconds = 0.0
        self._last: float | None = None
        # time and progress at the first step of this process
        self._began = 0.0
        self._first = 0.0

    def __enter__(self) -> "RunProgress":
        self._bar.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._bar.__exit__(*error)

    def phase(self, name: str, done: int = 0, total: int = 0) -> None:
        """Set the phase of the run, and its progress if known."""
        if total:
            self._phase = f"{name} {done}/{total}"
        else:
            self._phase = name
        if self._module is not None:
            self._share = self._module.own_progress()
        self._print_line()

    def watch(self, name: str) -> Any:
        """Return a function to call with the number of finished sentences and of all sentences."""
        return lambda done, total: self.phase(name, done, total)

    def figures(self) -> str:
        """Return step, loss, speed and remaining time, after the first step."""
        if self._module is None or not self._step:
            return ""
        if self._seconds:
            speed = f", {self._tokens / self._seconds:.0f} tokens/s"
        else:
            speed = ""
        return f"step {self._step}, loss {self._loss:.3f}{speed}{self._left()}"

    def _left(self) -> str:
        assert self._module is not None
        left = self._module.clock.left
        options = self._module.options
        if (options.max_minutes is None or options.max_steps is not None) and self._share > self._first:
            spent = time.monotonic() - self._began
            steps = spent * (1 - self._share) / (self._share - self._first)
            if left is None:
                left = steps
            else:
                left = min(left, steps)
        if left is None:
            return ""
        return f", {minutes(left)} left"

    def _text(self) -> str:
        return f"{self._phase} {bar(self._share)} {self.figures()}"

    def _print_line(self) -> None:
        """Print a line if there is no terminal, and the last line was long ago."""
        now = time.monotonic()
        if self._shown and not self._bar.shown and now - self._lined >= LINE_SECONDS:
            self._lined = now
            _log.info("%s", ": ".join(text for text in (self._phase, self.figures()) if text))

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        assert isinstance(pl_module, TranslationModule)
        self._module = pl_module
        self._began, self._first = time.monotonic(), pl_module.own_progress()
        self.phase("training")

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: TrainingBatch, batch_idx: int
    ) -> None:
        now = time.monotonic()
        assert isinstance(pl_module, TranslationModule)
        pad = pl_module.model.config.pad_id
        if self._last is not None:
            tokens = int(batch.source_lengths.sum()) + int((batch.target_ids[:, 1:] != pad).sum())
            if self._seconds:
                share = NEWEST
            else:
                share = 1.0
            self._tokens += share * (tokens - self._tokens)
            self._seconds += share * (now - self._last - self._seconds)
        self._last = now
        self._step = trainer.global_step
        if self._step % 10 == 1:  # not every step: on a GPU, reading the loss waits for it
            if isinstance(outputs, dict):
                loss = outputs["loss"]
            else:
                loss = outputs
            if isinstance(loss, torch.Tensor):
                self._loss = float(loss.detach())
        self.phase("training")

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Log the results, and the translation of the first validation sentence."""
        assert isinstance(pl_module, TranslationModule)
        scores = pl_module.scores
        self._last = None
        if trainer.is_global_zero and scores is not None:
            loss = float(trainer.callback_metrics["validation/loss"])
            _log.info(
                "step %d, %.0f s: loss %.3f, BLEU %.2f, chrF %.2f, exact %.1f%%",
                trainer.global_step, pl_module.clock.seconds, loss, scores.bleu, scores.chrf, 100 * scores.exact,
            )  # fmt: skip
            _log.info("  %s\n            -> %s", *(_beginning(text) for text in pl_module.example))
        self.phase("training")


def _beginning(text: str) -> str:
    """Truncate a text to one line, since output of an untrained model may be very long."""
    if len(text) <= MAX_SHOWN:
        return text
    return f"{text[:MAX_SHOWN]} ..."
