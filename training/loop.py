"""A whole training run, from recipe to checkpoint."""

import logging
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
from txport.models.checkpoint import save_checkpoint
from txport.models.config import Config, preset
from txport.models.transformer import Transformer
from txport.runtime.errors import InputError
from txport.runtime.libraries import quiet
from txport.runtime.text.tokenizer import SentencePieceTokenizer
from txport.training import corpora
from txport.training.batching import Loader, TokenBatches
from txport.training.corpora import Corpus, Pair
from txport.training.evaluation import Scores, score, translate
from txport.training.examples import Examples
from txport.training.lightning_module import TranslationModule
from txport.training.progress import RunProgress
from txport.training.recipe import Recipe, TrainingOptions
from txport.training.run_directory import RunDirectory
from txport.training.tokenizers import load_tokenizer, padded_vocabulary, train_tokenizer
from txport.training.torch_engine import TorchEngine

_log = logging.getLogger("txport")

# Held-out sources that a checkpoint carries, for calibration and verification of what is made of it.
MOST_SENTENCES = 2_000


@dataclass(frozen=True)
class Outcome:
    """A finished run.

    Attributes:
        checkpoint: where it was written.
        steps: optimizer steps.
        seconds: wall-clock time of the steps and validations, without reading and tokenising the corpus.
        test: figures on the test split.
    """

    checkpoint: Path
    steps: int
    seconds: float
    test: Scores


def train(recipe: Recipe, output: Path, data: Path, *, resume: bool = False, force: bool = False) -> Outcome | None:
    """Train as a recipe says and write a txport checkpoint.

    Args:
        recipe: what to do.
        output: the checkpoint directory to write; `output`.run next to it holds logs and what `resume` needs.
        data: where relative file names of the recipe's corpus are.
        resume: continue an interrupted run.
        force: replace a checkpoint or a run that exists.

    Returns:
        what came out; None in processes that only helped (all devices but the first).

    Raises:
        InputError: the output exists, or the corpus or an option cannot be used.
        MissingLibrary: see `txport.training.corpora.load`.
    """
    run, first = RunDirectory(output), _first_process()
    if first:
        run.resume(recipe) if resume else run.start(recipe, force)
    corpus = corpora.load(recipe.corpus, data)
    if first and not run.tokenizer.exists():
        train_tokenizer(corpus.train, recipe.tokenizer, run.tokenizer)
    run.wait_for_tokenizer()
    tokenizer = load_tokenizer(run.tokenizer)
    options = recipe.training
    torch.manual_seed(options.seed)
    model = Transformer(model_config(recipe, tokenizer))
    shown = corpus.validation[: options.validation_sentences]
    module = TranslationModule(model, options, tokenizer, shown)
    # Lightning advertises itself and gives advice on data loaders.
    with quiet("lightning.pytorch", "lightning.fabric", module="lightning"):
        trainer = _trainer(options, run)
        _fit(trainer, module, _examples(corpus.train, tokenizer, model, options), shown, run.last if resume else None)
    if not trainer.is_global_zero:
        return None
    _take_best(trainer, module)
    return _finish(recipe, run, corpus, module, tokenizer, trainer.global_step)


def model_config(recipe: Recipe, tokenizer: SentencePieceTokenizer) -> Config:
    """The recipe's model with the tokenizer's vocabularies."""
    fields = {key: value for key, value in recipe.model.items() if key != "preset"}
    sizes = {
        "source_vocabulary": padded_vocabulary(tokenizer.source_pieces),
        "target_vocabulary": padded_vocabulary(tokenizer.target_pieces),
    }
    config = preset(recipe.model["preset"], **fields, **sizes)
    if recipe.training.max_length > config.max_positions:
        raise InputError(
            f"training.max_length ({recipe.training.max_length}) is above model.max_positions ({config.max_positions})"
        )
    return config


def _first_process() -> bool:
    """Whether no other process of this run, on this machine or another, was started before this one."""
    return all(os.environ.get(name, "0") == "0" for name in ("LOCAL_RANK", "NODE_RANK", "GROUP_RANK", "SLURM_PROCID"))


def _examples(
    pairs: Sequence[Pair], tokenizer: SentencePieceTokenizer, model: Transformer, options: TrainingOptions
) -> Examples:
    examples = Examples.of(pairs, tokenizer, options.max_length)
    if _first_process():
        parameters = sum(parameter.numel() for parameter in model.parameters())
        tokens = (examples.sources.lengths.mean(), examples.targets.lengths.mean())
        _log.info(
            "%d training pairs of %.1f and %.1f tokens (%d longer ones left out), %d pieces, %.2f million parameters",
            len(examples), *tokens, len(pairs) - len(examples), tokenizer.target_pieces, parameters / 1e6,
        )  # fmt: skip
    return examples


