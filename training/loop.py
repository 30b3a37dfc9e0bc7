"""A whole training run, from recipe to checkpoint."""

import logging
import math
import os
import pickle
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lightning
import torch
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.callbacks import EarlyStopping, EMAWeightAveraging, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from txport.models.checkpoint import PLAIN, load_checkpoint, save_checkpoint
from txport.models.config import Config, preset
from txport.models.transformer import Transformer
from txport.runtime.bundle.schema import Generation
from txport.runtime.corpus.shards import Shards
from txport.runtime.errors import InputError
from txport.runtime.files import file_errors
from txport.runtime.libraries import silence
from txport.runtime.text.tokenizer import SentencePieceTokenizer, TextTokenizer
from txport.training import corpora
from txport.training.batching import Loader, TokenBatches
from txport.training.corpora import Corpus
from txport.training.evaluation import Scores
from txport.training.examples import Examples
from txport.training.fitting import fit
from txport.training.guidance.guided_attention import choose_guide
from txport.training.recipe import Recipe, TrainingOptions, chosen
from txport.training.recordings import Recording, check_vectors, texts_of
from txport.training.run.agreement import Agreement, lost
from txport.training.run.averaging import LastValidations, average_weights
from txport.training.run.clock import Clock
from txport.training.run.decoding import drawn, judge
from txport.training.run.directory import RunDirectory
from txport.training.run.divergence import Divergence
from txport.training.run.interruption import Interruption
from txport.training.run.lightning_module import TranslationModule
from txport.training.run.pacing import MOST, NEVER, Pace, TargetReached, TimeLimit
from txport.training.run.progress import RunProgress
from txport.training.run.saving import StatePaths, StateSaver
from txport.training.run.sharding import Sharded
from txport.training.run.speed_check import SpeedCheck
from txport.training.run.starting import Start, check_fit, freeze
from txport.training.speed_estimate import SpeedEstimate
from txport.training.tokenizers import load_tokenizer, padded_vocabulary, train_tokenizer
from txport.training.torch_engine import TorchEngine, special_tokens

_log = logging.getLogger("txport")

# Number of held-out sources in a checkpoint, for calibration and verification of its bundles.
MAX_SENTENCES = 2_000
MAX_RECORDINGS = 200


@dataclass(frozen=True)
class Outcome:
    """A finished run.

    Attributes:
        checkpoint: where it was written.
        steps: optimizer steps.
        seconds: wall-clock time of all of it, without what lay between an interruption and `--resume`.
        test: figures on the test split, or on a sample of it: see `txport.training.run.decoding.drawn`.
    """

    checkpoint: Path
    steps: int
    seconds: float
    test: Scores

    def sentence(self) -> str:
        """Return all of it, for people."""
        test = self.test
        return (
            f"{self.checkpoint}: {_count(self.steps, 'step')} in {self.seconds:.0f} s; on "
            f"{_count(test.sentences, 'test sentence')} BLEU {test.bleu:.2f}, chrF {test.chrf:.2f}, "
            f"exact match {100 * test.exact:.1f}%"
        )


def train(
    recipe: Recipe, output: Path, data: Path, *, resume: bool = False, force: bool = False, started: float | None = None
) -> Outcome | None:
    """Train by a recipe and write a txport checkpoint.

    Signals SIGINT and SIGTERM save the state and raise `Interrupted`, if this is the main thread.

    Args:
        recipe: the recipe. Unset values are chosen by `txport.training.fitting`.
        output: the checkpoint directory to write; `output`.run next to it holds logs and what `resume` needs.
        data: where relative file names of the recipe's corpus are.
        resume: continue an interrupted run.
        force: replace a checkpoint or a run that exists.
        started: what `time.monotonic()` was when the time of `max_minutes` began; None for now.

    Returns:
        the outcome; None in all processes except the first.

    Raises:
        InputError: the output exists, or the corpus or an option cannot be used.
        ResourceError: the disk is full.
        MissingLibrary: see `txport.training.corpora.load`.
        Interrupted: a signal came.
        Finished: the run that is to be resumed has made all its steps.
    """
    clock = Clock(recipe.training.max_minutes, started)
    run = RunDirectory(output)
    with RunProgress(_first_process()) as progress, Interruption() as interruption, file_errors(run.path, ours=False):
        prepared = _prepare(recipe, run, data, progress, resume, force)
        return _train(prepared, run, clock, progress, interruption, resume)


@dataclass(frozen=True)
class _Prepared:
    """Start of a run, with all values of the recipe chosen.

    Attributes:
        weights: the checkpoint to take them from; None for random ones, and for a run that is resumed.
        estimate: measured speed of this machine.
        generation: settings of the search that the first weights were imported with.
    """

    recipe: Recipe
    corpus: Corpus
    tokenizer: TextTokenizer
    config: Config
    weights: Path | None
    estimate: SpeedEstimate
    generation: Generation = PLAIN


