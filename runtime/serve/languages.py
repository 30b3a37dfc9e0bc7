"""Codes of languages in requests (ISO 639-1 if possible) and the names of the same languages in a bundle."""

from collections.abc import Iterable
from functools import cache
from importlib.resources import files

from txport.runtime.bundle.tokenizer_schema import TokenizerDescription


@cache
def _table() -> dict[str, tuple[str, str]]:
    """Return the code and the English name of each language, by its codes of two and three letters."""
    table: dict[str, tuple[str, str]] = {}
    for line in files("txport.runtime.serve").joinpath("languages.tsv").read_text(encoding="utf-8").splitlines():
        short, long, name = line.split("\t")
        table |= {short: (short, name), long: (short, name)}
    return table


def _code(name: str, keep_suffix: bool = False) -> str:
    """Return the code of a bundle's language: de for `deu_Latn` and `de_DE`. If `keep_suffix`, keep the suffix."""
    first, _, rest = name.replace("_", "-").partition("-")
    short, _ = _table().get(first.lower(), (first, ""))
    if keep_suffix and rest:
        return f"{short}-{rest}"
    return short


def by_code(names: Iterable[str]) -> dict[str, str]:
    """Return a bundle's languages by their codes. Suffixes distinguish variants, such as zh-Hans and zh-Hant."""
    names = list(names)
    codes = [_code(name) for name in names]
    return {_code(name, codes.count(code) > 1): name for name, code in zip(names, codes, strict=True)}


def name_of(code: str) -> str:
    """Return the English name of a code, or the code."""
    first, _, rest = code.partition("-")
    _, name = _table().get(first, (first, code))
    if rest and name != code:
        return f"{name} ({rest})"
    return name


def sides(description: TokenizerDescription, name: str) -> tuple[dict[str, str | None], dict[str, str | None]]:
    """Return the source and the target languages of a bundle: their names in the bundle, by their codes.

    Args:
        description: tokenizer of the bundle; it lists the languages if there are several.
        name: name of the model. A name such as "en-de" sets languages that the bundle does not specify; other names
            are ignored.
    """
    names_by_side: list[dict[str, str | None]] = [{}, {}]
    parts = name.split("-")
    if len(parts) == 2 and all(part in _table() for part in parts):
        names_by_side = [{_code(part): None} for part in parts]
    languages = description.languages
    for side, names in enumerate((languages.source, languages.target) if languages is not None else ()):
        if names:
            names_by_side[side] = dict(by_code(names))
    return names_by_side[0], names_by_side[1]
