"""A check of the paths in a run's state, which may be somebody else's, before Lightning removes what they name."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lightning import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback
from txport.runtime.errors import InputError


class StatePaths(Callback):
    """Refuses a state whose checkpoints are outside of the folder that it names for them."""

    def on_load_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Check all callbacks' states, which are not loaded yet.

        Raises:
            InputError: a path is outside.
        """
        for state in checkpoint.get("callbacks", {}).values():
            if not isinstance(state, dict) or not isinstance(state.get("dirpath"), str):
                continue
            folder = Path(state["dirpath"]).resolve()
            for path in _paths(state):
                if not Path(path).resolve().is_relative_to(folder):
                    raise InputError(
                        f"the state of the run names {path}, outside of {folder}: start again with --force"
                    )


def _paths(state: dict[str, Any]) -> Iterator[str]:
    names = ("best_model_path", "kth_best_model_path", "last_model_path")
    yield from (path for name in names if (path := state.get(name)))
    yield from state.get("best_k_models") or ()
