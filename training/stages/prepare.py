"""The first stage of a run: corpus, tokenizer and model, with every value of the recipe chosen."""

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
from txport.training.corpora import Corpus
from txport.training.fitting import fit
from txport.training.recipe import Recipe, chosen
from txport.training.run.directory import RunDirectory
from txport.training.run.progress import RunProgress
from txport.training.run.starting import Start, check_fit, check_positions, freeze
from txport.training.speed_estimate import SpeedEstimate
from txport.training.spoken.recordings import check_vectors, texts_of
from txport.training.tokenizers import load_tokenizer, padded_vocabulary, train_tokenizer

_log = logging.getLogger("txport")


def is_first_process() -> bool:
    """Return whether no other process of this run, on this machine or another, was started before this one."""
    return all(os.environ.get(name, "0") == "0" for name in ("LOCAL_RANK", "NODE_RANK", "GROUP_RANK", "SLURM_PROCID"))


@dataclass(frozen=True)
class RunContext:
    """Directories and display of a run.

    Attributes:
        directory: the directory of the run.
        data: the directory of relative file names of the corpus.
        progress: the display.
        force: replace a checkpoint or a run that exists.
    """

    directory: RunDirectory
    data: Path
    progress: RunProgress
    force: bool

    def check(self) -> None:
        """Check that a new run may begin; see `RunPaths.check`."""
        if is_first_process():
            self.directory.check(self.force)

    def corpus(self, recipe: Recipe) -> Corpus:
        """Read the corpus."""
        self.progress.phase("reading the corpus")
        return corpora.load(recipe.corpus, self.data, recipe.tokenizer)

    def begin(self, recipe: Recipe, corpus: Corpus) -> SpeedEstimate:
        """Choose the unset values of the recipe and make the directory of the run, in the first process only."""
        estimate = SpeedEstimate()
        if is_first_process():
            recipe, choices = fit(recipe, texts_of(corpus.train), estimate)
            if choices:
                _log.info("chosen for %s: %s", plural(len(corpus.train), "training pair"), _listed(choices))
            self.directory.start(recipe)
        return estimate

    def train_tokenizer(self, corpus: Corpus) -> None:
        """Train the tokenizer of a run without one, in the first process; others wait for it."""
        directory = self.directory
        if is_first_process() and not directory.tokenizer.exists():
            self.progress.phase("training the tokenizer")
            train_tokenizer(texts_of(corpus.train), directory.stored().tokenizer, directory.tokenizer)
        directory.wait_for_tokenizer()


@dataclass(frozen=True)
class Run:
    """A run before its first step, or before the next step of an interrupted one.

    Everything that can be refused without the corpus is refused before the corpus is read, and the directory of the
    run is made only then: a start that fails leaves nothing.

    Attributes:
        directory: the directory of the run.
        recipe: the recipe, without unset values.
        corpus: the corpus.
        tokenizer: the tokenizer of the model.
        config: the model.
        generation: settings of the search that the first weights were imported with.
        weights: the checkpoint of the first weights; None for random weights and for a run that is resumed.
        resumed: whether the run continues from its saved state.
        estimate: measured speed of this machine.
    """

    directory: RunDirectory
    recipe: Recipe
    corpus: Corpus
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
        """Return a new run with the weights, the model and the tokenizer of a checkpoint."""
        context.check()
        if is_first_process():
            start = Start.read(recipe, checkpoint)
            check_positions(recipe, start.config)
            with torch.device("meta"):  # names only
                freeze(Transformer(start.config), recipe.training.freeze)
        corpus = context.corpus(recipe)
        estimate = SpeedEstimate()
        if is_first_process():
            check_fit(start.tokenizer(), start.config.unk_id, texts_of(corpus.train), checkpoint)
            _log.info("continues from %s with its model and tokenizer", checkpoint)
            estimate = context.begin(start.recipe(recipe), corpus)
            start.keep(context.directory.path)
        context.directory.wait_for_tokenizer()
        return cls._ready(context.directory.stored(), context, corpus, weights=checkpoint, estimate=estimate)

    @classmethod
    def resumed_from(cls, recipe: Recipe, context: RunContext) -> "Run":
        """Return the run of a directory, which continues from its saved state with the limits of this recipe."""
        # Each process for itself: the recipe that the first one writes may come too late for the others.
        recipe = context.directory.resume(recipe, write=is_first_process())
        corpus = context.corpus(recipe)
        context.train_tokenizer(corpus)
        return cls._ready(recipe, context, corpus, resumed=True)

    @classmethod
    def _ready(cls, recipe: Recipe, context: RunContext, corpus: Corpus, **origin: Any) -> "Run":
        """Return the run of a directory that has its tokenizer."""
        directory = context.directory
        check_vectors(recipe.model, corpus.train)
        start = directory.start_of(recipe)
        if start is not None:
            return cls(directory, recipe, corpus, start.tokenizer(), start.config, start.generation, **origin)
        tokenizer = load_tokenizer(directory.tokenizer)
        _warn_of_few_pieces(recipe, tokenizer)
        return cls(directory, recipe, corpus, tokenizer, model_config(recipe, tokenizer), **origin)

    def model(self) -> Transformer:
        """Return the model with its first weights and the dropout of the recipe."""
        model = Transformer(self.config)
        if self.weights is not None:
            model.load_state_dict(load_checkpoint(self.weights).model.state_dict())
        return model


def _warn_of_few_pieces(recipe: Recipe, tokenizer: SentencePieceTokenizer) -> None:
    wanted = recipe.tokenizer.vocabulary
    pieces = min(tokenizer.source_size, tokenizer.target_size)
    if is_first_process() and recipe.tokenizer.algorithm in ("bpe", "unigram") and pieces < chosen(wanted):
        _log.warning("tokenizer.vocabulary is %d, but the corpus gives %d pieces only: these are taken", wanted, pieces)


def model_config(recipe: Recipe, tokenizer: SentencePieceTokenizer) -> Config:
    """Return the recipe's model with the tokenizer's vocabularies."""
    fields = {key: value for key, value in recipe.model.items() if key != "preset"}
    sizes = {
        "source_vocabulary": padded_vocabulary(tokenizer.source_size),
        "target_vocabulary": padded_vocabulary(tokenizer.target_size),
    }
    config = preset(recipe.model["preset"], **fields, **sizes)
    check_positions(recipe, config)
    return config


def _listed(choices: dict[str, Any]) -> str:
    return ", ".join(f"{key.partition('.')[2]} = {value}" for key, value in choices.items())
