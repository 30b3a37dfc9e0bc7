"""Check that all processes of a distributed run read the same corpus."""

import hashlib
import re

import numpy as np
import torch.distributed
from lightning.pytorch import Callback, LightningModule, Trainer
from txport.runtime.errors import EngineError, InputError, TxportError
from txport.training.examples import Examples

# Error messages of gloo. NCCL's errors have a type.
_LOST = re.compile(r"\bgloo\b|connection (closed|reset|refused) by peer", re.IGNORECASE)


class CorpusAgreement(Callback):
    """Comparison of the inputs of all processes after they are connected.

    Args:
        examples: data that is divided between devices: training pairs, validation pairs.
    """

    def __init__(self, *examples: Examples) -> None:
        self._pairs = len(examples[0])
        digest = hashlib.sha256()
        rows = [side for each in examples for side in (each.sources, each.targets, each.points)]
        for array in (part for side in rows for part in (side.starts, side.flat)):
            digest.update(np.ascontiguousarray(array).data)
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
                raise said_once(trainer, error)


def said_once(trainer: Trainer, error: TxportError) -> BaseException:
    """Return the exception for an error in all processes of a run. Only the first process reports it."""
    if trainer.is_global_zero:
        return error
    return SystemExit(error.exit_code)


def lost(error: RuntimeError, saved: bool) -> TxportError | None:
    """Return the error for a lost process, or None if the error has another cause.

    Args:
        error: exception of a collective operation.
        saved: whether a state was saved.
    """
    if not isinstance(error, torch.distributed.DistError) and _LOST.search(str(error)) is None:
        return None
    if saved:
        way_out = "continue with --resume"
    else:
        way_out = "start again"
    return EngineError(f"another process of this run has ended, or the network between them: {way_out}")


def _words(pairs: int, first: int) -> str:
    if pairs != first:
        return f"{pairs} training pairs, not {first}"
    return f"{pairs} training pairs as well, but others"
