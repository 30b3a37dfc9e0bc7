"""Directory of a run, from which it can be resumed: `NAME.run` beside the checkpoint `NAME`.

NAME.run/
  recipe.json     the recipe, with all overrides
  config.json     model of a fine-tuning run; other models follow from the recipe
  tokenizer/      tokenizer in the form of the checkpoint
  state/          last.ckpt, and checkpoints for "best" and averages, written by Lightning
  logs/           csv/version_N/metrics.csv and tensorboard/
  end.json        written at the end of a run: the option that ended it, steps and BLEU
"""

import json
import shutil
import time
from dataclasses import asdict
from typing import Any

from txport.runtime.errors import InputError
from txport.runtime.files import write_atomically
from txport.training.recipe import Recipe, as_before, from_table
from txport.training.run.paths import RunPaths
from txport.training.run.starting import Start

# Maximum time that processes on other machines wait for the tokenizer of the first process, in seconds.
PATIENCE = 3_600.0
# Values of [training] that may change when a run is resumed.
FREE = frozenset(
    "max_steps max_epochs max_minutes validate_every validation_sentences patience stop_at monitor keep "
    "average_last accelerator devices nodes strategy accumulate".split()
)


class RunDirectory(RunPaths):
    """Directory of a run, with methods that write and read its files."""

    def start(self, recipe: Recipe) -> None:
        """Start a new run. Delete an earlier run that `check` allows to replace."""
        if self.path.exists():
            shutil.rmtree(self.path)
        self.path.mkdir(parents=True)
        self._write(recipe)

    def resume(self, recipe: Recipe, *, write: bool) -> Recipe:
        """Continue a run. Its limits may change, but not its task.

        Args:
            recipe: recipe of this command.
            write: whether to store the returned recipe, in one process only.

        Returns:
            the recipe, with unset values as they were chosen at the start of the run.

        Raises:
            InputError: the run does not exist, or its recipe is different.
            Finished: see `check_unfinished`.
        """
        self.check_begun()
        before = self.stored()
        if (start := self.start_of(recipe)) is not None:
            recipe = start.recipe(recipe)
        recipe = as_before(recipe, before)
        for section in ("corpus", "tokenizer", "model"):
            if getattr(before, section) != getattr(recipe, section):
                raise InputError(
                    f"{self.recipe} has another [{section}] than this recipe: resume with the recipe that the run "
                    "was started with, or start another run"
                )
        if _task(before) != _task(recipe):
            raise InputError(
                f"{self.recipe} has another [training] than this recipe: only limits, validation and devices may change"
            )
        self.check_unfinished(recipe.training)
        if write:
            self.end.unlink(missing_ok=True)
            self._write(recipe)
        return recipe

    def stored(self) -> Recipe:
        """Return the recipe of the run, without unset values."""
        return from_table(json.loads(self.recipe.read_bytes()), str(self.recipe))

    def start_of(self, recipe: Recipe) -> Start | None:
        """Return the stored copy of the checkpoint that the run fine-tunes, or None for random weights."""
        if self.config.exists():
            return Start.read(recipe, self.path)
        return None

    def _write(self, recipe: Recipe) -> None:
        write_atomically(self.recipe, (json.dumps(recipe.to_json(), indent=1) + "\n").encode())

    def wait_for_tokenizer(self) -> None:
        """Wait until the first process has written the tokenizer. Raises InputError if this takes too long."""
        end = time.monotonic() + PATIENCE
        while not self.tokenizer.exists():
            if time.monotonic() > end:
                raise InputError(
                    f"{self.tokenizer} did not appear within an hour: put the output on a disk that all machines share"
                )
            time.sleep(0.2)


def _task(recipe: Recipe) -> dict[str, Any]:
    """Return the settings that must not change when a run is resumed."""
    return {key: value for key, value in asdict(recipe.training).items() if key not in FREE}
