"""Directory by which a run is resumed: `NAME.run` next to the checkpoint `NAME` that it will write.

NAME.run/
  recipe.json     the recipe, with all overrides
  config.json     the model of a run that fine-tunes a checkpoint; other models follow from the recipe
  tokenizer/      as it will be in the checkpoint
  state/          last.ckpt, the best and the averaged checkpoints, written by Lightning
  logs/           csv/version_N/metrics.csv and tensorboard/
  end.json        of a run that is finished: what ended it, and how good it was
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

# How long processes on other machines wait for the first one to write the tokenizer, in seconds.
PATIENCE = 3_600.0
# The values of [training] that may change when a run is resumed.
FREE = frozenset(
    "max_steps max_epochs max_minutes validate_every validation_sentences patience stop_at monitor keep "
    "average_last accelerator devices nodes strategy accumulate".split()
)


class RunDirectory(RunPaths):
    """Files of a run, with what it writes and reads there."""

    def start(self, recipe: Recipe) -> None:
        """Begin a new run and delete the run that `check` allows to replace."""
        if self.path.exists():
            shutil.rmtree(self.path)
        self.path.mkdir(parents=True)
        self._write(recipe)

    def resume(self, recipe: Recipe, *, write: bool) -> Recipe:
        """Continue a run, whose limits may change but not its task.

        Args:
            recipe: of this start.
            write: whether the run's recipe is replaced by what is returned, which one process does.

        Returns:
            the recipe, with what it leaves open as it was chosen when the run was started.

        Raises:
            InputError: there is no such run, or its recipe is another.
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
        """Return the recipe of the run, which leaves nothing open."""
        return from_table(json.loads(self.recipe.read_bytes()), str(self.recipe))

    def start_of(self, recipe: Recipe) -> Start | None:
        """Return the stored copy of the checkpoint that the run fine-tunes, or None for random weights."""
        if self.config.exists():
            return Start.read(recipe, self.path)
        return None

    def _write(self, recipe: Recipe) -> None:
        write_atomically(self.recipe, (json.dumps(recipe.to_json(), indent=1) + "\n").encode())

    def wait_for_tokenizer(self) -> None:
        """Wait until the first process has written it. Raises InputError when that takes too long."""
        end = time.monotonic() + PATIENCE
        while not self.tokenizer.exists():
            if time.monotonic() > end:
                raise InputError(
                    f"{self.tokenizer} did not appear within an hour: put the output on a disk that all machines share"
                )
            time.sleep(0.2)


def _task(recipe: Recipe) -> dict[str, Any]:
    """Settings that must stay the same when a run is resumed."""
    return {key: value for key, value in asdict(recipe.training).items() if key not in FREE}
