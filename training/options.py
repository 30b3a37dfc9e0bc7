"""Options of a recipe: the sections `[corpus]`, `[tokenizer]` and `[training]`, with help and ranges of values."""

import operator
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

# Help of values that a recipe may leave unset, see `txport.training.fitting`.
FITTED = "none: chosen to fit the corpus and the time"
# Limits of values in the metadata of an option: the words for messages, and the test.
RANGES: dict[str, tuple[str, Callable[[float, float], bool]]] = {
    "least": ("at least", operator.ge),
    "above": ("above", operator.gt),
    "below": ("below", operator.lt),
    "most": ("at most", operator.le),
}


def option(
    default: Any,
    help: str,
    *,
    least: float | None = None,
    above: float | None = None,
    below: float | None = None,
    most: float | None = None,
) -> Any:
    """Return a dataclass field with help text and the range of its value."""
    metadata = {"help": help, "least": least, "above": above, "below": below, "most": most}
    return field(default=default, metadata=metadata)


@dataclass(frozen=True, kw_only=True)
class BuiltinOptions:
    """Options of `kind = "builtin"`: generated corpus, see `txport.training.spoken.corpus`."""

    seed: int = option(1, "another seed gives other sentences", least=0)
    train: int = option(100_000, "training sentences", least=1)
    validation: int = option(1_000, "validation sentences", least=1)
    test: int = option(1_000, "test sentences", least=1)


@dataclass(frozen=True, kw_only=True)
class NamesOptions:
    """Options of `kind = "names"`: generated sentences with names to copy, see `txport.training.spoken.names`."""

    seed: int = option(1, "another seed gives other sentences of the same names", least=0)
    train: int = option(4_000, "training sentences", least=1)
    validation: int = option(200, "validation sentences, with names that do not occur in training", least=1)
    test: int = option(500, "test sentences, of yet other names", least=1)


@dataclass(frozen=True, kw_only=True)
class DigitsOptions:
    """Options of `kind = "digits"`: generated recordings of spoken digits, see `txport.training.spoken.digits`."""

    seed: int = option(1, "another seed gives other recordings", least=0)
    train: int = option(2_000, "training recordings", least=1)
    validation: int = option(100, "validation recordings, of other speakers", least=1)
    test: int = option(200, "test recordings, of yet other speakers", least=1)


@dataclass(frozen=True, kw_only=True)
class Splits:
    """Options of all corpora that are not generated."""

    validation: str | None = option(None, "as `train`, for validation; none: held out of the training pairs")
    test: str | None = option(None, "as `train`, for the test; none: held out of the training pairs")
    unique_sources: bool = option(False, "of pairs with the same source, the first only")
    first: int | None = option(None, "pairs to take from the beginning of each file or split; none: all", least=1)
    held_out: int | None = option(
        None, "pairs to hold out for each split that is none; none: one of twenty, at most 1,000", least=1
    )


@dataclass(frozen=True, kw_only=True)
class ParallelOptions(Splits):
    """Options of `kind = "parallel"`: pairs of files with names `train` + "." + language."""

    train: str = option("train", "file name without the language")
    source_language: str = option("en", "ending of the source files")
    target_language: str = option("de", "ending of the target files")
    alignments: str | None = option(
        None, "ending of the file that aligns the words of `train`, for training.guided_attention; none: there is none"
    )


@dataclass(frozen=True, kw_only=True)
class TableOptions(Splits):
    """Options of `kind = "table"`: files of tab-separated columns. txport contains small ones, see `RECIPES`."""

    train: str = option("train.tsv", "file name")
    source_column: int = option(1, "column of the source, counted from 1", least=1)
    target_column: int = option(2, "column of the target, counted from 1", least=1)
    header: bool = option(False, "skip the first line of each file, the names of the columns")
    alignment_column: int | None = option(
        None, "column of `train` that aligns its words, for training.guided_attention; none: there is none", least=1
    )


