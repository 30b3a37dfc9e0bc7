"""Options of a recipe: the sections `[corpus]`, `[tokenizer]` and `[training]`, with help and ranges of values."""

import operator
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

# Help of values that a recipe may leave unset, see `txport.training.fitting`.
FITTED = "none: chosen to fit the corpus and the time"
# Limits of values in the metadata of an option: the words for messages, and the test.
RANGES: dict[str, tuple[str, Callable[[float, float], bool]]] = {
    "minimum": ("at least", operator.ge),
    "above": ("above", operator.gt),
    "below": ("below", operator.lt),
    "maximum": ("at most", operator.le),
}


def option(
    default: Any,
    help: str,
    *,
    minimum: float | None = None,
    above: float | None = None,
    below: float | None = None,
    maximum: float | None = None,
) -> Any:
    """Return a dataclass field with help text and the range of its value."""
    metadata = {"help": help, "minimum": minimum, "above": above, "below": below, "maximum": maximum}
    return field(default=default, metadata=metadata)


@dataclass(frozen=True, kw_only=True)
class BuiltinOptions:
    """Options of `kind = "builtin"`: generated corpus, see `txport.training.spoken.corpus`."""

    seed: int = option(1, "random seed of the sentences", minimum=0)
    train: int = option(100_000, "training sentences", minimum=1)
    validation: int = option(1_000, "validation sentences", minimum=1)
    test: int = option(1_000, "test sentences", minimum=1)


@dataclass(frozen=True, kw_only=True)
class NamesOptions:
    """Options of `kind = "names"`: generated sentences with names to copy, see `txport.training.spoken.names`."""

    seed: int = option(1, "random seed of the sentences; the names do not depend on it", minimum=0)
    train: int = option(4_000, "training sentences", minimum=1)
    validation: int = option(200, "validation sentences, with names that do not occur in training", minimum=1)
    test: int = option(500, "test sentences, with names that occur in neither", minimum=1)


@dataclass(frozen=True, kw_only=True)
class DigitsOptions:
    """Options of `kind = "digits"`: generated recordings of spoken digits, see `txport.training.spoken.digits`."""

    seed: int = option(1, "random seed of the recordings", minimum=0)
    train: int = option(2_000, "training recordings", minimum=1)
    validation: int = option(100, "validation recordings, by other speakers than in training", minimum=1)
    test: int = option(200, "test recordings, by speakers who occur in neither", minimum=1)


@dataclass(frozen=True, kw_only=True)
class Splits:
    """Options of all corpora that are not generated."""

    validation: str | None = option(None, "validation pairs, named as `train`; none: held out of the training pairs")
    test: str | None = option(None, "test pairs, named as `train`; none: held out of the training pairs")
    unique_sources: bool = option(False, "keep only the first of pairs with the same source")
    first: int | None = option(None, "number of pairs to read from each file or split; none: all", minimum=1)
    held_out: int | None = option(
        None, "pairs to hold out for each split that is none; none: one of twenty, at most 1,000", minimum=1
    )


@dataclass(frozen=True, kw_only=True)
class ParallelOptions(Splits):
    """Options of `kind = "parallel"`: pairs of files with names `train` + "." + language."""

    train: str = option("train", "file name without the language")
    source_language: str = option("en", "ending of the source files")
    target_language: str = option("de", "ending of the target files")
    alignments: str | None = option(
        None, "ending of the file with word alignments of `train`, for training.guided_attention; none: no file"
    )


@dataclass(frozen=True, kw_only=True)
class TableOptions(Splits):
    """Options of `kind = "table"`: files of tab-separated columns. txport contains small ones, see `RECIPES`."""

    train: str = option("train.tsv", "file name")
    source_column: int = option(1, "column of the source, counted from 1", minimum=1)
    target_column: int = option(2, "column of the target, counted from 1", minimum=1)
    header: bool = option(False, "skip the first line of each file, which contains the names of the columns")
    alignment_column: int | None = option(
        None, "column of `train` with word alignments, for training.guided_attention; none: no column", minimum=1
    )


@dataclass(frozen=True, kw_only=True)
class DatasetsOptions(Splits):
    """Options of `kind = "datasets"`: a data set of the Hugging Face Hub."""

    name: str = option("", "name on the Hub, or a local directory")
    configuration: str | None = option(None, "configuration of the data set, for example de-en")
    train: str = option("train", "name of the training split")
    source_field: str = option("translation.en", "field of the source; a dot separates the names of nested fields")
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
        None, f"maximum pieces of each model; embeddings are padded to a multiple of 8; {FITTED}", minimum=16
    )
    joint: bool = option(True, "one model for both sides")
    algorithm: Literal["bpe", "unigram", "word", "char"] = option(
        "bpe", "kind of pieces: bpe or unigram subwords, words between spaces (word), or characters (char)"
    )
    minimum_count: int = option(1, "for algorithm word: rarer words are unknown", minimum=1)
    space_punctuation: bool = option(False, "for algorithm word: add a space before each of , . ! ? also in references")
    lower_case: bool = option(False, "fold case, for tasks whose target has none")
    byte_fallback: bool = option(False, "spell unseen characters as bytes; adds 256 pieces")
    character_coverage: float = option(
        1.0, "share of characters that get a piece; 0.9995 for Chinese or Japanese", above=0
    )


