"""Per-call decoding options: one definition for all calls of the `Translator` and the command.

A new option is a field here, with its help, and its meaning where requests are made (`txport.runtime.text.requests`,
`txport.runtime.text.search_options`) or decoded (`txport.runtime.search`).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from numbers import Integral, Real
from typing import Any, Literal

from txport.runtime.errors import InputError, nearest

Early = bool | Literal["never"]


def _is_whole(value: Any) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


def _option(default: Any, help: str, kind: str = "text", **bounds: Any) -> Any:
    """A field.

    Args:
        default: its default.
        help: of the command.
        kind: "flag", "text", "texts", "count" (a whole number), "number", "ids", or "choice".
        bounds: `least` of a count; `most` of a number, which is above 0 unless `any` is true; `choices`.
    """
    return field(default=default, metadata={"help": help, "kind": kind, **bounds})


@dataclass(frozen=True)
class Options:
    """Choices for every sentence of a call.

    None stands for the default, which is the model's own setting with `generation="model"`.

    Attributes:
        max_length: the most tokens to make, eos included; None for the limit that follows from the length of the source
            (`txport.runtime.text.requests.length_limit`).
        full_length: without `max_length`, make as many tokens as the bundle makes at most.
        min_length: tokens to make before an answer may end.
        prefix: what each translation must begin with: text, or target ids.
        scores: compute `Translation.scores`.
        strict: refuse a text that is longer than the bundle takes, instead of cutting it with a warning.
        alignments: compute `Translation.alignment`, by one more pass over each finished translation. A stream has none.
        attention: compute `Translation.attention`, likewise.
        source_language: the language of the sentences, for a bundle that has several; None for its default.
        target_language: the language to translate into, likewise. A sentence may choose another one by its beginning
            if the bundle has that (`>>name<<`).
        generation: "greedy", or "model": what the model's own settings say, as Hugging Face's `generate` does.
        beam, n_best, length_penalty, early_stopping, patience, alternatives: see
            `txport.runtime.search.settings.Search`.
        repetition_penalty, no_repeat_ngram, suppress, begin_suppress, end_ids, forced_end, renormalize: see
            `txport.runtime.search.settings.Rules`.
        bad_words: what a translation must not have: texts, or sequences of ids.
        sample: draw tokens at random.
        temperature, top_k, top_p, min_p, seed: see `txport.runtime.search.settings.Sampling`.
        shortlist: choose each translation's tokens among the words that the bundle's shortlist gives for its source,
            and those of the prefix; scores are over these words.

    Raises:
        InputError: a value cannot be.
    """

    max_length: int | None = _option(
        None, "Most tokens to make, eos included. [default: 2 for each of the source's and 20 more]", "count", least=1
    )
    full_length: bool = _option(False, "Let a translation be as long as the bundle makes any.", "flag")
    min_length: int = _option(0, "Tokens to make before a translation may end.", "count", least=0)
    prefix: str | Sequence[int] | None = _option(None, "Text that every translation must begin with.")
    scores: bool = _option(False, "The log-probability of each id; needs --json.", "flag")
    strict: bool = _option(False, "Refuse a line that is too long, instead of cutting it with a warning.", "flag")
    alignments: bool = _option(
        False,
        'Write which words come from which, after the text, as in "ein Hund ||| 0-0 1-1" (source-target, from 0); '
        "for bundles of tx-export --with-attention.",
        "flag",
    )
    attention: bool = _option(
        False,
        "How much each id attended to each id of the source; needs --json, and a bundle of tx-export --with-attention.",
        "flag",
    )
    source_language: str | None = _option(
        None, "Language of the input, for models with several. [default: the bundle's]"
    )
    target_language: str | None = _option(
        None, "Language to translate into, for models with several; tx-inspect lists them."
    )
    generation: str = _option(
        "greedy",
        'How to search where no option says it: "greedy", or "model" for the model\'s own settings. [default: greedy]',
        "choice",
        choices=("greedy", "model"),
    )
    beam: int | None = _option(None, "Hypotheses to follow side by side. [default: 1, greedy]", "count", least=1)
    n_best: int = _option(
        1, "Translations of each line, at most as many as the beam, or samples; needs --json.", "count", least=1
    )
    length_penalty: float | None = _option(
        None, "Power of the length by which scores of beams are divided. [default: 1]", "number", any=True
    )
    early_stopping: Early | None = _option(
        None,
        'When a beam search ends: "true" with enough hypotheses, "false" when none is likely to be better, "never" '
        "when none can be. [default: false]",
        "choice",
        choices=(True, False, "never"),
    )
    patience: float | None = _option(
        None, "With --early-stopping true, how many times the beam must have ended. [default: 1]", "number"
    )
    repetition_penalty: float | None = _option(None, "Factor against tokens made already. [default: 1]", "number")
    no_repeat_ngram: int | None = _option(None, "So many tokens in a row never occur twice.", "count", least=1)
    bad_words: Sequence[str | Sequence[int]] | None = _option(None, "Text that must not occur.", "texts")
    suppress: Sequence[int] | None = _option(None, "Id that must not occur.", "ids")
    begin_suppress: Sequence[int] | None = _option(None, "Id that must not be the first.", "ids")
    end_ids: Sequence[int] | None = _option(None, "Id that ends a translation, besides eos.", "ids")
    forced_end: int | None = _option(None, "Id that ends a translation that reaches its limit.", "count", least=0)
    renormalize: bool | None = _option(None, "Normalise the probabilities of beams again after all rules.", "flag")
    sample: bool | None = _option(None, "Draw tokens at random.", "flag")
    temperature: float | None = _option(None, "What logits are divided by before a draw. [default: 1]", "number")
    top_k: int | None = _option(None, "Draw among so many best tokens; 0 for all. [default: 0]", "count", least=0)
    top_p: float | None = _option(
        None, "Draw among the best tokens that have this probability in all. [default: 1]", "number", most=1
    )
    min_p: float | None = _option(
        None, "Draw among tokens that have this share of the best one's probability. [default: 0]", "number", most=1
    )
    seed: int = _option(0, "Number that draws follow from.", "count", least=0)
    alternatives: int = _option(
        0, "Continue each of so many best tokens after the prefix; needs --json.", "count", least=0
    )
    shortlist: bool = _option(
        False,
        "Choose among the words that the bundle's shortlist has for the source's; for bundles of tx-shortlist.",
        "flag",
    )

    def __post_init__(self) -> None:
        for option in fields(self):
            value = getattr(self, option.name)
            wrong = None if value is option.default else _wrong(value, option.name, **option.metadata)
            if wrong is not None:
                raise InputError(f"{option.name} {value!r} is not {wrong}")

    def changed(self, changes: Mapping[str, Any]) -> "Options":
        """These options with some fields replaced.

        Raises:
            InputError: there is no such option.
        """
        names = [option.name for option in fields(self)]
        for name in changes.keys() - names:
            raise InputError(f"there is no option {name!r}: {nearest(name, names)}")
        return replace(self, **changes)


def _wrong(value: Any, name: str, kind: str, **bounds: Any) -> str | None:
    """Words for what a value should have been, or None."""
    if kind == "count":
        if not _is_whole(value):
            return "a whole number"
        if value < bounds["least"] and name not in _BOUNDED_BY_BUNDLE:
            return f"{bounds['least']} or more"
        if value > _MOST_COUNT and name not in _BOUNDED_BY_BUNDLE:
            return f"at most {_MOST_COUNT}"
    elif kind == "number":
        most = bounds.get("most", math.inf)
        number = isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)
        if bounds.get("any"):
            return None if number else "a number"
        if not (number and 0 < value <= most):
            return "a number above 0" + ("" if most == math.inf else f", at most {most}")
    elif kind == "choice" and not any(value is choice or value == choice != 1 for choice in bounds["choices"]):
        return f"one of {', '.join(map(repr, bounds['choices']))}"
    return None


# Lengths, whose bounds are said together with the bundle's.
_BOUNDED_BY_BUNDLE = ("max_length", "min_length")
_MOST_COUNT = 2**63 - 1  # C++ has it in an int64_t
DEFAULTS = Options()
