"""What studies that train models share: runs that are not made twice, and figures of several seeds."""

import csv
import json
import statistics
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from txport.runtime.errors import InputError
from txport.training.evaluation import Scores
from txport.training.loop import train
from txport.training.recipe import Recipe
from txport.training.run.directory import RunDirectory
from txport.training.run.paths import Finished


@dataclass(frozen=True)
class Trained:
    """A finished run.

    Attributes:
        run: its directories.
        test: figures on the test split.
        losses: the loss of each validation, in nats a token, by the number of steps before it.
    """

    run: RunDirectory
    test: Scores
    losses: dict[int, float]


def trained(recipe: Recipe, output: Path, data: Path = Path()) -> Trained:
    """Train, or go on with what was interrupted, or read what an earlier call of the same study made.

    Args:
        recipe: ends by `max_steps`; other limits are taken off.
        output: the checkpoint directory.
        data: where relative file names of the recipe's corpus are.

    Raises:
        InputError: `output` holds something else, or as `txport.training.loop.train`.
    """
    recipe = replace(recipe, training=replace(recipe.training, max_minutes=None, max_epochs=None))
    run = RunDirectory(output)
    begun = run.last.exists()
    if begun:
        with suppress(Finished):
            run.resume(recipe, write=False)  # refuses another recipe, but for its limits
        before, wanted = run.stored().training.max_steps, recipe.training.max_steps
        if before != wanted:
            raise InputError(f"{run.path} is a run of {before} steps, not of {wanted}: choose another directory")
    elif output.exists():
        raise InputError(f"{output} exists, but {run.path} holds no run of it: choose another directory")
    if not output.exists():
        train(recipe, output, data, resume=begun)
    report = json.loads((output / "training.json").read_bytes())
    return Trained(run, Scores(**report["test"]), _losses(run))


def _losses(run: RunDirectory) -> dict[int, float]:
    """From the logs; each resumed part has one of its own, and of steps that were made twice the later ones count."""
    found: dict[int, float] = {}
    for log in sorted(run.logs.glob("csv/version_*/metrics.csv"), key=lambda file: int(file.parent.name.split("_")[1])):
        with log.open(encoding="utf-8") as file:
            rows = [row for row in csv.DictReader(file) if row.get("validation/loss")]
        found |= {int(row["step"]) + 1: float(row["validation/loss"]) for row in rows}
    return dict(sorted(found.items()))


def spread(values: Sequence[float], show: Callable[[float], str]) -> str:
    """The mean of one figure of several seeds, and the least and the greatest."""
    mean = show(statistics.fmean(values))
    return mean if len(values) == 1 else f"{mean} ({show(min(values))} to {show(max(values))})"
