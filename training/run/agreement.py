"""Processes of one run that read their corpus each for itself, perhaps on machines of their own, must read the same."""

import hashlib

import numpy as np
import torch.distributed
from lightning.pytorch import Callback, LightningModule, Trainer
from txport.runtime.errors import InputError
from txport.training.examples import Examples


class Agreement(Callback):
    """Compares what the processes are to train on, once they know each other.

    Args:
        examples: what each device has a share of: training pairs, validation pairs.
    """

    def __init__(self, *examples: Examples) -> None:
        self._pairs = len(examples[0])
        digest = hashlib.sha256()
        for array in (
            part for each in examples for side in (each.sources, each.targets) for part in (side.starts, side.flat)
        ):
            digest.update(np.ascontiguousarray(array))
        self._digest = digest.hexdigest()

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.world_size == 1:
            return
        found: list[tuple[int, str]] = [(0, "")] * trainer.world_size
        torch.distributed.all_gather_object(found, (self._pairs, self._digest))
        for rank, other in enumerate(found):
            if other != found[0]:
                error = InputError(
                    f"process {rank} of this run has another corpus than process 0 ({_words(other[0], found[0][0])}): "
                    "give all machines the same files and start again"
                )
                # Everyone knows; one says it.
                raise error if trainer.is_global_zero else SystemExit(error.exit_code)


def _words(pairs: int, first: int) -> str:
    return f"{pairs} training pairs, not {first}" if pairs != first else f"{pairs} training pairs as well, but others"
