"""Paths of a run's files, and checks whether it can be resumed. PyTorch is not needed."""

import json
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

from txport.runtime.errors import InputError, TxportError
from txport.runtime.files import check_writable, write_atomically
from txport.training.recipe import Recipe, from_table

LIMITS = ("max_steps", "max_epochs", "max_minutes")


class Finished(TxportError):
    """The run to resume has completed all its steps. This is not an error, and nothing is changed."""

    exit_code = 0


class RunPaths:
    """Files of one run. `checkpoint` is the output of the run."""

    def __init__(self, checkpoint: Path) -> None:
        absolute = checkpoint.absolute()  # "." has no name
        self.checkpoint, self.path = checkpoint, absolute.with_name(absolute.name + ".run")
        self.recipe, self.tokenizer, self.logs = (self.path / name for name in ("recipe.json", "tokenizer", "logs"))
        self.config = self.path / "config.json"
        self.state = self.path / "state"
        self.last = self.state / "last.ckpt"
        self.end = self.path / "end.json"

    def check(self, force: bool) -> None:
        """Check that a run may start here. A run without a saved step may always be replaced.

        Raises:
            InputError: the checkpoint or its run exists and `force` is false, or the directory contains something else.
        """
        for directory, marker in ((self.checkpoint, "config.json"), (self.path, "recipe.json")):
            if not directory.exists():
                continue
            if not force and (directory == self.checkpoint or self.last.exists()):
                if directory == self.path:
                    way_out = "--resume to continue it, "
                else:
                    way_out = ""
                raise InputError(f"{directory} exists: choose another name, or give {way_out}--force to replace it")
            if not directory.is_dir() or (any(directory.iterdir()) and not (directory / marker).exists()):
                raise InputError(f"{directory} is not replaced, because tx-train did not make it: choose another name")
        check_writable(self.path)

    def check_resume(self, recipe: Recipe, changed: Collection[str] = ()) -> Recipe:
        """Check that a run can be resumed, by `check_begun` and `check_unfinished`.

        Args:
            recipe: recipe of this command.
            changed: values of `[training]` that are set on the command line.

        Returns:
            the recipe, with limits of the run if these are higher and not set on this command line: limits from the
            first command line are not in the recipe.
        """
        self.check_begun()
        before = from_table(json.loads(self.recipe.read_bytes()), str(self.recipe)).training
        limits = {
            name: max(value, getattr(recipe.training, name) or 0)
            for name in LIMITS
            if name not in changed and (value := getattr(before, name)) is not None
        }
        recipe = replace(recipe, training=replace(recipe.training, **limits))
        self.check_unfinished(recipe.training)
        return recipe

    def check_begun(self) -> None:
        """Check that a run exists.

        Raises:
            InputError: it does not exist, or has no saved step.
        """
        if not self.last.exists():
            raise InputError(f"{self.path} holds no run to resume (no state/last.ckpt): start without --resume")

    def check_unfinished(self, options: Any) -> None:
        """Check that a run has steps left.

        Args:
            options: the `TrainingOptions` of the resumed run.

        Raises:
            Finished: it has completed all steps that these options allow.
        """
        if not (self.end.exists() and self.checkpoint.exists()):
            return
        end = json.loads(self.end.read_bytes())
        limit = getattr(options, end["by"])
        then = end["limit"]
        if limit is not None and limit <= then:
            steps = f"{end['steps']:,} step{'' if end['steps'] == 1 else 's'}"
            raise Finished(f"the run is finished ({steps}, BLEU {end['bleu']:.2f}): raise {end['by']} to continue")

    def write_end(self, options: Any, by: str, steps: int, bleu: float) -> None:
        """Record that the run is finished.

        Args:
            options: `TrainingOptions` of the run.
            by: name of the option that ended it.
            steps, bleu: completed steps, and BLEU of the test.
        """
        end = {"by": by, "limit": getattr(options, by), "steps": steps, "bleu": bleu}
        write_atomically(self.end, (json.dumps(end) + "\n").encode())