def _trainer(options: TrainingOptions, run: RunDirectory) -> Trainer:
    try:
        return Trainer(
            accelerator=options.accelerator,
            devices=options.devices,
            num_nodes=options.nodes,
            strategy=options.strategy,
            precision=options.precision,
            max_steps=options.max_steps or -1,
            max_epochs=options.max_epochs or -1,
            accumulate_grad_batches=options.accumulate,
            gradient_clip_val=options.clip_norm,
            val_check_interval=options.validate_every and options.validate_every * options.accumulate,
            check_val_every_n_epoch=None if options.validate_every else 1,
            num_sanity_val_steps=0,
            log_every_n_steps=10,
            callbacks=_callbacks(options, run),
            logger=[CSVLogger(run.logs, name="csv"), TensorBoardLogger(run.logs, name="tensorboard", version="")],
            use_distributed_sampler=False,  # ours knows the devices
            enable_progress_bar=False,
            enable_model_summary=False,
        )
    except (lightning.fabric.utilities.exceptions.MisconfigurationException, ValueError, RuntimeError) as error:
        raise InputError(f"these devices cannot be used: {' '.join(str(error).split())}") from error


def _callbacks(options: TrainingOptions, run: RunDirectory) -> list[Callback]:
    monitor, mode = f"validation/{options.monitor}", "min" if options.monitor == "loss" else "max"
    callbacks: list[Callback] = [
        RunProgress(),
        ModelCheckpoint(run.state, filename="best", monitor=monitor, mode=mode, enable_version_counter=False),
        # Of its own: `save_last` would only follow the best.
        ModelCheckpoint(run.state, filename=run.last.stem, enable_version_counter=False),
    ]
    if options.patience:
        callbacks.append(EarlyStopping(monitor, patience=options.patience, mode=mode))
    if options.average:
        # From the first step on: a validation before the first average would see initial weights.
        callbacks.append(EMAWeightAveraging(decay=options.average, use_buffers=False))
    return callbacks


def _fit(
    trainer: Trainer, module: TranslationModule, examples: Examples, validation: Sequence[Pair], resume: Path | None
) -> None:
    options, tokenizer = module.options, module.tokenizer
    rank, world = trainer.global_rank, trainer.world_size
    held_out = Examples.of(validation, tokenizer, options.max_length)
    loaders = [
        Loader(examples, TokenBatches(examples.lengths, options.batch_tokens, options.seed, rank, world)),
        Loader(held_out, TokenBatches(held_out.lengths, options.batch_tokens, 0, rank, world, shuffle=False)),
    ]
    try:
        # What Lightning wrote is read back without unpickling anything but tensors and plain values.
        trainer.fit(module, loaders[0], loaders[1], ckpt_path=resume, weights_only=True)
    except (pickle.UnpicklingError, EOFError, KeyError) as error:
        if resume is None:
            raise
        reason = str(error).split(". ")[0].splitlines()[0]
        raise InputError(f"{resume} cannot be resumed from ({reason}): start again with --force") from error


def _take_best(trainer: Trainer, module: TranslationModule) -> None:
    """Put the weights that validated best into the module, if that is what the recipe keeps."""
    best = getattr(trainer.checkpoint_callback, "best_model_path", "")
    if module.options.keep == "best" and best:
        state = torch.load(best, map_location="cpu", weights_only=True)
        module.load_state_dict(state["state_dict"])


def _finish(
    recipe: Recipe,
    run: RunDirectory,
    corpus: Corpus,
    module: TranslationModule,
    tokenizer: SentencePieceTokenizer,
    steps: int,
) -> Outcome:
    """Judge the model on the test split and write the checkpoint."""
    seconds = module.seconds
    test = score(
        translate(TorchEngine(module.model), tokenizer, [source for source, _ in corpus.test]),
        [target for _, target in corpus.test],
    )
    held_out: dict[str, str] = {}
    for source, target in [*corpus.test, *corpus.validation]:
        held_out.setdefault(source, target)
    shown = list(held_out.items())[:MOST_SENTENCES]
    report: dict[str, Any] = {
        "recipe": recipe.to_json(),
        "corpus": {name: len(getattr(corpus, name)) for name in ("train", "validation", "test")},
        "steps": steps,
        "seconds": round(seconds, 1),
        "test": test.to_json(),
        "torch": torch.__version__,
        "lightning": lightning.__version__,
    }
    save_checkpoint(
        run.checkpoint,
        module.model.cpu().eval(),
        run.tokenizer,
        [source for source, _ in shown],
        report,
        references=[target for _, target in shown],
        replace=True,
    )
    return Outcome(run.checkpoint, steps, seconds, test)