def _prepare(
    recipe: Recipe, run: RunDirectory, data: Path, progress: RunProgress, resume: bool, force: bool
) -> _Prepared:
    """Read the corpus, and only then make the run's directory: a start that fails leaves nothing.

    What can be refused without the corpus is refused before it is read.
    """
    first = _first_process()
    weights = _checkpoint(recipe, resume)
    start: Start | None = None
    estimate = SpeedEstimate()
    _check_devices(recipe.training)
    if resume:  # each process for itself: what the first one writes may come too late for others
        recipe = run.resume(recipe, write=first)
    elif first:
        run.check(force)
    if first and weights is not None:
        start = Start.read(recipe, weights)
        _check_positions(recipe, start.config)
        with torch.device("meta"):  # names only
            freeze(Transformer(start.config), recipe.training.freeze)
    progress.phase("reading the corpus")
    corpus = corpora.load(recipe.corpus, data, recipe.tokenizer)
    texts = texts_of(corpus.train)
    if start is not None:
        assert weights is not None
        recipe = start.recipe(recipe)
        check_fit(start.tokenizer(), start.config.unk_id, texts, weights)
        _log.info("continues from %s with its model and tokenizer", weights)
    if first and not resume:
        recipe, choices = fit(recipe, texts, estimate)
        if choices:
            _log.info("chosen for %s: %s", _count(len(corpus.train), "training pair"), _listed(choices))
        run.start(recipe)
    if start is not None:
        start.keep(run.path)
    if first and not run.tokenizer.exists():
        progress.phase("training the tokenizer")
        train_tokenizer(texts, recipe.tokenizer, run.tokenizer)
    run.wait_for_tokenizer()
    recipe = recipe if first or resume else run.stored()
    check_vectors(recipe.model, corpus.train)
    if (kept := run.start_of(recipe)) is not None:
        return _Prepared(recipe, corpus, kept.tokenizer(), kept.config, weights, estimate, kept.generation)
    tokenizer = load_tokenizer(run.tokenizer)
    wanted = recipe.tokenizer.vocabulary
    pieces = min(tokenizer.source_size, tokenizer.target_size)
    if first and recipe.tokenizer.algorithm in ("bpe", "unigram") and pieces < chosen(wanted):
        _log.warning("tokenizer.vocabulary is %d, but the corpus gives %d pieces only: these are taken", wanted, pieces)
    return _Prepared(recipe, corpus, tokenizer, model_config(recipe, tokenizer), None, estimate)


def _checkpoint(recipe: Recipe, resume: bool) -> Path | None:
    """Checkpoint of the first weights, unless they are random or those of a run that is resumed."""
    name = recipe.training.from_checkpoint
    if name is None or resume:
        return None
    return Path(name)


def _train(
    prepared: _Prepared,
    run: RunDirectory,
    clock: Clock,
    progress: RunProgress,
    interruption: Interruption,
    resume: bool,
) -> Outcome | None:
    recipe = prepared.recipe
    corpus = prepared.corpus
    tokenizer = prepared.tokenizer
    options = recipe.training
    torch.manual_seed(options.seed)
    model = _model(prepared)
    freeze(model, options.freeze)
    shown = corpus.validation[: chosen(options.validation_sentences)]
    clock.test = len(drawn(corpus.test, options.max_minutes)) / len(shown)
    module = TranslationModule(model, options, tokenizer, shown, clock, progress.watch("validating"))
    if options.max_steps == 0 and not resume:
        if _first_process():
            return _finish(prepared, run, module, progress, 0, "max_steps")
        return None
    progress.phase("tokenising")
    examples = _examples(corpus, tokenizer, model, options, run.path)
    # Lightning advertises itself and gives advice on data loaders.
    with silence("lightning.pytorch", "lightning.fabric", module="lightning"):
        held_out = Examples.of(shown, tokenizer, options.max_length, special_tokens(model.config))
        callbacks = [Agreement(examples, held_out), SpeedCheck(prepared.estimate)]
        trainer = _trainer(options, run, progress, interruption, callbacks)
        _fit(trainer, module, examples, held_out, run.last, resume, prepared.estimate.steps)
    if not trainer.is_global_zero:
        return None
    _take_kept(trainer, module, run)
    return _finish(prepared, run, module, progress, trainer.global_step, _ended_by(trainer, module))


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


def _model(prepared: _Prepared) -> Transformer:
    if prepared.weights is None:
        return Transformer(prepared.config)
    model = Transformer(prepared.config)  # with the dropout of the recipe
    model.load_state_dict(load_checkpoint(prepared.weights).model.state_dict())
    return model


