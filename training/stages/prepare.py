"""First stage of a run: corpus, tokenizer and model, and the choice of unset values of the recipe."""

import logging
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from txport.models.checkpoint import load_checkpoint
from txport.models.config import Config, preset
from txport.models.description import PLAIN
from txport.models.transformer import Transformer
from txport.runtime.bundle.schema import Generation
from txport.runtime.console.words import plural
from txport.runtime.text.tokenizer import SentencePieceTokenizer, TextTokenizer
from txport.training import corpora
from txport.training.corpora import ParallelCorpus
from txport.training.fitting import fit
from txport.training.recipe import Recipe, require_fitted
from txport.training.run.directory import RunDirectory
from txport.training.run.progress import RunProgress
from txport.training.run.starting import Start, check_fit, check_positions, freeze
from txport.training.speed_estimate import SpeedEstimate
from txport.training.spoken.recordings import check_vectors, texts_of
from txport.training.tokenizers import load_tokenizer, padded_vocabulary, train_tokenizer

_log = logging.getLogger("txport")


def is_first_process() -> bool:
    """Return whether this is the first process of the run, over all machines."""
    return all(os.environ.get(name, "0") == "0" for name in ("LOCAL_RANK", "NODE_RANK", "GROUP_RANK", "SLURM_PROCID"))


@dataclass(frozen=True)
class RunContext:
    """Directories and progress display of a run.

    Attributes:
        directory: directory of the run.
        data: base directory of relative file names in the corpus.
        progress: progress display.
        force: replace an existing checkpoint or run.
    """

    directory: RunDirectory
    data: Path
    progress: RunProgress
    force: bool

    def check(self) -> None:
        """Check that a new run may start; see `RunPaths.check`."""
        if is_first_process():
            self.directory.check(self.force)

    def corpus(self, recipe: Recipe) -> ParallelCorpus:
        """Read the corpus."""
        self.progress.phase("reading the corpus")
        return corpora.load(recipe.corpus, self.data, recipe.tokenizer)

    def begin(self, recipe: Recipe, corpus: ParallelCorpus) -> SpeedEstimate:
        """Choose unset values of the recipe and create the directory of the run, in the first process only."""
        estimate = SpeedEstimate()
        if is_first_process():
            recipe, choices = fit(recipe, texts_of(corpus.train), estimate)
            if choices:
                _log.info("chosen for %s: %s", plural(len(corpus.train), "training pair"), _as_text(choices))
            self.directory.start(recipe)
        return estimate

    def train_tokenizer(self, corpus: ParallelCorpus) -> None:
        """Train the tokenizer in the first process. Other processes wait for it."""
        directory = self.directory
        if is_first_process() and not directory.tokenizer.exists():
            self.progress.phase("training the tokenizer")
            train_tokenizer(texts_of(corpus.train), directory.stored().tokenizer, directory.tokenizer)
        directory.wait_for_tokenizer()


