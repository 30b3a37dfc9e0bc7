"""Recipes: all settings of a training run in a TOML file, strictly checked."""

import dataclasses
import json
import re
import sys
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, TypeVar

from txport.models.config import PRESETS, Config, Heads, preset
from txport.runtime.bundle.strict_json import decode
from txport.runtime.errors import InputError, nearest
from txport.training.options import (
    CORPORA,
    RANGES,
    SIDES,
    CorpusOptions,
    DigitsOptions,
    FeaturesOptions,
    ParallelOptions,
    TableOptions,
    TokenizerOptions,
    TrainingOptions,
    kind_of_corpus,
)

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

T = TypeVar("T")

RECIPES = Path(__file__).with_name("recipes")
# The first of Lightning's strategies with each prefix up to an underscore.
STRATEGIES = ("auto", "ddp", "fsdp", "deepspeed", "single_device", "xla")


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Settings of a training run. `model`: a preset's name, and fields of `txport.models.config.Config`."""

    corpus: CorpusOptions
    tokenizer: TokenizerOptions
    model: dict[str, Any]
    training: TrainingOptions

    def to_json(self) -> dict[str, Any]:
        """Return a table for `from_table`."""
        kind = kind_of_corpus(self.corpus)
        return {
            "corpus": {"kind": kind, **_present(self.corpus)},
            "tokenizer": _present(self.tokenizer),
            "model": self.model,
            "training": _present(self.training),
        }


def starter() -> str:
    """Return a recipe to copy, in which comments contain every section and key with default, meaning and range."""
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
    """Return a commented line for each field. Fields without a default have no value."""
    hints = typing.get_type_hints(kind)
    lines = []
    for item in dataclasses.fields(kind):
        words = [
            f"{words} {item.metadata[name]}"
            for name, (words, _) in RANGES.items()
            if item.metadata.get(name) is not None
        ]
        if typing.get_origin(hints[item.name]) is Literal:
            words.append(f"one of {', '.join(typing.get_args(hints[item.name]))}")
        text = "; ".join([item.metadata["help"], *words])
        if item.name not in without:
            lines.append(f"# {_line(item.name, changes.get(item.name, item.default), text)}")
    return lines


def _line(key: str, value: Any, text: str) -> str:
    """Return a TOML line with key, value and meaning."""
    if isinstance(value, str | bool | tuple):
        literal = json.dumps(value)
    elif value is None:
        literal = ""
    else:
        literal = f"{value:_}"
    return f"{key + ' = ' + literal:32}# {text}"


def read(name: str, overrides: Sequence[str] = ()) -> Recipe:
    """Read a recipe file, or a recipe of txport by name, and replace some values.

    Args:
        name: "demo", for example, or a path that ends with .toml.
        overrides: strings "section.key=value" with a TOML value; a bare word is text.

    Raises:
        InputError: the recipe does not exist, is not TOML, or has an unknown key or a value of wrong type or range.
    """
    if name.endswith(".toml"):
        file = Path(name)
    else:
        file = RECIPES / f"{name}.toml"
    try:
        table = tomllib.loads(file.read_bytes().decode("utf-8-sig"))
    except OSError as error:
        recipe_names = ", ".join(sorted(path.stem for path in RECIPES.glob("*.toml")))
        raise InputError(
            f"recipe {name} cannot be read ({error.strerror}): give a .toml file or one of {recipe_names}"
        ) from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"recipe {file} is not TOML: {error}") from None
    for override in overrides:
        _override(table, override)
    return from_table(table, str(file))


def from_table(table: Mapping[str, Any], file: str) -> Recipe:
    """Return a recipe from parsed TOML or JSON. `file` is for messages. Raises InputError like `read`."""
    location = f"recipe {file}"
    sections: dict[str, Any] = {"corpus": {}, "tokenizer": {}, "model": {}, "training": {}}
    if unknown := sorted(table.keys() - sections.keys()):
        raise InputError(
            f"{location} has the unknown section {unknown[0]}: {nearest(unknown[0], sections, 'it may have')}"
        )
    sections |= table
    for name, section in sections.items():
        if not isinstance(section, Mapping):
            raise InputError(f"{location}: {name} must be a table, [{name}]")
    corpus = dict(sections["corpus"])
    kind = corpus.pop("kind", None)
    if kind is None:
        raise InputError(f"{location}: [corpus] kind is missing: set it to one of {', '.join(CORPORA)}")
    if kind not in list(CORPORA):
        raise InputError(f"{location}: corpus.kind is {kind!r}: {nearest(str(kind), CORPORA, 'it must be one of')}")
    recipe = Recipe(
        corpus=_section(CORPORA[kind], corpus, f"{location}: corpus"),
        tokenizer=_section(TokenizerOptions, sections["tokenizer"], f"{location}: tokenizer"),
        model=_model(sections["model"], location),
        training=_section(TrainingOptions, sections["training"], f"{location}: training"),
    )
    _check_together(recipe, location)
    return recipe


