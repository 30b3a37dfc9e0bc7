"""Second stage of a run: optimizer steps, until an option of the recipe ends it."""

import logging
import math
import pickle
from dataclasses import dataclass
from pathlib import Path

import torch
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from txport.models.transformer import Transformer
from txport.runtime.console.words import plural
from txport.runtime.corpus.shards import Shards
from txport.runtime.errors import InputError
from txport.runtime.libraries import silence
from txport.training.batching import Loader, TokenBatches
from txport.training.examples import Examples
from txport.training.guidance.guided_attention import choose_guide
from txport.training.options import TrainingOptions
from txport.training.recipe import require_fitted
from txport.training.run.agreement import CorpusAgreement, lost_process
from txport.training.run.averaging import LastValidations, average_weights
from txport.training.run.clock import Clock
from txport.training.run.decoding import sampled_pairs
from txport.training.run.directory import RunDirectory
from txport.training.run.interruption import Interruption
from txport.training.run.lightning_module import TranslationModule
from txport.training.run.pacing import MAX_VALIDATIONS, TargetReached
from txport.training.run.progress import RunProgress
from txport.training.run.sharding import Sharded
from txport.training.run.speed_check import SpeedCheck
from txport.training.run.starting import freeze
from txport.training.stages.prepare import Run, is_first_process
from txport.training.stages.trainer import trainer_of
from txport.training.torch_engine import special_tokens

_log = logging.getLogger("txport")


@dataclass(frozen=True)
class Fitted:
    """Trained model.

    Attributes:
        module: module with the weights that the recipe keeps.
        steps: number of optimizer steps.
        ended_by: name of the option that ended the run.
    """

    module: TranslationModule
    steps: int
    ended_by: str


def fit_model(run: Run, clock: Clock, progress: RunProgress, interruption: Interruption) -> Fitted | None:
    """Train the model of a run.

    Returns:
        the trained model; None in all processes except the first.
    """
    options = run.recipe.training
    torch.manual_seed(options.seed)
    model = run.model()
    freeze(model, options.freeze)
    validation = run.corpus.validation[: require_fitted(options.validation_sentences)]
    clock.test = len(sampled_pairs(run.corpus.test, options.max_minutes)) / len(validation)
    module = TranslationModule(model, options, run.tokenizer, validation, clock, progress.watch("validating"))
    if options.max_steps == 0 and not run.resumed:
        if is_first_process():
            return Fitted(module, 0, "max_steps")
        return None
    progress.phase("tokenising")
    examples = _examples(run, model)
    # Suppress Lightning's advertisements, and its advice on data loaders.
    with silence("lightning.pytorch", "lightning.fabric", module="lightning"):
        held_out = Examples.of(validation, run.tokenizer, options.max_length, special_tokens(model.config))
        callbacks = [CorpusAgreement(examples, held_out), SpeedCheck(run.estimate)]
        trainer = trainer_of(options, run.directory, progress, interruption, callbacks)
        _fit(trainer, module, examples, held_out, run)
    if not trainer.is_global_zero:
        return None
    _load_best(trainer, module, run.directory)
    return Fitted(module, trainer.global_step, _ended_by(trainer, module))


def _examples(run: Run, model: Transformer) -> Examples:
    """Return the training pairs as ids, on disk if the corpus is."""
    options = run.recipe.training
    pairs = run.corpus.train
    guide = choose_guide(options, run.corpus.alignments, run.tokenizer)
    disk = None
    if isinstance(pairs, Shards):
        disk = run.directory.path
    examples = Examples.of(pairs, run.tokenizer, options.max_length, special_tokens(model.config), guide, disk)
    if is_first_process():
        parameters = sum(parameter.numel() for parameter in model.parameters())
        frozen = sum(parameter.numel() for parameter in model.parameters() if not parameter.requires_grad)
        tokens = (examples.sources.lengths.mean(), examples.targets.lengths.mean())
        _log.info(
            "%s of %.1f and %.1f tokens (%d longer left out), a vocabulary of %d, %.2f million parameters%s",
            plural(len(examples), "training pair"), *tokens, len(pairs) - len(examples), model.config.target_vocabulary,
            parameters / 1e6, f" ({frozen / 1e6:.2f} frozen)" if frozen else "",
        )  # fmt: skip
    return examples


