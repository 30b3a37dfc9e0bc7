"""Per-call decoding options: one definition for all calls of the `Translator` and the command.

A new option is a field here, with its help, and its meaning where requests are made (`txport.runtime.text.requests`) or
decoded (`txport.runtime.search`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from numbers import Integral
from typing import Any

from txport.runtime.errors import InputError, nearest


def _option(default: Any, help: str, least: int | None = None) -> Any:
    """A field, with the command's help and the least value of a number."""
    return field(default=default, metadata={"help": help, "least": least})


@dataclass(frozen=True)
class Options:
    """Choices for every sentence of a call.

    Attributes:
        max_length: the most tokens to make, eos included; None for the limit that follows from the length of the source
            (`txport.runtime.text.requests.length_limit`).
        full_length: without `max_length`, make as many tokens as the bundle makes at most.
        min_length: tokens to make before eos may be.
        prefix: what each translation must begin with: text, or target ids.
        scores: compute `Translation.scores`.
        strict: refuse a text that is longer than the bundle takes, instead of cutting it with a warning.
        alignments: compute `Translation.alignment`, by one more pass over each finished translation. A stream has none.
        attention: compute `Translation.attention`, likewise.
        source_language: the language of the sentences, for a bundle that has several; None for its default.
        target_language: the language to translate into, likewise. A sentence may choose another one by its beginning
            if the bundle has that (`>>name<<`).

    Raises:
        InputError: a length is not a whole number.
    """

    max_length: int | None = _option(
        None, "Most tokens to make, eos included. [default: 2 for each of the source's and 20 more]", least=1
    )
    full_length: bool = _option(False, "Let a translation be as long as the bundle makes any.")
    min_length: int = _option(0, "Tokens to make before a translation may end.", least=0)
    prefix: str | Sequence[int] | None = _option(None, "Text that every translation must begin with.")
    scores: bool = _option(False, "The log-probability of each id; needs --json.")
    strict: bool = _option(False, "Refuse a line that is too long, instead of cutting it with a warning.")
    alignments: bool = _option(
        False,
        'Write which words come from which, after the text, as in "ein Hund ||| 0-0 1-1" (source-target, from 0); '
        "for bundles of tx-export --with-attention.",
    )
    attention: bool = _option(
        False,
        "How much each id attended to each id of the source; needs --json, and a bundle of tx-export --with-attention.",
    )
    source_language: str | None = _option(
        None, "Language of the input, for models with several. [default: the bundle's]"
    )
    target_language: str | None = _option(
        None, "Language to translate into, for models with several; tx-inspect lists them."
    )

    def __post_init__(self) -> None:
        for option in fields(self):
            value = getattr(self, option.name)
            whole = isinstance(value, Integral) and not isinstance(value, bool)
            if option.metadata["least"] is not None and not (whole or value is option.default):
                raise InputError(f"{option.name} {value!r} is not a whole number")

    def changed(self, changes: Mapping[str, Any]) -> "Options":
        """These options with some fields replaced.

        Raises:
            InputError: there is no such option.
        """
        names = [option.name for option in fields(self)]
        for name in changes.keys() - names:
            raise InputError(f"there is no option {name!r}: {nearest(name, names)}")
        return replace(self, **changes)


DEFAULTS = Options()