@dataclass(frozen=True, kw_only=True)
class TrainingOptions:
    """Section `[training]`: duration, speed, validation and devices."""

    seed: int = option(1, "random seed of initial weights, order of batches and dropout", minimum=0)
    max_steps: int | None = option(None, "optimizer steps; 0 only with from_checkpoint", minimum=0)
    max_epochs: int | None = option(None, "passes over the training pairs", above=0)
    max_minutes: float | None = option(None, "wall-clock time until the checkpoint is written, with the test", above=0)
    from_checkpoint: str | None = option(
        None, "checkpoint to fine-tune (tx-train --from): its weights, model, tokenizer and languages"
    )
    freeze: tuple[str, ...] = option(
        (), 'parameters that stay unchanged, for example ["source_embedding", "encoder.*"]'
    )
    batch_tokens: int | None = option(
        None, f"maximum tokens of a batch on one device, with padding, on the longer side; {FITTED}", minimum=8
    )
    batch_pairs: int | None = option(None, "maximum pairs of a batch on one device; none: any number", minimum=1)
    accumulate: int = option(1, "batches for one optimizer step", minimum=1)
    max_length: int = option(256, "longest source or target in tokens; longer pairs are not used", minimum=8)
    learning_rate: float | None = option(None, f"peak learning rate, at the end of the warm-up; {FITTED}", above=0)
    schedule: Literal["inverse_sqrt", "constant"] = option(
        "inverse_sqrt", "learning rate after the warm-up: decay by the inverse square root of the step, or none"
    )
    warmup_steps: int | None = option(None, f"steps of linear warm-up; {FITTED}", minimum=1)
    cooldown: float | None = option(
        None,
        f"last share of the run over which the learning rate falls to zero, 0 for none; {FITTED}",
        minimum=0,
        below=1,
    )
    label_smoothing: float = option(0.1, "probability mass that is spread over the vocabulary", minimum=0, below=1)
    scheduled_sampling: Literal["none", "linear", "exponential", "inverse_sigmoid"] = option(
        "none", "schedule by which the decoder reads its predictions instead of true tokens (Bengio et al. 2015)"
    )
    sampling_start: int = option(0, "steps with true tokens only, before the schedule begins", minimum=0)
    sampling_least: float = option(0.5, "minimum probability of a true token in the schedule", minimum=0, maximum=1)
    sampling_steps: float | None = option(
        None,
        "time constant T of the schedule after i steps: 1 - i / T, exp(-i / T) or T / (T + exp(i / T)); " + FITTED,
        minimum=1,
    )
    guided_attention: Literal["none", "diagonal", "alignments"] = option(
        "none",
        "target of a loss on the alignment heads: the diagonal, or the alignments of the corpus",
    )
    guided_weight: float = option(0.1, "weight of this loss, relative to cross-entropy; 0 for none", minimum=0)
    guided_width: float = option(
        0.2, "width of the diagonal, as a fraction of the sentence (g of Tachibana et al. 2017)", above=0
    )
    clip_norm: float = option(1.0, "maximum norm of the gradient", above=0)
    average: float = option(0.0, "decay of the moving average of the weights; 0 for none", minimum=0, below=1)
    validate_every: int | None = option(
        None,
        "steps between validations; none: chosen so that they take at most a tenth of the time",
        above=0,
    )
    validation_sentences: int | None = option(
        None, f"maximum sentences to decode at each validation; {FITTED}", minimum=1
    )
    monitor: Literal["bleu", "chrf", "exact", "loss"] = option("bleu", "figure for early stopping and for `keep`")
    patience: int = option(0, "validations without improvement before the run stops; 0 for never", minimum=0)
    stop_at: float | None = option(None, "value of `monitor` that stops the run when two validations in a row reach it")
    keep: Literal["best", "last", "average"] | None = option(
        None,
        "weights of the checkpoint: those of the best validation, the last ones, or the average over the last "
        "validations; none: the last with a cooldown, otherwise the best",
    )
    average_last: int = option(5, "with keep = average: number of validations whose weights are averaged", minimum=2)
    precision: Literal["32-true", "bf16-mixed", "16-mixed"] = option("32-true", "precision, in Lightning's names")
    accelerator: Literal["auto", "cpu", "gpu", "cuda", "mps", "tpu"] = option("auto", "device, in Lightning's names")
    devices: str = option("auto", "number of devices of each node (2), or their indices (0,1)")
    nodes: int = option(1, "machines", minimum=1)
    strategy: str = option("auto", "distribution over devices, in Lightning's names: auto, ddp, fsdp ...")