def require_fitted(value: T | None) -> T:
    """Return a value that recipes may leave unset. `txport.training.fitting` must have set it."""
    assert value is not None, "the recipe was not fitted to its corpus"
    return value


def as_before(recipe: Recipe, before: Recipe) -> Recipe:
    """Return the recipe with unset values taken from an earlier run."""
    return replace(
        recipe,
        tokenizer=filled(recipe.tokenizer, vocabulary=before.tokenizer.vocabulary),
        model={**before.model, **recipe.model},
        training=filled(recipe.training, **{name: getattr(before.training, name) for name in _OPEN}),
    )


_OPEN = (
    "batch_tokens", "learning_rate", "warmup_steps", "cooldown", "validation_sentences", "keep", "sampling_steps",
    "from_checkpoint",
)  # fmt: skip


def filled(options: Any, **values: Any) -> Any:
    """Return options with these values for fields that are None."""
    return replace(options, **{name: value for name, value in values.items() if getattr(options, name) is None})


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


def _section(kind: type[T], table: Mapping[str, Any], location: str) -> T:
    options = decode(kind, table, location, InputError, by_hand=True)
    for item in dataclasses.fields(kind):  # type: ignore[arg-type]
        value = getattr(options, item.name)
        for name, (words, holds) in RANGES.items():
            bound = item.metadata[name]
            if value is not None and bound is not None and not holds(value, bound):
                raise InputError(f"{location}.{item.name} is {value}, but must be {words} {bound}")
    return options


def _model(table: Mapping[str, Any], location: str) -> dict[str, Any]:
    """Check `[model]` by creating a config, with arbitrary vocabularies, and return it."""
    model = dict(table)
    for name in ("source_vocabulary", "target_vocabulary"):
        if name in model:
            raise InputError(f"{location}: model.{name} comes from the tokenizer: set tokenizer.vocabulary")
    try:
        for name in ("alignment_heads", "copy_heads"):
            decode(Heads, model.get(name, []), f"model config.{name}", InputError)
        completed = {"name" if key == "preset" else key: value for key, value in model.items()}
        if not ("name" in completed or {"decoder_layers", "heads"} <= completed.keys()):
            for name in ("alignment_heads", "copy_heads"):  # depend on a model that is chosen later
                completed.pop(name, None)
        preset(**{"name": "small", **completed})
    except InputError as error:
        raise InputError(f"{location}, [model]: {error}") from None
    return model