def _count(number: int, noun: str) -> str:
    if number == 1:
        return f"{number} {noun}"
    return f"{number} {noun}s"


def _listed(choices: dict[str, Any]) -> str:
    return ", ".join(f"{key.partition('.')[2]} = {value}" for key, value in choices.items())


def model_config(recipe: Recipe, tokenizer: SentencePieceTokenizer) -> Config:
    """Return the recipe's model with the tokenizer's vocabularies."""
    fields = {key: value for key, value in recipe.model.items() if key != "preset"}
    sizes = {
        "source_vocabulary": padded_vocabulary(tokenizer.source_size),
        "target_vocabulary": padded_vocabulary(tokenizer.target_size),
    }
    config = preset(recipe.model["preset"], **fields, **sizes)
    _check_positions(recipe, config)
    return config


def _check_positions(recipe: Recipe, config: Config) -> None:
    if recipe.training.max_length > config.max_positions:
        raise InputError(
            f"training.max_length ({recipe.training.max_length}) is above model.max_positions ({config.max_positions})"
        )


def _first_process() -> bool:
    """Return whether no other process of this run, on this machine or another, was started before this one."""
    return all(os.environ.get(name, "0") == "0" for name in ("LOCAL_RANK", "NODE_RANK", "GROUP_RANK", "SLURM_PROCID"))


def _examples(
    corpus: Corpus, tokenizer: TextTokenizer, model: Transformer, options: TrainingOptions, folder: Path
) -> Examples:
    pairs = corpus.train
    guide = choose_guide(options, corpus.alignments, tokenizer)
    if isinstance(pairs, Shards):
        disk = folder
    else:
        disk = None
    examples = Examples.of(pairs, tokenizer, options.max_length, special_tokens(model.config), guide, disk)
    if _first_process():
        parameters = sum(parameter.numel() for parameter in model.parameters())
        frozen = sum(parameter.numel() for parameter in model.parameters() if not parameter.requires_grad)
        tokens = (examples.sources.lengths.mean(), examples.targets.lengths.mean())
        _log.info(
            "%s of %.1f and %.1f tokens (%d longer left out), a vocabulary of %d, %.2f million parameters%s",
            _count(len(examples), "training pair"), *tokens, len(pairs) - len(examples), model.config.target_vocabulary,
            parameters / 1e6, f" ({frozen / 1e6:.2f} frozen)" if frozen else "",
        )  # fmt: skip
    return examples


def _trainer(
    options: TrainingOptions,
    run: RunDirectory,
    progress: RunProgress,
    interruption: Interruption,
    callbacks: Sequence[Callback],
) -> Trainer:
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
        use_distributed_sampler=False,  # our sampler handles devices
    )


