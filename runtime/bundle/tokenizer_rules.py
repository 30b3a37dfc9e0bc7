"""Rules inside the field `tokenizer` of a manifest, beyond types. The C++ runtime checks the same."""

from collections.abc import Collection, Iterator

from txport.runtime.bundle.tokenizer_schema import FIRST_BYTE, WITHOUT_FILES, TokenizerDescription, Vocabularies

_LISTS = ("source_prefix", "source_suffix", "target_prefix")


def tokenizer_faults(
    tokenizer: TokenizerDescription, files: Collection[str], vocabularies: Vocabularies
) -> Iterator[str]:
    """Contradictions between the fields.

    Args:
        tokenizer: the field.
        files: the names of the bundle's files.
        vocabularies: those of the model.
    """
    yield from _file_faults(tokenizer, files)
    if tokenizer.kind == "bytes" and (minimum := FIRST_BYTE + 256) > min(vocabularies.source, vocabularies.target):
        yield f"tokenizer.kind 'bytes' needs vocabularies of {minimum} ids"
    yield from _list_faults(tokenizer, vocabularies)
    yield from _language_faults(tokenizer, vocabularies)
    yield from _added_faults(tokenizer, vocabularies)


def _file_faults(tokenizer: TokenizerDescription, file_names: Collection[str]) -> Iterator[str]:
    for side, files in (("source", tokenizer.source), ("target", tokenizer.target)):
        if (files is None) != (tokenizer.kind in WITHOUT_FILES):
            yield f"tokenizer.{side} must be null for the kinds 'none' and 'bytes' and an object for every other kind"
        if files is None:
            continue
        if files.vocabulary is not None and tokenizer.kind == "tokenizers":
            yield f"tokenizer.{side}.vocabulary must be null for kind 'tokenizers'"
        for field, name in (("model", files.model), ("vocabulary", files.vocabulary)):
            if name is not None and name not in file_names:
                yield f"tokenizer.{side}.{field} names {name!r}, which is not listed under files"


def _list_faults(tokenizer: TokenizerDescription, vocabularies: Vocabularies) -> Iterator[str]:
    languages = tokenizer.languages
    for field in _LISTS:
        side = field.partition("_")[0]
        for item in getattr(tokenizer, field):
            if isinstance(item, str):
                if languages is None or not languages.of(item.partition("_")[0])[0]:
                    yield f"tokenizer.{field} has {item!r}, but tokenizer.languages has no such language"
            elif not 0 <= item < (size := getattr(vocabularies, side)):
                yield f"tokenizer.{field} has the id {item}, outside the {side} vocabulary of {size}"


def _language_faults(tokenizer: TokenizerDescription, vocabularies: Vocabularies) -> Iterator[str]:
    languages = tokenizer.languages
    if languages is None:
        return
    of_text = {*tokenizer.source_prefix, *tokenizer.source_suffix}
    for field in ("source", "target"):
        table, default = languages.of(field)
        # An id must be in the vocabulary of every list that contains its placeholder.
        if field == "source" or f"{field}_language" in of_text:
            sides = {"source"}
        else:
            sides = set()
        sides |= {"target"} if f"{field}_language" in tokenizer.target_prefix else set()
        for side in sorted(sides):
            size = getattr(vocabularies, side)
            for name, token in table.items():
                if not 0 <= token < size:
                    yield f"tokenizer.languages.{field}[{name!r}] is {token}, outside the {side} vocabulary of {size}"
        if default is not None and default not in table:
            yield f"tokenizer.languages.{field}_default is {default!r}, which is not in tokenizer.languages.{field}"


def _added_faults(tokenizer: TokenizerDescription, vocabularies: Vocabularies) -> Iterator[str]:
    if tokenizer.added is None:
        return
    sides = [files for files in (tokenizer.source, tokenizer.target) if files is not None]
    if tokenizer.kind != "bytes" and (not sides or any(files.vocabulary is None for files in sides)):
        yield "tokenizer.added must be null unless both sides have a vocabulary or the kind is 'bytes'"
    seen: set[str] = set()
    size = min(vocabularies.source, vocabularies.target)
    for token in tokenizer.added.tokens:
        if not token.content:
            yield "tokenizer.added has an empty token"
        if token.content in seen:
            yield f"tokenizer.added has the token {token.content!r} twice"
        if not 0 <= token.id < size:
            yield f"tokenizer.added has the id {token.id}, outside the vocabulary of {size}"
        seen.add(token.content)