def _check_together(recipe: Recipe, location: str) -> None:
    """Check combinations of values."""
    for name, other in SIDES:
        side = getattr(recipe.corpus, name, None)
        if side is not None and side == getattr(recipe.corpus, other):
            raise InputError(
                f"{location}: corpus.{name} and corpus.{other} are both {side!r}: source and target must differ"
            )
    training = recipe.training
    tokenizer = recipe.tokenizer
    if tokenizer.minimum_count > 1 and tokenizer.algorithm != "word":
        raise InputError(
            f"{location}: tokenizer.minimum_count is for algorithm word, not for {tokenizer.algorithm}: leave it out"
        )
    if training.batch_tokens is not None and training.batch_tokens < training.max_length:
        raise InputError(
            f"{location}: training.batch_tokens ({training.batch_tokens}) must be at least training.max_length "
            f"({training.max_length}), so that every pair fits a batch"
        )
    if training.max_steps is None and training.max_epochs is None and training.max_minutes is None:
        raise InputError(f"{location}: nothing ends the run: set training.max_steps, max_epochs or max_minutes")
    if training.scheduled_sampling == "none" and (training.sampling_start or training.sampling_steps is not None):
        raise InputError(
            f"{location}: training.sampling_start and sampling_steps need a schedule: set training.scheduled_sampling"
        )
    _check_devices(training, location)
    _check_guidance(recipe, location)
    _check_features(recipe, location)
    if training.strategy.startswith("fsdp") and training.average:
        raise InputError(
            f"{location}: training.average needs whole weights on each device: set training.strategy to ddp"
        )
    if training.keep == "average" and training.average:
        raise InputError(
            f"{location}: training.keep is average and training.average is a moving one: set one of them, "
            "training.average = 0 or keep = last"
        )
    if training.from_checkpoint is None and training.freeze:
        raise InputError(
            f"{location}: training.freeze would keep random weights: set training.from_checkpoint (--from)"
        )
    if training.from_checkpoint is None and training.max_steps == 0:
        raise InputError(
            f"{location}: training.max_steps is 0, but must be above 0 unless training.from_checkpoint is set"
        )
    model = {**PRESETS.get(recipe.model.get("preset", ""), {}), **recipe.model}
    if not recipe.tokenizer.joint and model.get("share_embeddings", True):
        raise InputError(f"{location}: separate tokenizers need model.share_embeddings = false")
    if not recipe.tokenizer.joint and model.get("copy_heads"):
        raise InputError(
            f"{location}: model.copy_heads copy ids of the source, which are words of the target only with one "
            "tokenizer: set tokenizer.joint = true, or leave them out"
        )


def _check_features(recipe: Recipe, location: str) -> None:
    """Refuse a model of text for a corpus of feature vectors, and the reverse."""
    vectors = isinstance(recipe.corpus, DigitsOptions | FeaturesOptions)
    source = recipe.model.get("source", "ids")
    if recipe.training.from_checkpoint is None and vectors != (source == "features"):
        kind, required = {True: ("feature vectors", "features"), False: ("text", "ids")}[vectors]
        raise InputError(f"{location}: model.source is {source}, but the corpus has {kind}: set it to {required}")
    if vectors and recipe.training.guided_attention == "alignments":
        raise InputError(f"{location}: training.guided_attention by alignments needs text: leave it out")


def _check_devices(training: TrainingOptions, location: str) -> None:
    """Check devices without PyTorch. Whether they exist is checked later."""
    if training.strategy.partition("_")[0] not in [name.partition("_")[0] for name in STRATEGIES]:
        advice = nearest(training.strategy, STRATEGIES, "it must be one of")
        raise InputError(f"{location}: training.strategy is {training.strategy!r}: {advice}")
    if not re.fullmatch(r"auto|-1|[1-9]\d*|\d+(,\d+)*,?", training.devices) or training.devices == "0":
        raise InputError(
            f"{location}: training.devices is {training.devices!r}: give a number (2), indices (0,1) or auto"
        )


def _check_guidance(recipe: Recipe, location: str) -> None:
    """Check that alignments in the corpus and options that use them fit together."""
    corpus = recipe.corpus
    needs_alignments = recipe.training.guided_attention == "alignments"
    name = {ParallelOptions: "alignments", TableOptions: "alignment_column"}.get(type(corpus))
    given = name is not None and getattr(corpus, name) is not None
    if needs_alignments and name is None:
        raise InputError(
            f"{location}: training.guided_attention is alignments, which only a corpus of kind parallel or table can "
            "have: set it to diagonal, or take the corpus from files"
        )
    if needs_alignments and not given:
        raise InputError(
            f"{location}: training.guided_attention is alignments, but the corpus names none: set corpus.{name}"
        )
    if given and not needs_alignments:
        raise InputError(
            f"{location}: corpus.{name} is not read with training.guided_attention {recipe.training.guided_attention}: "
            "set that to alignments, or leave it out"
        )
    if given and recipe.tokenizer.space_punctuation:
        raise InputError(
            f"{location}: tokenizer.space_punctuation makes words of punctuation, which corpus.{name} does not "
            "support: align spaced text, and leave it out"
        )


def _present(options: Any) -> dict[str, Any]:
    """Return the fields that are set, since TOML has no null."""
    present = {key: value for key, value in dataclasses.asdict(options).items() if value is not None}
    return {key: list(value) if isinstance(value, tuple) else value for key, value in present.items()}
