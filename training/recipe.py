"""Recipes: all that decides a training run, as a TOML file that is read strictly."""

import dataclasses
import json
import operator
import sys
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, TypeAlias, TypeVar

from txport.models.config import PRESETS, Config, Heads, preset
from txport.runtime.bundle.strict_json import decode
from txport.runtime.errors import InputError, nearest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

T = TypeVar("T")

# Of values that a recipe may leave open, see `txport.training.fitting`.
FITTED = "none: chosen to fit the corpus and the time"

RECIPES = Path(__file__).with_name("recipes")
# What the metadata of an option may demand of its value: the words for it, and the test.
_RANGES: dict[str, tuple[str, Callable[[float, float], bool]]] = {
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
    """Return a field with the text that documentation shows and the range that its value must be in."""
    metadata = {"help": help, "least": least, "above": above, "below": below, "most": most}
    return field(default=default, metadata=metadata)


@dataclass(frozen=True, kw_only=True)
class BuiltinOptions:
    """`kind = "builtin"`: the generated corpus, see `txport.training.spoken.corpus`."""

    seed: int = option(1, "another seed gives other sentences", least=0)
    train: int = option(100_000, "training sentences", least=1)
    validation: int = option(1_000, "validation sentences", least=1)
    test: int = option(1_000, "test sentences", least=1)


@dataclass(frozen=True, kw_only=True)
class NamesOptions:
    """`kind = "names"`: generated sentences with names to copy, see `txport.training.spoken.names`."""

    seed: int = option(1, "another seed gives other sentences of the same names", least=0)
    train: int = option(4_000, "training sentences", least=1)
    validation: int = option(200, "validation sentences, with names that do not occur in training", least=1)
    test: int = option(500, "test sentences, of yet other names", least=1)


@dataclass(frozen=True, kw_only=True)
class DigitsOptions:
    """`kind = "digits"`: generated recordings of spoken digits, see `txport.training.spoken.digits`."""

    seed: int = option(1, "another seed gives other recordings", least=0)
    train: int = option(2_000, "training recordings", least=1)
    validation: int = option(100, "validation recordings, of other speakers", least=1)
    test: int = option(200, "test recordings, of yet other speakers", least=1)


@dataclass(frozen=True, kw_only=True)
class Splits:
    """Settings of all corpora from outside."""

    validation: str | None = option(None, "as `train`, for validation; none: held out of the training pairs")
    test: str | None = option(None, "as `train`, for the test; none: held out of the training pairs")
    unique_sources: bool = option(False, "of pairs with the same source, the first only")
    first: int | None = option(None, "pairs to take from the beginning of each file or split; none: all", least=1)
    held_out: int | None = option(
        None, "pairs to hold out for each split that is none; none: one of twenty, at most 1,000", least=1
    )


@dataclass(frozen=True, kw_only=True)
class ParallelOptions(Splits):
    """`kind = "parallel"`: pairs of files, `train` + "." + a language."""

    train: str = option("train", "file name without the language")
    source_language: str = option("en", "ending of the source files")
    target_language: str = option("de", "ending of the target files")
    alignments: str | None = option(
        None, "ending of the file that aligns the words of `train`, for training.guided_attention; none: there is none"
    )


@dataclass(frozen=True, kw_only=True)
class TableOptions(Splits):
    """`kind = "table"`: files of tab-separated columns. Small ones come with txport, see `RECIPES`."""

    train: str = option("train.tsv", "file name")
    source_column: int = option(1, "column of the source, counted from 1", least=1)
    target_column: int = option(2, "column of the target, counted from 1", least=1)
    header: bool = option(False, "skip the first line of each file, the names of the columns")
    alignment_column: int | None = option(
        None, "column of `train` that aligns its words, for training.guided_attention; none: there is none", least=1
    )


@dataclass(frozen=True, kw_only=True)
class DatasetsOptions(Splits):
    """`kind = "datasets"`: a data set of the Hugging Face Hub."""

    name: str = option("", "name on the Hub, or a local directory")
    configuration: str | None = option(None, "configuration of the data set, for example de-en")
    train: str = option("train", "name of the training split")
    source_field: str = option("translation.en", "field of the source, dots lead into it")
    target_field: str = option("translation.de", "field of the target")


@dataclass(frozen=True, kw_only=True)
class ShardsOptions(Splits):
    """`kind = "shards"`: JSONL or Parquet files of any number and size, plain or .gz or .zst, read by streaming."""

    train: str = option("train", "file, directory, pattern or URL of the training pairs")
    source_column: str = option("source", "column of the source")
    target_column: str = option("target", "column of the target")


@dataclass(frozen=True, kw_only=True)
class FeaturesOptions(Splits):
    """`kind = "features"`: files of feature vectors and texts, .npz (`txport.runtime.features`) or .parquet."""

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
# Where the two sides of a pair come from: never from one place.
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


@dataclass(frozen=True, kw_only=True)
class TokenizerOptions:
    """`[tokenizer]`: SentencePiece models."""

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
    """`[training]`: how long, how fast, on what."""

    seed: int = option(1, "for initial weights, order of batches and dropout", least=0)
    max_steps: int | None = option(None, "optimizer steps; 0 only with from_checkpoint", least=0)
    max_epochs: int | None = option(None, "passes over the training pairs", above=0)
    max_minutes: float | None = option(None, "wall-clock time until the checkpoint is there, test included", above=0)
    from_checkpoint: str | None = option(
        None, "checkpoint to fine-tune (tx-train --from): its weights, model, tokenizer and languages"
    )
    freeze: tuple[str, ...] = option(
        (), 'names of what stays as it is there, for example ["source_embedding", "encoder.*"]'
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
    accelerator: str = option("auto", "auto, cpu, gpu ..., as Lightning names it")
    devices: str = option("auto", "how many devices of each node, or which: 2, 0,1 ...")
    nodes: int = option(1, "machines", least=1)
    strategy: str = option("auto", "how devices work together: auto, ddp, fsdp ...")


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A whole training run. `model` is a preset's name and the fields of `txport.models.config.Config` that differ."""

    corpus: CorpusOptions
    tokenizer: TokenizerOptions
    model: dict[str, Any]
    training: TrainingOptions

    def to_json(self) -> dict[str, Any]:
        """Table that `from_table` reads."""
        kind = next(name for name, options in CORPORA.items() if isinstance(self.corpus, options))
        return {
            "corpus": {"kind": kind, **_present(self.corpus)},
            "tokenizer": _present(self.tokenizer),
            "model": self.model,
            "training": _present(self.training),
        }


def starter() -> str:
    """Return a recipe to copy: every section and key with its default, what it means and its range, as comments."""
    from_tokenizer = [item.name for item in dataclasses.fields(Config) if item.name.endswith(("_vocabulary", "_id"))]
    lines = ["# A recipe for tx-train: take the # away from what is to differ. What stands behind it is the default."]
    lines += ["", "[corpus]", _line("kind", "parallel", f"one of {', '.join(CORPORA)}")]
    for kind in ("parallel", *(name for name in CORPORA if name != "parallel")):
        lines += ["", f"# With kind = {kind}", *_keys(CORPORA[kind])]
    lines += ["", "[tokenizer]", *_keys(TokenizerOptions)]
    lines += ["", "[model]", "# " + _line("preset", "small", f"one of {', '.join(PRESETS)}; it decides what follows")]
    lines += _keys(Config, PRESETS["small"], from_tokenizer)
    lines += ["", "[training]", "# One of max_steps, max_epochs and max_minutes must be set.", "max_minutes = 30"]
    lines += _keys(TrainingOptions, without=["max_minutes"])
    return "\n".join(lines) + "\n"


def _keys(kind: type[Any], changes: Mapping[str, Any] = MappingProxyType({}), without: Sequence[str] = ()) -> list[str]:
    """Return a commented line for each field; those without a default have no value."""
    hints = typing.get_type_hints(kind)
    lines = []
    for item in dataclasses.fields(kind):
        words = [
            f"{words} {item.metadata[name]}"
            for name, (words, _) in _RANGES.items()
            if item.metadata.get(name) is not None
        ]
        if typing.get_origin(hints[item.name]) is Literal:
            words.append(f"one of {', '.join(typing.get_args(hints[item.name]))}")
        text = "; ".join([item.metadata["help"], *words])
        if item.name not in without:
            lines.append(f"# {_line(item.name, changes.get(item.name, item.default), text)}")
    return lines


def _line(key: str, value: Any, text: str) -> str:
    """Return a key with its value in TOML, and what it means."""
    if isinstance(value, str | bool | tuple):
        written = json.dumps(value)
    elif value is None:
        written = ""
    else:
        written = f"{value:_}"
    return f"{key + ' = ' + written:32}# {text}"


def read(name: str, overrides: Sequence[str] = ()) -> Recipe:
    """Return a recipe by its file, or by the name of one that txport brings, with some values replaced.

    Args:
        name: "demo", or a path that ends in .toml.
        overrides: each "section.key=value", the value as in TOML; a bare word is text.

    Raises:
        InputError: no such recipe, not TOML, an unknown key, a value of the wrong type or out of range.
    """
    if name.endswith(".toml"):
        file = Path(name)
    else:
        file = RECIPES / f"{name}.toml"
    try:
        table = tomllib.loads(file.read_bytes().decode("utf-8-sig"))
    except OSError as error:
        known = ", ".join(sorted(path.stem for path in RECIPES.glob("*.toml")))
        raise InputError(
            f"recipe {name} cannot be read ({error.strerror}): give a .toml file or one of {known}"
        ) from None
    except ValueError as error:
        raise InputError(f"recipe {file} is not TOML: {error}") from None
    for override in overrides:
        _override(table, override)
    return from_table(table, str(file))


def from_table(table: Mapping[str, Any], file: str) -> Recipe:
    """Return a recipe from parsed TOML or JSON; `file` is for messages. Raises InputError as `read`."""
    where = f"recipe {file}"
    sections: dict[str, Any] = {"corpus": {}, "tokenizer": {}, "model": {}, "training": {}}
    if unknown := sorted(table.keys() - sections.keys()):
        raise InputError(
            f"{where} has the unknown section {unknown[0]}: {nearest(unknown[0], sections, 'it may have')}"
        )
    sections |= table
    for name, section in sections.items():
        if not isinstance(section, Mapping):
            raise InputError(f"{where}: {name} must be a table, [{name}]")
    corpus = dict(sections["corpus"])
    kind = corpus.pop("kind", None)
    if kind is None:
        raise InputError(f"{where}: [corpus] kind is missing: set it to one of {', '.join(CORPORA)}")
    if kind not in list(CORPORA):
        raise InputError(f"{where}: corpus.kind is {kind!r}: {nearest(str(kind), CORPORA, 'it must be one of')}")
    recipe = Recipe(
        corpus=_section(CORPORA[kind], corpus, f"{where}: corpus"),
        tokenizer=_section(TokenizerOptions, sections["tokenizer"], f"{where}: tokenizer"),
        model=_model(sections["model"], where),
        training=_section(TrainingOptions, sections["training"], f"{where}: training"),
    )
    _check_together(recipe, where)
    return recipe


def chosen(value: T | None) -> T:
    """Return a value that a recipe may leave open, after `txport.training.fitting`."""
    assert value is not None, "the recipe was not fitted to its corpus"
    return value


def _override(table: dict[str, Any], text: str) -> None:
    path, equals, value = text.partition("=")
    section, dot, key = path.strip().partition(".")
    if not (equals and dot and key):
        raise InputError(f"{text!r} is not of the form section.key=value, for example training.seed=2")
    try:
        parsed = tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        parsed = value.strip()
    table.setdefault(section, {})[key] = parsed


def _section(kind: type[T], table: Mapping[str, Any], where: str) -> T:
    options = decode(kind, table, where, InputError, by_hand=True)
    for item in dataclasses.fields(kind):  # type: ignore[arg-type]
        value = getattr(options, item.name)
        for name, (words, holds) in _RANGES.items():
            bound = item.metadata[name]
            if value is not None and bound is not None and not holds(value, bound):
                raise InputError(f"{where}.{item.name} is {value}, but must be {words} {bound}")
    return options


def _model(table: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Checked by making a config of it, with vocabularies that do not matter here."""
    model = dict(table)
    for name in ("source_vocabulary", "target_vocabulary"):
        if name in model:
            raise InputError(f"{where}: model.{name} comes from the tokenizer: set tokenizer.vocabulary")
    try:
        for name in ("alignment_heads", "copy_heads"):
            decode(Heads, model.get(name, []), f"model config.{name}", InputError)
        checked = {"name" if key == "preset" else key: value for key, value in model.items()}
        if not ("name" in checked or {"decoder_layers", "heads"} <= checked.keys()):
            for name in ("alignment_heads", "copy_heads"):  # of a model that is chosen later, or a checkpoint's
                checked.pop(name, None)
        preset(**{"name": "small", **checked})
    except InputError as error:
        raise InputError(f"{where}, [model]: {error}") from None
    return model


def _check_together(recipe: Recipe, where: str) -> None:
    """Check combinations of values."""
    for name, other in SIDES:
        side = getattr(recipe.corpus, name, None)
        if side is not None and side == getattr(recipe.corpus, other):
            raise InputError(
                f"{where}: corpus.{name} and corpus.{other} are both {side!r}: source and target must differ"
            )
    training = recipe.training
    tokenizer = recipe.tokenizer
    if tokenizer.minimum_count > 1 and tokenizer.algorithm != "word":
        raise InputError(
            f"{where}: tokenizer.minimum_count is for algorithm word, not for {tokenizer.algorithm}: leave it out"
        )
    if training.batch_tokens is not None and training.batch_tokens < training.max_length:
        raise InputError(
            f"{where}: training.batch_tokens ({training.batch_tokens}) must be at least training.max_length "
            f"({training.max_length}), so that every pair fits a batch"
        )
    if training.max_steps is None and training.max_epochs is None and training.max_minutes is None:
        raise InputError(f"{where}: nothing ends the run: set training.max_steps, max_epochs or max_minutes")
    if training.scheduled_sampling == "none" and (training.sampling_start or training.sampling_steps is not None):
        raise InputError(
            f"{where}: training.sampling_start and sampling_steps need a schedule: set training.scheduled_sampling"
        )
    _check_guidance(recipe, where)
    _check_features(recipe, where)
    if training.strategy.startswith("fsdp") and training.average:
        raise InputError(f"{where}: training.average needs whole weights on each device: set training.strategy to ddp")
    if training.keep == "average" and training.average:
        raise InputError(
            f"{where}: training.keep is average and training.average is a moving one: set one of them, "
            "training.average = 0 or keep = last"
        )
    if training.from_checkpoint is None and training.freeze:
        raise InputError(f"{where}: training.freeze would keep random weights: set training.from_checkpoint (--from)")
    if training.from_checkpoint is None and training.max_steps == 0:
        raise InputError(
            f"{where}: training.max_steps is 0, but must be above 0 unless training.from_checkpoint is set"
        )
    model = {**PRESETS.get(recipe.model.get("preset", ""), {}), **recipe.model}
    if not recipe.tokenizer.joint and model.get("share_embeddings", True):
        raise InputError(f"{where}: separate tokenizers need model.share_embeddings = false")
    if not recipe.tokenizer.joint and model.get("copy_heads"):
        raise InputError(
            f"{where}: model.copy_heads copy ids of the source, which are words of the target only with one tokenizer: "
            "set tokenizer.joint = true, or leave them out"
        )


def _check_features(recipe: Recipe, where: str) -> None:
    """Refuse a model of text for a corpus of feature vectors, and the reverse."""
    vectors = isinstance(recipe.corpus, DigitsOptions | FeaturesOptions)
    source = recipe.model.get("source", "ids")
    if recipe.training.from_checkpoint is None and vectors != (source == "features"):
        kind, needed = {True: ("feature vectors", "features"), False: ("text", "ids")}[vectors]
        raise InputError(f"{where}: model.source is {source}, but the corpus has {kind}: set it to {needed}")
    if vectors and recipe.training.guided_attention == "alignments":
        raise InputError(f"{where}: training.guided_attention by alignments needs text: leave it out")


def _check_guidance(recipe: Recipe, where: str) -> None:
    """Alignments of the corpus and what they are for."""
    corpus = recipe.corpus
    wanted = recipe.training.guided_attention == "alignments"
    name = {ParallelOptions: "alignments", TableOptions: "alignment_column"}.get(type(corpus))
    given = name is not None and getattr(corpus, name) is not None
    if wanted and name is None:
        raise InputError(
            f"{where}: training.guided_attention is alignments, which only a corpus of kind parallel or table can "
            "have: set it to diagonal, or take the corpus from files"
        )
    if wanted and not given:
        raise InputError(
            f"{where}: training.guided_attention is alignments, but the corpus names none: set corpus.{name}"
        )
    if given and not wanted:
        raise InputError(
            f"{where}: corpus.{name} is not read with training.guided_attention {recipe.training.guided_attention}: "
            "set that to alignments, or leave it out"
        )
    if given and recipe.tokenizer.space_punctuation:
        raise InputError(
            f"{where}: tokenizer.space_punctuation makes words of punctuation, which corpus.{name} does not support: "
            "align spaced text, and leave it out"
        )


def _present(options: Any) -> dict[str, Any]:
    """Return the fields that are set: TOML has no null."""
    present = {key: value for key, value in dataclasses.asdict(options).items() if value is not None}
    return {key: list(value) if isinstance(value, tuple) else value for key, value in present.items()}
