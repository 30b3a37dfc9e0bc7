"""The ids before and after the ids of a text: language tokens and eos, and the forced beginning of an answer."""

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
        source_prefix: ids before those of the source text.
        source_suffix: ids after those of the source text.
        target_prefix: ids at the forced beginning of the answer.
        prompt: whether `target_prefix` is a prompt, which does not count in the length of a hypothesis.
    """

    source_prefix: list[int]
    source_suffix: list[int]
    target_prefix: list[int]
    prompt: bool = False

    def wrap(self, ids: Sequence[int], maximum: int | None = None) -> list[int]:
        """Return prefix, ids and suffix of a source text. The ids are truncated to a total of at most `maximum`."""
        if maximum is None:
            room = len(ids)
        else:
            room = max(0, maximum - self.count)
        return [*self.source_prefix, *ids[:room], *self.source_suffix]

    @property
    def count(self) -> int:
        """Number of ids around a source text."""
        return len(self.source_prefix) + len(self.source_suffix)


def affixes(
    description: TokenizerDescription, source_language: str | None = None, target_language: str | None = None
) -> Affixes:
    """Return the affixes for these languages; None selects the default language of a side.

    Raises:
        InputError: a language is unknown, the bundle has no choice of languages, or a required language is missing.
    """
    languages = description.languages
    language_ids = {
        SOURCE_LANGUAGE: _language_id("source", source_language, languages),
        TARGET_LANGUAGE: _language_id("target", target_language, languages),
    }

    def resolve(field: str, optional: bool = False) -> list[int]:
        ids: list[int] = []
        for item in getattr(description, field):
            token = item if isinstance(item, int) else language_ids[item]
            if token is not None:
                ids.append(token)
            elif not optional:
                raise _missing_language(item.partition("_")[0], languages)
        return ids

    in_text = languages is not None and languages.in_text
    resolved = resolve("source_prefix", in_text), resolve("source_suffix"), resolve("target_prefix")
    return Affixes(*resolved, description.prompt)


def split_marker(text: str, description: TokenizerDescription) -> tuple[str | None, str]:
    """Remove a marker of the target language from the beginning of a text.

    `>>name<<` is handled as in Hugging Face's MarianTokenizer: it must be at the very start, any name is allowed, and
    the rest of the text is unchanged. Other markers, such as MADLAD's `<2name>`, may follow white space, and their name
    must be a language of the bundle.

    Returns:
        the name (None if the text has no marker, or the bundle does not support markers) and the text without it.
    """
    languages = description.languages
    if languages is None or not languages.in_text:
        return None, text
    before, after = languages.marker
    any_name = languages.marker == MARIANS_MARKER
    if any_name:
        marked_text = text
    else:
        marked_text = text.lstrip()
    name, marker, rest = marked_text[len(before) :].partition(after)
    if not marked_text.startswith(before) or not marker or not (any_name or name in languages.target):
        return None, text
    return name, rest


def with_unknown_target(description: TokenizerDescription, unk: int) -> TokenizerDescription:
    """Return the description for a text whose marker names an unknown language: unk replaces the language token."""
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
        raise InputError(f"{side} language {name!r} is unknown to this bundle: use {_list_names(table)}")
    return table[name]


def _missing_language(side: str, languages: Languages | None) -> InputError:
    assert languages is not None  # the rules of the manifest ensure this
    table, _ = languages.of(side)
    return InputError(f"choose a {side} language of this bundle with --{side}-language: {_list_names(table)}")


def _list_names(names: dict[str, int]) -> str:
    first_names = list(names)[:_MAX_NAMES]
    if len(names) > len(first_names):
        rest = f" or one of {len(names) - len(first_names)} more (tx-inspect lists them)"
    else:
        rest = ""
    return ", ".join(first_names) + rest
