"""Decoding options of a call, defined once for `Translator`, the commands and C++.

`runtime/cpp/include/txport/options.inc` lists the options with their kinds and help texts, and describes how to add
one. Requests are built in `txport.runtime.calls` and decoded in `txport.runtime.search`.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from numbers import Integral, Real
from pathlib import Path
from typing import Any, Literal

from txport.runtime.errors import InputError, nearest

EarlyStopping = bool | Literal["never"]


def _is_whole(value: Any) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


def _read() -> dict[str, tuple[str, str]]:
    """Return the kind and the help text of each option."""
    text = Path(__file__).with_name("cpp").joinpath("include", "txport", "options.inc").read_text(encoding="ascii")
    lines = re.findall(r'^TXPORT_OPTION\((\w+), (\w+), "(.*)"\)$', text, re.MULTILINE)
    return {name: (kind, help.replace(r"\"", '"')) for kind, name, help in lines}


OPTIONS = _read()
# Minimum of the kinds that are whole numbers.
MINIMA = {"Limit": 1, "Natural": 0, "Count": 0}
NUMBERS = {"Number": "a number", "Positive": "a number above 0", "Share": "a number above 0, at most 1"}
CHOICES: dict[str, tuple[Any, ...]] = {"Settings": ("greedy", "model"), "Stopping": (True, False, "never")}


@dataclass(frozen=True)
class Options:
    """Options for every sentence of a call.

    None selects the default, or the model's generation setting with `generation="model"`.

    Attributes:
        max_length: maximum number of target tokens, including eos. None: twice the number of source tokens plus 20,
            plus the length of the forced prefix or `min_length`, whichever is larger.
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
        beam: number of beams; 1 for greedy search.
        n_best: number of hypotheses of each sentence, at most `beam`; with `sample`, number of independent samples.
        length_penalty: the score of a hypothesis is its log-probability divided by its length to this power; None: 1.
        early_stopping: True: stop when `beam` hypotheses are finished. False: stop when no running hypothesis has, at
            its present length, a better score than the worst finished one. "never": stop when none can reach a better
            score.
        patience: with `early_stopping` True, stop when `beam` times this number of hypotheses are finished (Kasai et
            al. 2022); None: 1.
        repetition_penalty: for tokens of the translation so far, bos included, a negative score is multiplied by this
            number, a positive one divided by it (Keskar et al. 2019, section 4.1); 1 for no penalty.
        no_repeat_ngram: never repeat an n-gram of this size, bos included (Paulus et al. 2018, section 2.5).
        bad_words: texts or id sequences that translations must not contain.
        suppress: ids that never occur.
        begin_suppress: ids that are never the first after a forced prefix.
        end_ids: ids that end a translation, in addition to eos.
        forced_end: last id of a translation that reaches its maximum length; with beams its score is 0.
        renormalize: with beams, normalise probabilities again after all rules.
        sample: sample tokens at random.
        temperature: with `sample`, logits are divided by this number; None: 1.
        top_k: with `sample`, sample from the k most likely tokens; 0 for all.
        top_p: with `sample`, sample from the smallest set of tokens with this total probability (Holtzman et al. 2020,
            section 3.1); 1 for all.
        min_p: with `sample`, sample from tokens with at least this fraction of the best probability (Nguyen et al.
            2024, section 3); 0 for all.
        seed: random seed. Samples depend on the seed, the index of the sentence and the position, not on the batch.
        alternatives: number of most likely tokens after the prefix that are each continued by greedy search; 0: none.
        replace_unknowns: replace each unknown token of a translation by the source token with the most attention, as in
            CTranslate2. Only `Translation.text` changes. Not available for streams.
        shortlist: restrict target words to the bundle's shortlist for the source, and to those of the prefix. Scores
            are normalized over these words.

    Raises:
        InputError: a value is invalid.
    """

    max_length: int | None = None
    full_length: bool = False
    min_length: int = 0
    prefix: str | Sequence[int] | None = None
    scores: bool = False
    strict: bool = False
    alignments: bool = False
    attention: bool = False
    replace_unknowns: bool | None = None
    source_language: str | None = None
    target_language: str | None = None
    generation: str = "greedy"
    beam: int | None = None
    n_best: int = 1
    length_penalty: float | None = None
    early_stopping: EarlyStopping | None = None
    patience: float | None = None
    repetition_penalty: float | None = None
    no_repeat_ngram: int | None = None
    bad_words: Sequence[str | Sequence[int]] | None = None
    suppress: Sequence[int] | None = None
    begin_suppress: Sequence[int] | None = None
    end_ids: Sequence[int] | None = None
    forced_end: int | None = None
    renormalize: bool | None = None
    sample: bool | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    seed: int = 0
    alternatives: int = 0
    shortlist: bool = False

    def __post_init__(self) -> None:
        for option in fields(self):
            value = getattr(self, option.name)
            if value is option.default:
                fault = None
            else:
                fault = _fault(value, option.name)
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


def _fault(value: Any, name: str) -> str | None:
    """Return what the value should be, or None if it is valid."""
    kind, _ = OPTIONS[name]
    if kind in MINIMA:
        if not _is_whole(value):
            return "a whole number"
        if value < MINIMA[kind] and name not in _BOUNDED_BY_BUNDLE:
            return f"{MINIMA[kind]} or more"
        if value > _MAX_COUNT and name not in _BOUNDED_BY_BUNDLE:
            return f"at most {_MAX_COUNT}"
    elif kind in NUMBERS:
        number = isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)
        if not number or (kind != "Number" and value <= 0) or (kind == "Share" and value > 1):
            return NUMBERS[kind]
    elif kind in CHOICES and not any(value is choice or value == choice != 1 for choice in CHOICES[kind]):
        return f"one of {', '.join(map(repr, CHOICES[kind]))}"
    return None


# Lengths, which are checked together with the limits of the bundle.
_BOUNDED_BY_BUNDLE = ("max_length", "min_length")
_MAX_COUNT = 2**63 - 1  # an int64_t in C++
DEFAULTS = Options()