@dataclass(frozen=True, kw_only=True)
class DatasetsOptions(Splits):
    """Options of `kind = "datasets"`: a data set of the Hugging Face Hub."""

    name: str = option("", "name on the Hub, or a local directory")
    configuration: str | None = option(None, "configuration of the data set, for example de-en")
    train: str = option("train", "name of the training split")
    source_field: str = option("translation.en", "field of the source, dots lead into it")
    target_field: str = option("translation.de", "field of the target")


@dataclass(frozen=True, kw_only=True)
class ShardsOptions(Splits):
    """Options of `kind = "shards"`: JSONL or Parquet files of any number and size, plain, .gz or .zst, streamed."""

    train: str = option("train", "file, directory, pattern or URL of the training pairs")
    source_column: str = option("source", "column of the source")
    target_column: str = option("target", "column of the target")


@dataclass(frozen=True, kw_only=True)
class FeaturesOptions(Splits):
    """Options of `kind = "features"`: feature vectors and texts, .npz (`txport.runtime.features`) or .parquet files."""

    train: str = option("train.npz", "file name")
    feature_column: str = option("features", "column of .parquet with the vectors, a list of lists of numbers")
    text_column: str = option("text", "column of .parquet with the texts")


CorpusOptions: TypeAlias = (
    BuiltinOptions
    | NamesOptions
    | DigitsOptions
    | ParallelOptions
    | TableOptions
    | DatasetsOptions
    | ShardsOptions
    | FeaturesOptions
)
# Pairs of options for the two sides of a pair, which must differ.
SIDES = (
    ("source_language", "target_language"),
    ("source_column", "target_column"),
    ("source_field", "target_field"),
    ("feature_column", "text_column"),
)
CORPORA: dict[str, type[CorpusOptions]] = {
    "builtin": BuiltinOptions,
    "names": NamesOptions,
    "parallel": ParallelOptions,
    "table": TableOptions,
    "datasets": DatasetsOptions,
    "shards": ShardsOptions,
    "digits": DigitsOptions,
    "features": FeaturesOptions,
}
# Kinds of corpora that are generated or downloaded.
WITHOUT_FILES = ("builtin", "names", "digits", "datasets")


def kind_of_corpus(corpus: CorpusOptions) -> str:
    """Return the kind of a section `[corpus]`, a key of `CORPORA`."""
    return next(name for name, options in CORPORA.items() if isinstance(corpus, options))


@dataclass(frozen=True, kw_only=True)
class TokenizerOptions:
    """Section `[tokenizer]`: SentencePiece models."""

    vocabulary: int | None = option(
        None, f"pieces of each model at most, the embedding is padded to a multiple of 8; {FITTED}", least=16
    )
    joint: bool = option(True, "one model for both sides")
    algorithm: Literal["bpe", "unigram", "word", "char"] = option(
        "bpe", "how pieces are chosen; word: what spaces part, char: single characters"
    )
    minimum_count: int = option(1, "of algorithm word: rarer words are unknown", least=1)
    space_punctuation: bool = option(
        False, "a space before each of , . ! ? and references compared so too; for algorithm word"
    )
    lower_case: bool = option(False, "fold case, for tasks whose target has none")
    byte_fallback: bool = option(False, "spell unseen characters as bytes, for 256 more pieces")
    character_coverage: float = option(
        1.0, "share of characters that get a piece; 0.9995 for Chinese or Japanese", above=0
    )