@dataclass(frozen=True)
class Run:
    """Run before its first step, or before the next step of an interrupted run.

    All checks that do not need the corpus are made before it is read, and the directory is created after them. So a
    start that fails leaves no files.

    Attributes:
        directory: directory of the run.
        recipe: the recipe, without unset values.
        corpus: the corpus.
        tokenizer: of the model.
        config: of the model.
        generation: search settings of an imported checkpoint.
        weights: checkpoint for the first weights; None for random weights or a resumed run.
        resumed: whether the run continues from its saved state.
        estimate: measured speed of this machine.
    """

    directory: RunDirectory
    recipe: Recipe
    corpus: ParallelCorpus
    tokenizer: TextTokenizer
    config: Config
    generation: Generation = PLAIN
    weights: Path | None = None
    resumed: bool = False
    estimate: SpeedEstimate = field(default_factory=SpeedEstimate)

    @classmethod
    def fresh(cls, recipe: Recipe, context: RunContext) -> "Run":
        """Return a new run with random weights."""
        context.check()
        corpus = context.corpus(recipe)
        estimate = context.begin(recipe, corpus)
        context.train_tokenizer(corpus)
        return cls._ready(context.directory.stored(), context, corpus, estimate=estimate)

    @classmethod
    def continued(cls, recipe: Recipe, context: RunContext, checkpoint: Path) -> "Run":
        """Return a new run that fine-tunes a checkpoint, with its model and tokenizer."""
        context.check()
        if is_first_process():
            start = Start.read(recipe, checkpoint)
            check_positions(recipe, start.config)
            with torch.device("meta"):  # only names are needed
                freeze(Transformer(start.config), recipe.training.freeze)
        corpus = context.corpus(recipe)
        estimate = SpeedEstimate()
        if is_first_process():
            check_vectors(start.recipe(recipe).model, [corpus.train])
            check_fit(start.tokenizer(), start.config.unk_id, texts_of(corpus.train), checkpoint)
            _log.info("continues from %s with its model and tokenizer", checkpoint)
            estimate = context.begin(start.recipe(recipe), corpus)
            start.keep(context.directory.path)
        context.directory.wait_for_tokenizer()
        return cls._ready(context.directory.stored(), context, corpus, weights=checkpoint, estimate=estimate)

    @classmethod
    def resumed_from(cls, recipe: Recipe, context: RunContext) -> "Run":
        """Return the run in a directory, to continue from its saved state with the limits of this recipe."""
        # In each process separately, since the file from the first process may be written too late for others.
        recipe = context.directory.resume(recipe, write=is_first_process())
        corpus = context.corpus(recipe)
        context.train_tokenizer(corpus)
        return cls._ready(recipe, context, corpus, resumed=True)

    @classmethod
    def _ready(cls, recipe: Recipe, context: RunContext, corpus: ParallelCorpus, **origin: Any) -> "Run":
        """Return the run of a directory that already contains the tokenizer."""
        directory = context.directory
        check_vectors(recipe.model, (corpus.train, corpus.validation, corpus.test))
        start = directory.start_of(recipe)
        if start is not None:
            return cls(directory, recipe, corpus, start.tokenizer(), start.config, start.generation, **origin)
        tokenizer = load_tokenizer(directory.tokenizer)
        _warn_of_few_pieces(recipe, tokenizer)
        return cls(directory, recipe, corpus, tokenizer, model_config(recipe, tokenizer), **origin)

    def model(self) -> Transformer:
        """Return the model with its first weights, and with the recipe's dropout."""
        model = Transformer(self.config)
        if self.weights is not None:
            model.load_state_dict(load_checkpoint(self.weights).model.state_dict())
        return model


def _warn_of_few_pieces(recipe: Recipe, tokenizer: SentencePieceTokenizer) -> None:
    requested = recipe.tokenizer.vocabulary
    pieces = min(tokenizer.source_size, tokenizer.target_size)
    if is_first_process() and recipe.tokenizer.algorithm in ("bpe", "unigram") and pieces < require_fitted(requested):
        _log.warning(
            "tokenizer.vocabulary is %d, but the corpus gives %d pieces only: these are taken", requested, pieces
        )


def model_config(recipe: Recipe, tokenizer: SentencePieceTokenizer) -> Config:
    """Return the config of the recipe's model with the tokenizer's vocabularies."""
    fields = {key: value for key, value in recipe.model.items() if key != "preset"}
    sizes = {
        "source_vocabulary": padded_vocabulary(tokenizer.source_size),
        "target_vocabulary": padded_vocabulary(tokenizer.target_size),
    }
    config = preset(recipe.model["preset"], **fields, **sizes)
    check_positions(recipe, config)
    return config


def _as_text(choices: dict[str, Any]) -> str:
    return ", ".join(f"{key.partition('.')[2]} = {value}" for key, value in choices.items())
