"""Lightning's trainer with the devices and callbacks of a recipe."""

from collections.abc import Sequence
from typing import Any

import lightning
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.callbacks import EarlyStopping, EMAWeightAveraging, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from txport.runtime.errors import InputError
from txport.runtime.libraries import silence
from txport.training.options import TrainingOptions
from txport.training.run.averaging import LastValidations
from txport.training.run.directory import RunDirectory
from txport.training.run.divergence import DivergenceCheck
from txport.training.run.interruption import Interruption
from txport.training.run.pacing import NEVER, Pace, TargetReached, TimeLimit
from txport.training.run.progress import RunProgress
from txport.training.run.saving import StatePaths, StateSaver
from txport.training.run.sharding import Sharded


def trainer_of(
    options: TrainingOptions,
    run: RunDirectory,
    progress: RunProgress,
    interruption: Interruption,
    callbacks: Sequence[Callback],
) -> Trainer:
    """Return the trainer of a run; see `TrainingOptions`."""
    return _on_devices(
        options,
        max_steps=-1 if options.max_steps is None else options.max_steps,
        max_epochs=options.max_epochs or -1,
        accumulate_grad_batches=options.accumulate,
        gradient_clip_val=options.clip_norm,
        val_check_interval=(options.validate_every or NEVER) * options.accumulate,
        check_val_every_n_epoch=None,
        num_sanity_val_steps=0,
        log_every_n_steps=10,
        callbacks=[*callbacks, *_callbacks(options, run, progress, interruption)],
        logger=[CSVLogger(run.logs, name="csv"), TensorBoardLogger(run.logs, name="tensorboard", version="")],
        use_distributed_sampler=False,  # our sampler divides the data between devices
    )


def check_devices(options: TrainingOptions) -> None:
    """Check that the devices exist.

    Raises:
        InputError: they do not.
    """
    with silence("lightning.pytorch", "lightning.fabric", module="lightning"):
        _on_devices(options, logger=False, enable_checkpointing=False)


def _on_devices(options: TrainingOptions, **settings: Any) -> Trainer:
    try:
        return Trainer(
            accelerator=options.accelerator,
            devices=options.devices,
            num_nodes=options.nodes,
            strategy=Sharded() if options.strategy == "fsdp" else options.strategy,
            precision=options.precision,
            enable_progress_bar=False,
            enable_model_summary=False,
            **settings,
        )
    except (lightning.fabric.utilities.exceptions.MisconfigurationException, ValueError, RuntimeError) as error:
        raise InputError(f"these devices cannot be used: {' '.join(str(error).split())}") from error


def _callbacks(
    options: TrainingOptions, run: RunDirectory, progress: RunProgress, interruption: Interruption
) -> list[Callback]:
    monitor = f"validation/{options.monitor}"
    if options.monitor == "loss":
        mode = "min"
    else:
        mode = "max"
    callbacks: list[Callback] = [
        StatePaths(),
        progress,
        TimeLimit(),
        DivergenceCheck(interruption),
        ModelCheckpoint(run.state, filename="best", monitor=monitor, mode=mode, enable_version_counter=False),
    ]
    if options.keep == "average":
        callbacks.append(LastValidations(run.state, options.average_last))
    callbacks.append(StateSaver(run, interruption))  # last, since it saves the state of the others
    if not options.validate_every:
        callbacks.append(Pace())
    if options.patience:
        callbacks.append(EarlyStopping(monitor, patience=options.patience, mode=mode))
    if options.stop_at is not None:
        callbacks.append(TargetReached(monitor, options.stop_at, mode == "min"))
    if options.average:
        # From the first step on, since a validation before the first average would use the initial weights.
        callbacks.append(EMAWeightAveraging(decay=options.average, use_buffers=False))
    return callbacks
