"""The ids before and after a text's own: language tokens and eos, and the forced beginning of an answer."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from txport.runtime.bundle.tokenizer_schema import (
    MARIANS_MARKER,
    SOURCE_LANGUAGE,
    TARGET_LANGUAGE,
    Languages,
    TokenizerDescription,
)
from txport.runtime.errors import InputError

_MAX_NAMES = 8


@dataclass(frozen=True)
class Affixes:
    """Ids for the languages of one sentence.

    Attributes:
        source_prefix: before the source text's ids.
        source_suffix: after them.
        target_prefix: what the answer is forced to begin with.
        prompt: whether it does not count in the length of a hypothesis.
    """

    source_prefix: list[int]
    source_suffix: list[int]
    target_prefix: list[int]
    prompt: bool = False

    def wrap(self, ids: Sequence[int], most: int | None = None) -> list[int]:
        """Prefix, ids and suffix of a source text; with `most`, ids are cut so that no more than that remain."""
        if most is None:
            room = len(ids)
        else:
            room = max(0, most - self.count)
        return [*self.source_prefix, *ids[:room], *self.source_suffix]

    @property
    def count(self) -> int:
        """The ids around a source text."""
        return len(self.source_prefix) + len(self.source_suffix)


def affixes(
    description: TokenizerDescription, source_language: str | None = None, target_language: str | None = None
) -> Affixes:
    """Return the affixes for chosen languages, None for the defaults.

    Raises:
        InputError: a language is unknown, the bundle has none to choose, or one must be chosen and was not.
    """
    languages = description.languages
    chosen = {
        SOURCE_LANGUAGE: _language_id("source", source_language, languages),
        TARGET_LANGUAGE: _language_id("target", target_language, languages),
    }

    def filled(field: str, optional: bool = False) -> list[int]:
        ids: list[int] = []
        for item in getattr(description, field):
            token = item if isinstance(item, int) else chosen[item]
            if token is not None:
                ids.append(token)
            elif not optional:
                raise _must_choose(item.partition("_")[0], languages)
        return ids

    in_text = languages is not None and languages.in_text
    around = filled("source_prefix", in_text), filled("source_suffix"), filled("target_prefix")
    return Affixes(*around, description.prompt)


def split_marker(text: str, description: TokenizerDescription) -> tuple[str | None, str]:
    """Split a text's own choice of the target language from its beginning.

    `>>name<<` as Hugging Face's MarianTokenizer does: at the very start, whatever the name; the rest does not change.
    Before another marker, such as MADLAD's `<2name>`, there may be white space, and the name must be known.

    Returns:
        the name (None if the text has no marker, or the bundle takes none) and the text without the marker.
    """
    languages = description.languages
    if languages is None or not languages.in_text:
        return None, text
    before, after = languages.marker
    any_name = languages.marker == MARIANS_MARKER
    if any_name:
        begun = text
    else:
        begun = text.lstrip()
    name, marker, rest = begun[len(before) :].partition(after)
    if not begun.startswith(before) or not marker or not (any_name or name in languages.target):
        return None, text
    return name, rest


def with_unknown_target(description: TokenizerDescription, unk: int) -> TokenizerDescription:
    """Return the description for a text whose marker names an unknown language: unk takes the language's place."""
    prefix = tuple(unk if item == TARGET_LANGUAGE else item for item in description.source_prefix)
    return replace(description, source_prefix=prefix)


def _language_id(side: str, name: str | None, languages: Languages | None) -> int | None:
    table: dict[str, int] = {}
    if languages is not None:
        table, default = languages.of(side)
        if name is None:
            name = default
    if name is None:
        return None
    if not table:
        raise InputError(f"{side} language {name!r}: this bundle has no {side} language to choose, leave it out")
    if name not in table:
        raise InputError(f"{side} language {name!r} is unknown to this bundle: use {_some(table)}")
    return table[name]


def _must_choose(side: str, languages: Languages | None) -> InputError:
    assert languages is not None  # by the rules of the manifest
    table, _ = languages.of(side)
    return InputError(f"choose a {side} language of this bundle with --{side}-language: {_some(table)}")


def _some(names: dict[str, int]) -> str:
    shown = list(names)[:_MAX_NAMES]
    if len(names) > len(shown):
        rest = f" or one of {len(names) - len(shown)} more (tx-inspect lists them)"
    else:
        rest = ""
    return ", ".join(shown) + rest