def _fit(trainer: Trainer, module: TranslationModule, examples: Examples, held_out: Examples, run: Run) -> None:
    options = module.options
    state = run.directory.last
    rank = trainer.global_rank
    world = trainer.world_size
    batch_tokens = require_fitted(options.batch_tokens)
    loaders = [
        Loader(
            examples,
            TokenBatches(examples.lengths, batch_tokens, options.seed, rank, world, most_rows=options.batch_pairs),
        ),
        Loader(held_out, TokenBatches(held_out.lengths, batch_tokens, 0, rank, world, shuffle=False)),
    ]
    if trainer.is_global_zero:
        _announce(options, len(loaders[0]), len(module.validation), run.estimate.steps)
    try:
        # Lightning's files are loaded without unpickling anything except tensors and plain values.
        trainer.fit(module, loaders[0], loaders[1], ckpt_path=state if run.resumed else None, weights_only=True)
    except (pickle.UnpicklingError, EOFError, KeyError) as error:
        if not run.resumed:
            raise
        reason = str(error).split(". ")[0].splitlines()[0]
        raise InputError(f"{state} cannot be resumed from ({reason}): start again with --force") from error
    except RuntimeError as error:
        if world == 1 or (lost_error := lost_process(error, state.exists())) is None:
            raise
        raise lost_error from error


def _announce(options: TrainingOptions, batches: int, sentences: int, foreseen: float | None) -> None:
    """Log the planned run."""
    steps = math.ceil(batches / options.accumulate)
    ends = {
        "minute": options.max_minutes,
        "step": options.max_steps,
        "epoch": options.max_epochs,
    }
    until = " or ".join(f"{value:g} {unit}{'s' * (value != 1)}" for unit, value in ends.items() if value)
    if options.validate_every:
        interval = f"every {plural(options.validate_every, 'step')}"
    else:
        interval = f"at most {MAX_VALIDATIONS + 1} times"
    _log.info(
        "%s an epoch; validates %s, on %s; ends after %s%s%s",
        plural(steps, "step"), interval, plural(sentences, "sentence"), until,
        ", the test included" if options.max_minutes else "",
        "" if foreseen is None else f"; about {plural(round(foreseen), 'step')}",
    )  # fmt: skip


def _ended_by(trainer: Trainer, module: TranslationModule) -> str:
    """Name the option of the recipe that ended the run."""
    options = module.options
    if options.max_steps is not None and trainer.global_step >= options.max_steps:
        return "max_steps"
    if module.clock.done() >= 1:
        return "max_minutes"
    if any(isinstance(each, TargetReached) and each.reached for each in trainer.callbacks):  # type: ignore[attr-defined]
        return "stop_at"
    if trainer.should_stop:
        return "patience"
    return "max_epochs"


def _load_best(trainer: Trainer, module: TranslationModule, run: RunDirectory) -> None:
    """Load the weights that the recipe keeps into the module, and return their description."""
    if isinstance(trainer.strategy, Sharded):  # the module has only a shard
        module.model = Transformer(module.model.config)
    # With a moving average, all states contain averaged weights.
    if module.options.keep == "average":
        module.load_state_dict(_average(trainer, run))
        return
    best = trainer.checkpoint_callback
    assert isinstance(best, ModelCheckpoint)
    checkpoint = run.last
    if module.options.keep == "best" and best.best_model_path:
        checkpoint = Path(best.best_model_path)
    state = torch.load(checkpoint, map_location="cpu", weights_only=True)
    module.load_state_dict(state["state_dict"])
    if checkpoint != run.last and best.best_model_score is not None:
        figure = module.options.monitor
        value = float(best.best_model_score)
        _log.info("kept step %d of %d: %s", state["global_step"], trainer.global_step, _figure(figure, value))


def _average(trainer: Trainer, run: RunDirectory) -> dict[str, torch.Tensor]:
    """Return the average of the run's last validations, as weights of the module."""
    (last_validations,) = (
        callback for callback in trainer.checkpoint_callbacks if isinstance(callback, LastValidations)
    )
    states = last_validations.states(run.last)
    steps = [state["global_step"] for state in states]
    if len(steps) == 1:
        _log.warning("the run validated at its end only: nothing is averaged; set training.validate_every lower")
    else:
        _log.info("kept the average of the weights after steps %s", ", ".join(map(str, steps)))
    return average_weights([state["state_dict"] for state in states])


def _figure(monitor: str, value: float) -> str:
    """Return a validation result as text."""
    if monitor == "exact":
        return f"exact match {100 * value:.1f}%"
    if monitor == "loss":
        return f"loss {value:.3f}"
    return f"{ {'bleu': 'BLEU', 'chrf': 'chrF'}[monitor] } {value:.2f}"
