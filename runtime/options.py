"""Decoding options of a call, defined once for `Translator` and the commands.

To add an option, add a field with its help text here, and implement it where requests are built
(`txport.runtime.calls.requests`, `txport.runtime.calls.search_options`) or decoded (`txport.runtime.search`).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from numbers import Integral, Real
from typing import Any, Literal

from txport.runtime.errors import InputError, nearest

EarlyStopping = bool | Literal["never"]


def _is_whole(value: Any) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


def _option(default: Any, help: str, kind: str = "text", **bounds: Any) -> Any:
    """Return a field of `Options`.

    Args:
        default: default value.
        help: help text of the command.
        kind: "flag", "text", "texts", "count" (a whole number), "number", "ids", or "choice".
        bounds: `minimum` of a count; `maximum` of a number, which must be positive unless `any` is true; `choices`.
    """
    return field(default=default, metadata={"help": help, "kind": kind, **bounds})


@dataclass(frozen=True)
class Options:
    """Options for every sentence of a call.

    None selects the default, or the model's generation setting with `generation="model"`.

    Attributes:
        max_length: maximum number of target tokens, including eos. None derives the limit from the source length
            (`txport.runtime.calls.requests.length_limit`).
        full_length: without `max_length`, allow up to the bundle's maximum length.
        min_length: minimum number of target tokens.
        prefix: text, or target ids, that every translation begins with.
        scores: compute `Translation.scores`.
        strict: refuse texts that are longer than the bundle supports, instead of truncating them with a warning.
        alignments: compute `Translation.alignment`, by a second pass over each finished translation. Not available for
            streams.
        attention: compute `Translation.attention`, in the same way.
        source_language: source language of a multilingual bundle. None selects its default.
        target_language: target language of a multilingual bundle. None selects its default. If the bundle
            supports it, a sentence can select another one by a prefix (`>>name<<`).
        generation: "greedy", or "model" for the model's generation settings, as in Hugging Face's `generate`.
        beam, n_best, length_penalty, early_stopping, patience, alternatives: see
            `txport.runtime.search.settings.Search`.
        repetition_penalty, no_repeat_ngram, suppress, begin_suppress, end_ids, forced_end, renormalize: see
            `txport.runtime.search.settings.Rules`.
        bad_words: texts or id sequences that translations must not contain.
        sample: sample tokens at random.
        temperature, top_k, top_p, min_p, seed: see `txport.runtime.search.settings.Sampling`.
        replace_unknowns: replace each unknown token of a translation by the source token with the most attention, as in
            CTranslate2. Only `Translation.text` changes. Not available for streams.
        shortlist: restrict target words to the bundle's shortlist for the source, and to those of the prefix. Scores
            are normalized over these words.

    Raises:
        InputError: a value is invalid.
    """

    max_length: int | None = _option(
        None, "Maximum number of target tokens, including eos. [default: 2 x source tokens + 20]", "count", minimum=1
    )
    full_length: bool = _option(False, "Allow up to the bundle's maximum length.", "flag")
    min_length: int = _option(0, "Minimum number of target tokens.", "count", minimum=0)
    prefix: str | Sequence[int] | None = _option(None, "Force every translation to begin with this text.")
    scores: bool = _option(False, "Add the log-probability of each id. Requires --json.", "flag")
    strict: bool = _option(False, "Refuse lines that are too long, instead of truncating them with a warning.", "flag")
    alignments: bool = _option(
        False,
        'Append word alignments to each line, as in "ein Hund ||| 0-0 1-1" (source-target, from 0). '
        "Requires a bundle of tx-export --with-attention.",
        "flag",
    )
    attention: bool = _option(
        False,
        "Add the attention of each target id over the source ids. Requires --json and a bundle of "
        "tx-export --with-attention.",
        "flag",
    )
    replace_unknowns: bool | None = _option(
        None,
        "Replace each unknown token by the source token with the most attention. Requires a bundle of tx-export "
        "--with-attention.",
        "flag",
    )
    source_language: str | None = _option(None, "Source language of a multilingual model. [default: the bundle's]")
    target_language: str | None = _option(None, "Target language of a multilingual model. tx-inspect lists them.")
    generation: str = _option(
        "greedy",
        'Defaults of the search: "greedy", or "model" for the model\'s generation settings. [default: greedy]',
        "choice",
        choices=("greedy", "model"),
    )
    beam: int | None = _option(None, "Number of beams. [default: 1, greedy search]", "count", minimum=1)
    n_best: int = _option(
        1,
        "Number of translations for each line: hypotheses of the beam, or samples. Requires --json.",
        "count",
        minimum=1,
    )
    length_penalty: float | None = _option(
        None, "Divide beam scores by the length to this power. [default: 1]", "number", any=True
    )
    early_stopping: EarlyStopping | None = _option(
        None,
        'When beam search stops: "true" after enough finished hypotheses, "false" when a better one is '
        'unlikely, "never" when a better one is impossible. [default: false]',
        "choice",
        choices=(True, False, "never"),
    )
    patience: float | None = _option(
        None, "With --early-stopping true, stop after beam x patience finished hypotheses. [default: 1]", "number"
    )
    repetition_penalty: float | None = _option(None, "Penalty for repeated tokens. [default: 1]", "number")
    no_repeat_ngram: int | None = _option(None, "Never repeat an n-gram of this size.", "count", minimum=1)
    bad_words: Sequence[str | Sequence[int]] | None = _option(
        None, "Text that translations must not contain. Repeatable.", "texts"
    )
    suppress: Sequence[int] | None = _option(None, "Target id that is never generated. Repeatable.", "ids")
    begin_suppress: Sequence[int] | None = _option(None, "Target id that is never generated first. Repeatable.", "ids")
    end_ids: Sequence[int] | None = _option(
        None, "Target id that ends a translation, in addition to eos. Repeatable.", "ids"
    )
    forced_end: int | None = _option(
        None, "Target id that is generated last when the maximum length is reached.", "count", minimum=0
    )
    renormalize: bool | None = _option(
        None, "Renormalize the probabilities of beams after all rules are applied.", "flag"
    )
    sample: bool | None = _option(None, "Sample tokens at random.", "flag")
    temperature: float | None = _option(
        None, "Temperature that divides the logits before sampling. [default: 1]", "number"
    )
    top_k: int | None = _option(
        None, "Sample from the k most likely tokens, 0 for all. [default: 0]", "count", minimum=0
    )
    top_p: float | None = _option(
        None, "Sample from the most likely tokens with this total probability. [default: 1]", "number", maximum=1
    )
    min_p: float | None = _option(
        None, "Sample from tokens at least this fraction as likely as the best. [default: 0]", "number", maximum=1
    )
    seed: int = _option(0, "Random seed.", "count", minimum=0)
    alternatives: int = _option(0, "Branch on the N best tokens after the prefix. Requires --json.", "count", minimum=0)
    shortlist: bool = _option(
        False,
        "Restrict target words to the bundle's shortlist for the source. Requires a shortlist of tx-shortlist.",
        "flag",
    )

    def __post_init__(self) -> None:
        for option in fields(self):
            value = getattr(self, option.name)
            if value is option.default:
                fault = None
            else:
                fault = _fault(value, option.name, **option.metadata)
            if fault is not None:
                raise InputError(f"{option.name} {value!r} is not {fault}")

    def changed(self, changes: Mapping[str, Any]) -> "Options":
        """Return these options with some fields replaced.

        Raises:
            InputError: an option does not exist.
        """
        names = [option.name for option in fields(self)]
        for name in changes.keys() - names:
            raise InputError(f"there is no option {name!r}: {nearest(name, names)}")
        return replace(self, **changes)


def _fault(value: Any, name: str, kind: str, **bounds: Any) -> str | None:
    """Return what the value should be, or None if it is valid."""
    if kind == "count":
        if not _is_whole(value):
            return "a whole number"
        if value < bounds["minimum"] and name not in _BOUNDED_BY_BUNDLE:
            return f"{bounds['minimum']} or more"
        if value > _MAX_COUNT and name not in _BOUNDED_BY_BUNDLE:
            return f"at most {_MAX_COUNT}"
    elif kind == "number":
        maximum = bounds.get("maximum", math.inf)
        number = isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)
        if bounds.get("any"):
            if number:
                return None
            return "a number"
        if not (number and 0 < value <= maximum):
            return "a number above 0" + ("" if maximum == math.inf else f", at most {maximum}")
    elif kind == "choice" and not any(value is choice or value == choice != 1 for choice in bounds["choices"]):
        return f"one of {', '.join(map(repr, bounds['choices']))}"
    return None


# Lengths, which are checked together with the limits of the bundle.
_BOUNDED_BY_BUNDLE = ("max_length", "min_length")
_MAX_COUNT = 2**63 - 1  # an int64_t in C++
DEFAULTS = Options()
