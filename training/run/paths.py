"""Paths of the files of a run, and checks whether it can be resumed. Neither needs PyTorch."""

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
    """A run that is to be resumed has made all its steps: nothing is wrong, and nothing is done."""

    exit_code = 0


class RunPaths:
    """The files of one run; `checkpoint` is what it will write."""

    def __init__(self, checkpoint: Path) -> None:
        whole = checkpoint.absolute()  # "." has no name
        self.checkpoint, self.path = checkpoint, whole.with_name(whole.name + ".run")
        self.recipe, self.tokenizer, self.logs = (self.path / name for name in ("recipe.json", "tokenizer", "logs"))
        self.config = self.path / "config.json"
        self.state = self.path / "state"
        self.last = self.state / "last.ckpt"
        self.end = self.path / "end.json"

    def check(self, force: bool) -> None:
        """True if a run may begin here. A run of which no step was saved may always be begun again.

        Raises:
            InputError: the checkpoint or its run exists and `force` is false, or it is a directory of something else.
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

    def check_resume(self, recipe: Recipe, stated: Collection[str] = ()) -> Recipe:
        """Check that a run can be resumed, by `check_begun` and `check_unfinished`.

        Args:
            recipe: of this start.
            stated: the values of `[training]` that the command line sets.

        Returns:
            the recipe with the limits of the run where they are higher and not stated: a limit of the first command
            line is not in the recipe.
        """
        self.check_begun()
        before = from_table(json.loads(self.recipe.read_bytes()), str(self.recipe)).training
        limits = {
            name: max(value, getattr(recipe.training, name) or 0)
            for name in LIMITS
            if name not in stated and (value := getattr(before, name)) is not None
        }
        recipe = replace(recipe, training=replace(recipe.training, **limits))
        self.check_unfinished(recipe.training)
        return recipe

    def check_begun(self) -> None:
        """Check that there is a run.

        Raises:
            InputError: there is none, or no step of it was saved.
        """
        if not self.last.exists():
            raise InputError(f"{self.path} holds no run to resume (no state/last.ckpt): start without --resume")

    def check_unfinished(self, options: Any) -> None:
        """Check that a run has steps left.

        Args:
            options: the `TrainingOptions` of the resumed run.

        Raises:
            Finished: it has made all the steps that these options allow.
        """
        if not (self.end.exists() and self.checkpoint.exists()):
            return
        end = json.loads(self.end.read_bytes())
        now = getattr(options, end["by"])
        then = end["limit"]
        if now is not None and now <= then:
            steps = f"{end['steps']:,} step{'' if end['steps'] == 1 else 's'}"
            raise Finished(f"the run is finished ({steps}, BLEU {end['bleu']:.2f}): raise {end['by']} to continue")

    def write_end(self, options: Any, by: str, steps: int, bleu: float) -> None:
        """Note that the run is finished.

        Args:
            options: its `TrainingOptions`.
            by: the name of the one that ended it.
            steps, bleu: how far it came, and how good it was in the test.
        """
        end = {"by": by, "limit": getattr(options, by), "steps": steps, "bleu": bleu}
        write_atomically(self.end, (json.dumps(end) + "\n").encode())