@dataclass(frozen=True, kw_only=True)
class TrainingOptions:
    """Section `[training]`: duration, speed, validation and devices."""

    seed: int = option(1, "for initial weights, order of batches and dropout", least=0)
    max_steps: int | None = option(None, "optimizer steps; 0 only with from_checkpoint", least=0)
    max_epochs: int | None = option(None, "passes over the training pairs", above=0)
    max_minutes: float | None = option(None, "wall-clock time until the checkpoint is there, test included", above=0)
    from_checkpoint: str | None = option(
        None, "checkpoint to fine-tune (tx-train --from): its weights, model, tokenizer and languages"
    )
    freeze: tuple[str, ...] = option(
        (), 'parameters that stay unchanged, for example ["source_embedding", "encoder.*"]'
    )
    batch_tokens: int | None = option(
        None, f"most tokens of a batch on one device, padding included, on the longer side; {FITTED}", least=8
    )
    batch_pairs: int | None = option(None, "most pairs of a batch on one device; none: any number", least=1)
    accumulate: int = option(1, "batches for one optimizer step", least=1)
    max_length: int = option(256, "longest source or target in tokens; longer pairs are left out of training", least=8)
    learning_rate: float | None = option(None, f"its peak, at the end of the warm-up; {FITTED}", above=0)
    schedule: Literal["inverse_sqrt", "constant"] = option(
        "inverse_sqrt", "learning rate after the warm-up: decay by the inverse square root of the step, or none"
    )
    warmup_steps: int | None = option(None, f"steps of linear warm-up; {FITTED}", least=1)
    cooldown: float | None = option(
        None,
        f"last share of the run over which the learning rate falls to zero, 0 for none; {FITTED}",
        least=0,
        below=1,
    )
    label_smoothing: float = option(0.1, "probability mass that is spread over the vocabulary", least=0, below=1)
    scheduled_sampling: Literal["none", "linear", "exponential", "inverse_sigmoid"] = option(
        "none", "how the decoder comes to read its own tokens instead of the true ones (Bengio et al. 2015)"
    )
    sampling_start: int = option(0, "steps with true tokens only, before the schedule begins", least=0)
    sampling_least: float = option(0.5, "least probability of a true token in the schedule", least=0, most=1)
    sampling_steps: float | None = option(
        None,
        "time constant T of the schedule after i steps: 1 - i / T, exp(-i / T) or T / (T + exp(i / T)); " + FITTED,
        least=1,
    )
    guided_attention: Literal["none", "diagonal", "alignments"] = option(
        "none",
        "target of the alignment heads: the diagonal, or the corpus' alignments",
    )
    guided_weight: float = option(0.1, "of the loss that teaches them, beside cross-entropy; 0 for none", least=0)
    guided_width: float = option(0.2, "of the diagonal, in parts of a sentence (Tachibana et al. 2017: g)", above=0)
    clip_norm: float = option(1.0, "largest norm of the gradient", above=0)
    average: float = option(0.0, "decay of the exponential moving average of the weights; 0 for none", least=0, below=1)
    validate_every: int | None = option(
        None,
        "steps between validations; none: so that they take a tenth of the time at most",
        above=0,
    )
    validation_sentences: int | None = option(None, f"most sentences to decode at each validation; {FITTED}", least=1)
    monitor: Literal["bleu", "chrf", "exact", "loss"] = option("bleu", "what decides early stopping and `keep`")
    patience: int = option(0, "validations without improvement before the run stops; 0 for never", least=0)
    stop_at: float | None = option(None, "value of `monitor` that stops the run when two validations in a row reach it")
    keep: Literal["best", "last", "average"] | None = option(
        None,
        "which weights become the checkpoint, average being that of the last validations; none: the last of a run that "
        "cools down, else the best",
    )
    average_last: int = option(5, "with keep = average: number of validations whose weights are averaged", least=2)
    precision: Literal["32-true", "bf16-mixed", "16-mixed"] = option("32-true", "arithmetic, as Lightning names it")
    accelerator: Literal["auto", "cpu", "gpu", "cuda", "mps", "tpu"] = option("auto", "as Lightning names it")
    devices: str = option("auto", "how many devices of each node, or which: 2, 0,1 ...")
    nodes: int = option(1, "machines", least=1)
    strategy: str = option("auto", "how devices work together: auto, ddp, fsdp ...")
