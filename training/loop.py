"""Complete training run, from recipe to checkpoint."""

from pathlib import Path

from txport.runtime.files import file_errors
from txport.training.recipe import Recipe
from txport.training.run.clock import Clock
from txport.training.run.directory import RunDirectory
from txport.training.run.interruption import Interruption
from txport.training.run.progress import RunProgress
from txport.training.stages.finish import Outcome, finish
from txport.training.stages.fit import fit_model
from txport.training.stages.prepare import Run, RunContext, is_first_process
from txport.training.stages.trainer import check_devices


def train(
    recipe: Recipe, output: Path, data: Path, *, resume: bool = False, force: bool = False, started: float | None = None
) -> Outcome | None:
    """Train a model by a recipe and write a checkpoint.

    In the main thread, SIGINT and SIGTERM save the state and raise `Interrupted`.

    Args:
        recipe: the recipe. Unset values are chosen by `txport.training.fitting`.
        output: checkpoint directory to write. `output`.run beside it contains logs and the state for `resume`.
        data: base directory of relative file names in the recipe's corpus.
        resume: continue an interrupted run.
        force: replace an existing checkpoint or run.
        started: value of `time.monotonic()` at the beginning of `max_minutes`; None for now.

    Returns:
        the outcome; None in all processes except the first.

    Raises:
        InputError: the output exists, or the corpus or an option cannot be used.
        ResourceError: the disk is full.
        MissingLibrary: see `txport.training.corpora.load`.
        Interrupted: a signal was received.
        Finished: the resumed run has already completed all its steps.
    """
    clock = Clock(recipe.training.max_minutes, started)
    directory = RunDirectory(output)
    with (
        RunProgress(is_first_process()) as progress,
        Interruption() as interruption,
        file_errors(directory.path, ours=False),
    ):
        check_devices(recipe.training)
        context = RunContext(directory, data, progress, force)
        checkpoint = recipe.training.from_checkpoint
        if resume:
            run = Run.resumed_from(recipe, context)
        elif checkpoint is not None:
            run = Run.continued(recipe, context, Path(checkpoint))
        else:
            run = Run.fresh(recipe, context)
        fitted = fit_model(run, clock, progress, interruption)
        if fitted is None:
            return None
        return finish(run, fitted, progress)
