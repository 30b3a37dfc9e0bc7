"""A whole training run, from recipe to checkpoint."""

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
    """Train by a recipe and write a txport checkpoint.

    Signals SIGINT and SIGTERM save the state and raise `Interrupted`, if this is the main thread.

    Args:
        recipe: the recipe. Unset values are chosen by `txport.training.fitting`.
        output: the checkpoint directory to write; `output`.run next to it holds logs and what `resume` needs.
        data: where relative file names of the recipe's corpus are.
        resume: continue an interrupted run.
        force: replace a checkpoint or a run that exists.
        started: what `time.monotonic()` was when the time of `max_minutes` began; None for now.

    Returns:
        the outcome; None in all processes except the first.

    Raises:
        InputError: the output exists, or the corpus or an option cannot be used.
        ResourceError: the disk is full.
        MissingLibrary: see `txport.training.corpora.load`.
        Interrupted: a signal came.
        Finished: the run that is to be resumed has made all its steps.
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
