"""Last stage of a run: test and checkpoint."""

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lightning
import torch
from txport.models.checkpoint import save_checkpoint
from txport.runtime.console.words import plural
from txport.training.quality.evaluation import Scores
from txport.training.run.decoding import sampled_pairs, score_pairs
from txport.training.run.progress import RunProgress
from txport.training.spoken.recordings import Recording
from txport.training.stages.fit import Fitted
from txport.training.stages.prepare import Run
from txport.training.torch_engine import TorchEngine

_log = logging.getLogger("txport")

# Maximum number of held-out sources in a checkpoint, for calibration and verification of its bundles.
MAX_SENTENCES = 2_000
MAX_RECORDINGS = 200


@dataclass(frozen=True)
class Outcome:
    """A finished run.

    Attributes:
        checkpoint: directory of the checkpoint.
        steps: number of optimizer steps.
        seconds: wall-clock time, without the time between an interruption and `--resume`.
        test: scores on the test split, or on a sample of it, see `txport.training.run.decoding.drawn`.
    """

    checkpoint: Path
    steps: int
    seconds: float
    test: Scores

    def sentence(self) -> str:
        """Return the result as text for the user."""
        test = self.test
        return (
            f"{self.checkpoint}: {plural(self.steps, 'step')} in {self.seconds:.0f} s; on "
            f"{plural(test.sentences, 'test sentence')} BLEU {test.bleu:.2f}, chrF {test.chrf:.2f}, "
            f"exact match {100 * test.exact:.1f}%"
        )


def finish(run: Run, fitted: Fitted, progress: RunProgress) -> Outcome:
    """Test the model on the test split and write the checkpoint."""
    recipe = run.recipe
    corpus = run.corpus
    module = fitted.module
    model = module.model.eval()
    clock = module.clock
    tested = sampled_pairs(corpus.test, recipe.training.max_minutes)
    if len(tested) < len(corpus.test):
        _log.info("the test is on %d of %d sentences, always the same", len(tested), len(corpus.test))
    test = score_pairs(TorchEngine(model), run.tokenizer, tested, progress.watch("testing"))
    progress.phase("saving")
    held_out: dict[str, str] = {}
    for source, target in [*corpus.test, *corpus.validation]:
        held_out.setdefault(source, target)
    examples = list(held_out.items())[:MAX_SENTENCES]
    recordings = [source.vectors for source, _ in examples if isinstance(source, Recording)][:MAX_RECORDINGS]
    examples = examples[: len(recordings) or None]
    report: dict[str, Any] = {
        "recipe": recipe.to_json(),
        "corpus": {name: len(getattr(corpus, name)) for name in ("train", "validation", "test")},
        "steps": fitted.steps,
        "seconds": round(clock.seconds, 1),
        "test": test.to_json(),
        "torch": torch.__version__,
        "lightning": lightning.__version__,
    }
    save_checkpoint(
        run.directory.checkpoint,
        model.cpu(),
        run.directory.tokenizer,
        [] if recordings else [source for source, _ in examples],
        report,
        references=[target for _, target in examples],
        generation=run.generation,
        features=recordings,
        replace=True,
    )
    if run.directory.last.exists():
        run.directory.write_end(recipe.training, fitted.ended_by, fitted.steps, test.bleu)
    return Outcome(run.directory.checkpoint, fitted.steps, clock.seconds, test)