def _check_devices(options: TrainingOptions) -> None:
    """Check that there are such devices.

    Raises:
        InputError: there are none.
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
        Divergence(interruption),
        ModelCheckpoint(run.state, filename="best", monitor=monitor, mode=mode, enable_version_counter=False),
    ]
    callbacks += [LastValidations(run.state, options.average_last)] if options.keep == "average" else []
    callbacks.append(StateSaver(run, interruption))  # after what it saves the state of
    callbacks += [] if options.validate_every else [Pace()]
    if options.patience:
        callbacks.append(EarlyStopping(monitor, patience=options.patience, mode=mode))
    if options.stop_at is not None:
        callbacks.append(TargetReached(monitor, options.stop_at, mode == "min"))
    if options.average:
        # From the first step on: a validation before the first average would see initial weights.
        callbacks.append(EMAWeightAveraging(decay=options.average, use_buffers=False))
    return callbacks


def _fit(
    trainer: Trainer,
    module: TranslationModule,
    examples: Examples,
    held_out: Examples,
    state: Path,
    resume: bool,
    foreseen: float | None,
) -> None:
    options = module.options
    rank = trainer.global_rank
    world = trainer.world_size
    batch_tokens = chosen(options.batch_tokens)
    loaders = [
        Loader(
            examples,
            TokenBatches(examples.lengths, batch_tokens, options.seed, rank, world, most_rows=options.batch_pairs),
        ),
        Loader(held_out, TokenBatches(held_out.lengths, batch_tokens, 0, rank, world, shuffle=False)),
    ]
    if trainer.is_global_zero:
        _announce(options, len(loaders[0]), len(module.validation), foreseen)
    try:
        # What Lightning wrote is read back without unpickling anything but tensors and plain values.
        trainer.fit(module, loaders[0], loaders[1], ckpt_path=state if resume else None, weights_only=True)
    except (pickle.UnpicklingError, EOFError, KeyError) as error:
        if not resume:
            raise
        reason = str(error).split(". ")[0].splitlines()[0]
        raise InputError(f"{state} cannot be resumed from ({reason}): start again with --force") from error
    except RuntimeError as error:
        if world == 1 or (found := lost(error, state.exists())) is None:
            raise
        raise found from error


def _announce(options: TrainingOptions, batches: int, sentences: int, foreseen: float | None) -> None:
    """Log the planned run."""
    steps = math.ceil(batches / options.accumulate)
    ends = {
        "minute": options.max_minutes,
        "step": options.max_steps,
        "epoch": options.max_epochs,
    }
    until = " or ".join(f"{value:g} {unit}{'' if value == 1 else 's'}" for unit, value in ends.items() if value)
    if options.validate_every:
        every = f"every {_count(options.validate_every, 'step')}"
    else:
        every = f"at most {MOST + 1} times"
    _log.info(
        "%s an epoch; validates %s, on %s; ends after %s%s%s",
        _count(steps, "step"), every, _count(sentences, "sentence"), until,
        ", the test included" if options.max_minutes else "",
        "" if foreseen is None else f"; about {_count(round(foreseen), 'step')}",
    )  # fmt: skip


def _take_kept(trainer: Trainer, module: TranslationModule, run: RunDirectory) -> None:
    """Load the weights that the recipe selects into the module, and return their description."""
    if isinstance(trainer.strategy, Sharded):  # the module has a shard only
        module.model = Transformer(module.model.config)
    # With a moving average, all states have that.
    if module.options.keep == "average":
        module.load_state_dict(_average(trainer, run))
        return
    best = trainer.checkpoint_callback
    assert isinstance(best, ModelCheckpoint)
    kept = run.last
    if module.options.keep == "best" and best.best_model_path:
        kept = Path(best.best_model_path)
    state = torch.load(kept, map_location="cpu", weights_only=True)
    module.load_state_dict(state["state_dict"])
    if kept != run.last and best.best_model_score is not None:
        figure = module.options.monitor
        value = float(best.best_model_score)
        _log.info("kept step %d of %d: %s", state["global_step"], trainer.global_step, _figure(figure, value))


def _average(trainer: Trainer, run: RunDirectory) -> dict[str, torch.Tensor]:
    """Return the average of the run's last validations, as weights of the module."""
    (kept,) = (callback for callback in trainer.checkpoint_callbacks if isinstance(callback, LastValidations))
    states = kept.states(run.last)
    steps = [state["global_step"] for state in states]
    if len(steps) == 1:
        _log.warning("the run validated at its end only: nothing is averaged; set training.validate_every lower")
    else:
        _log.info("kept the average of the weights after steps %s", ", ".join(map(str, steps)))
    return average_weights([state["state_dict"] for state in states])


def _figure(monitor: str, value: float) -> str:
    """Return a validation figure as people read it."""
    if monitor == "exact":
        return f"exact match {100 * value:.1f}%"
    if monitor == "loss":
        return f"loss {value:.3f}"
    return f"{ {'bleu': 'BLEU', 'chrf': 'chrF'}[monitor] } {value:.2f}"


def _finish(
    prepared: _Prepared, run: RunDirectory, module: TranslationModule, progress: RunProgress, steps: int, ended_by: str
) -> Outcome:
    """Judge the model on the test split and write the checkpoint."""
    recipe = prepared.recipe
    corpus = prepared.corpus
    clock = module.clock
    tested = drawn(corpus.test, recipe.training.max_minutes)
    if len(tested) < len(corpus.test):
        _log.info("the test is on %d of %d sentences, always the same", len(tested), len(corpus.test))
    test = judge(TorchEngine(module.model), prepared.tokenizer, tested, progress.watch("testing"))
    progress.phase("saving")
    held_out: dict[str, str] = {}
    for source, target in [*corpus.test, *corpus.validation]:
        held_out.setdefault(source, target)
    shown = list(held_out.items())[:MAX_SENTENCES]
    recordings = [source.vectors for source, _ in shown if isinstance(source, Recording)][:MAX_RECORDINGS]
    shown = shown[: len(recordings) or None]
    report: dict[str, Any] = {
        "recipe": recipe.to_json(),
        "corpus": {name: len(getattr(corpus, name)) for name in ("train", "validation", "test")},
        "steps": steps,
        "seconds": round(clock.seconds, 1),
        "test": test.to_json(),
        "torch": torch.__version__,
        "lightning": lightning.__version__,
    }
    save_checkpoint(
        run.checkpoint,
        module.model.cpu().eval(),
        run.tokenizer,
        [] if recordings else [source for source, _ in shown],
        report,
        references=[target for _, target in shown],
        generation=prepared.generation,
        features=recordings,
        replace=True,
    )
    if run.last.exists():
        run.write_end(recipe.training, ended_by, steps, test.bleu)
    return Outcome(run.checkpoint, steps, clock.seconds, test)
