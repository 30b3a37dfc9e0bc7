"""Tokenizers: SentencePiece, the library `tokenizers`, bytes, or none for models that read only ids."""

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from txport.runtime.bundle.archive import Files, files_of
from txport.runtime.bundle.tokenizer_schema import (
    ScoreSums,
    TokenizerDescription,
    TokenizerFiles,
    Vocabularies,
    plain,
)
from txport.runtime.errors import BundleError, InputError
from txport.runtime.text.added_tokens import WithAdded
from txport.runtime.text.affixes import Affixes, affixes, split_marker, with_unknown_target
from txport.runtime.text.alignment import Span
from txport.runtime.text.sides import NO_COPIES, Bytes, Copies, SentencePieceSide, TokenizerSide, TokenizersSide
from txport.runtime.text.vocabulary import load_vocabulary


class Tokenizer(Protocol):
    """Protocol of tokenizers."""

    def encode(self, text: str) -> list[int]:
        """Return all source ids of a line in the default languages, with prefix and suffix (eos)."""
        ids, text_affixes = self.encode_source(text)
        return text_affixes.wrap(ids)

    def encode_source(
        self, text: str, source_language: str | None = None, target_language: str | None = None
    ) -> tuple[list[int], Affixes]:
        """Return the source ids of the text alone, and its affixes; None for the default languages."""

    def locate_source(
        self, text: str, source_language: str | None = None, target_language: str | None = None
    ) -> tuple[list[int], list[Span], Affixes]:
        """Return the same as `encode_source`, and the character span of each id."""

    def affixes(self, source_language: str | None = None, target_language: str | None = None) -> Affixes:
        """Return the affixes of texts without a language marker; None for the default languages."""

    def encode_prefix(self, text: str) -> list[int]:
        """Return the target ids of a prefix that a translation must begin with, without bos and eos."""

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of target ids; special ids, and ids outside the vocabulary, leave no text."""

    def decode_copied(self, ids: Sequence[int], copies: Copies) -> str:
        """Return the text of target ids. `copies` replaces some of them by pieces of the source."""
        return self.decode(ids)

    def split_source(self, text: str, source_language: str | None, target_language: str | None) -> list[str]:
        """Return the piece of each id of `encode_source`; for an unknown id, its part of the text."""
        return []

    def source_piece(self, token: int) -> str | None:
        """Return the piece of a source id; None if it has none."""
        return None

    def source_pieces(self, ids: Sequence[int]) -> list[str]:
        """Return labels of source ids, for display."""

    def target_pieces(self, ids: Sequence[int]) -> list[str]:
        """Return labels of target ids, for display."""

    def target_spans(self, ids: Sequence[int], copies: Copies = NO_COPIES) -> list[Span]:
        """Return the span that each id adds to the text of `decode_copied`; incomplete characters go to the last id."""
        stream = TextStream(self, copies)
        spans = list[Span]()
        end = 0
        for position, token in enumerate(ids):
            start = end
            end = end + len(stream.add(token, position == len(ids) - 1))
            spans.append((start, end))
        return spans


class TextTokenizer(Tokenizer):
    """Two sides, and the affixes of a text.

    Args:
        source: the model of the source side.
        target: the model of the target side.
        description: the affixes and languages, as in the manifest.
        unk: the id that replaces an unknown language.
    """

    def __init__(
        self, source: TokenizerSide, target: TokenizerSide, description: TokenizerDescription, unk: int
    ) -> None:
        self._source = source
        self._target = target
        self._description = description
        self._unk = unk

    def encode_source(
        self, text: str, source_language: str | None = None, target_language: str | None = None
    ) -> tuple[list[int], Affixes]:
        """Return the source ids of the text alone, and its affixes.

        Args:
            text: one line. It may begin with a marker of its target language if the bundle supports markers.
            source_language, target_language: names of languages; None for the default.

        Raises:
            InputError: as `txport.runtime.text.affixes.affixes`.
        """
        rest, text_affixes = self._split(text, source_language, target_language)
        return self._source.encode(rest), text_affixes

    def locate_source(
        self, text: str, source_language: str | None = None, target_language: str | None = None
    ) -> tuple[list[int], list[Span], Affixes]:
        """Encode with the characters of each id, counted from the beginning of the whole text; see `encode_source`."""
        rest, text_affixes = self._split(text, source_language, target_language)
        ids, spans = self._source.locate(rest)
        skipped = len(text) - len(rest)
        return ids, [(start + skipped, end + skipped) for start, end in spans], text_affixes

    def split_source(self, text: str, source_language: str | None, target_language: str | None) -> list[str]:
        return self._source.split(self._split(text, source_language, target_language)[0])

    def affixes(self, source_language: str | None = None, target_language: str | None = None) -> Affixes:
        return affixes(self._description, source_language, target_language)

    def encode_prefix(self, text: str) -> list[int]:
        return self._target.encode(text)

    def prefix_spans(self, text: str) -> list[Span]:
        """Return the character span of each id of `encode_prefix`."""
        return self._target.locate(text)[1]

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of target ids; ids without a piece leave no text."""
        return self._target.decode(ids)

    def decode_copied(self, ids: Sequence[int], copies: Copies) -> str:
        if copies:
            return self._target.decode_copied(ids, copies)
        return self.decode(ids)

    def source_piece(self, token: int) -> str | None:
        return self._source.piece(token)

    def source_pieces(self, ids: Sequence[int]) -> list[str]:
        """Return the pieces of source ids; for an id without a piece, `<id>`."""
        return [self._source.piece(token) or f"<{token}>" for token in ids]

    def target_pieces(self, ids: Sequence[int]) -> list[str]:
        """Return the pieces of target ids; for an id without a piece, `<id>`."""
        return [self._target.piece(token) or f"<{token}>" for token in ids]

    def source_text(self, ids: Sequence[int]) -> str:
        """Return the text of source ids, to make sample texts from random ids."""
        return self._source.decode(ids)

    def _split(self, text: str, source_language: str | None, target_language: str | None) -> tuple[str, Affixes]:
        """Return the text without its language marker, and the affixes for the marked language."""
        description = self._description
        name, text = split_marker(text, description)
        if name is not None:
            is_known = description.languages is not None and name in description.languages.target
            if is_known:
                target_language = name
            else:
                target_language = None
            if not is_known:
                description = with_unknown_target(description, self._unk)
        return text, affixes(description, source_language, target_language)


class SentencePieceTokenizer(TextTokenizer):
    """Two SentencePiece models, or one for both sides, whose ids are also those of the translation model.

    Args:
        source: the model file of the source side.
        target: the model file of the target side; None for the same file.
        eos: the id that is appended to source ids.
        sums: the arithmetic of unigram models; None for that of the installed library.

    Raises:
        BundleError: a file is missing or is not a SentencePiece model.
    """

    def __init__(self, source: Path, target: Path | None = None, *, eos: int, sums: ScoreSums | None = None) -> None:
        pieces = SentencePieceSide(source, None, sums)
        if target is None or target == source:
            target_pieces = pieces
        else:
            target_pieces = SentencePieceSide(target, None, sums)
        super().__init__(pieces, target_pieces, plain(source.name, (target or source).name, eos), 0)
        self.source_size = pieces.size
        self.target_size = target_pieces.size


class IdsOnly(Tokenizer):
    """Placeholder for a bundle without a tokenizer: decoding gives no text, encoding raises an error.

    Args:
        description: the affixes and languages, as in the manifest.
    """

    def __init__(self, description: TokenizerDescription) -> None:
        self._description = description

    def encode_source(
        self, text: str, source_language: str | None = None, target_language: str | None = None
    ) -> tuple[list[int], Affixes]:
        """Raise InputError: the bundle has no tokenizer."""
        raise InputError("this bundle has no tokenizer: give it ids (Translator.translate_ids)")

    def encode_prefix(self, text: str) -> list[int]:
        """Raise InputError: the bundle has no tokenizer."""
        raise InputError("this bundle has no tokenizer: give it ids (Translator.translate_ids)")

    def locate_source(
        self, text: str, source_language: str | None = None, target_language: str | None = None
    ) -> tuple[list[int], list[Span], Affixes]:
        """Raise InputError: the bundle has no tokenizer."""
        raise InputError("this bundle has no tokenizer: give it ids (Translator.translate_ids)")

    def affixes(self, source_language: str | None = None, target_language: str | None = None) -> Affixes:
        return affixes(self._description, source_language, target_language)

    def decode(self, ids: Sequence[int]) -> str:
        """Return an empty text."""
        return ""

    def source_pieces(self, ids: Sequence[int]) -> list[str]:
        """Return `<id>` for each source id."""
        return [f"<{token}>" for token in ids]

    def target_pieces(self, ids: Sequence[int]) -> list[str]:
        """Return `<id>` for each target id."""
        return [f"<{token}>" for token in ids]


def open_tokenizer(
    bundle: Files, description: TokenizerDescription, vocabularies: Vocabularies
) -> TextTokenizer | IdsOnly:
    """Return the tokenizer that the field `tokenizer` of a manifest describes.

    Args:
        bundle: contains the files that the description names.
        description: the field.
        vocabularies: sizes of the model's vocabularies.

    Raises:
        BundleError: a file is missing, damaged, or has more pieces than the model has ids.
        MissingLibrary: the library for this kind of tokenizer is not installed.
    """
    unk = vocabularies.unk
    if description.kind == "bytes":
        side = _with_added(Bytes(), description, decodes=False)
        return TextTokenizer(side, side, description, unk)
    if description.source is None or description.target is None:
        return IdsOnly(description)
    files = files_of(bundle)
    source = _side(files, description, description.source, unk, vocabularies.source)
    is_shared = description.source == description.target and vocabularies.source == vocabularies.target
    if is_shared:
        target = source
    else:
        target = _side(files, description, description.target, unk, vocabularies.target)
    return TextTokenizer(source, target, description, unk)


def _with_added(side: SentencePieceSide | Bytes, description: TokenizerDescription, *, decodes: bool) -> TokenizerSide:
    if description.added is None:
        return side
    return WithAdded(side, description.added, decodes)


def _side(
    bundle: Files, description: TokenizerDescription, files: TokenizerFiles, unk: int, size: int
) -> TokenizerSide:
    path = bundle / files.model
    if description.kind == "sentencepiece" and files.vocabulary is not None:
        pieces = SentencePieceSide(path, load_vocabulary(bundle / files.vocabulary, size, unk), description.score_sums)
        return _with_added(pieces, description, decodes=True)
    side: TokenizersSide | SentencePieceSide
    if description.kind == "tokenizers":
        side = TokenizersSide(path)
    else:
        side = SentencePieceSide(path, None, description.score_sums)
    # A smaller tokenizer is possible: many models pad their vocabulary to a round number of rows.
    if side.size > size:
        raise BundleError(
            f"{path} has {side.size} pieces, more than the vocabulary of {size}: "
            "it belongs to another model, export the bundle again"
        )
    return side


class TextStream:
    """Decoder of ids that arrive one by one. Its pieces of text add up to the text of all ids."""

    def __init__(self, tokenizer: Tokenizer, copies: Copies = NO_COPIES) -> None:
        self._tokenizer = tokenizer
        self._copies = copies
        self._ids: list[int] = []
        self._emitted = ""

    def add(self, token_id: int, last: bool = False) -> str:
        """Return the text that this id completes: empty while a character is incomplete, the rest at the last id."""
        self._ids.append(token_id)
        text = self._tokenizer.decode_copied(self._ids, self._copies)
        # The first bytes of an incomplete character decode to a replacement character. Wait for the others.
        if not last:
            text = text.rstrip("\ufffd")
        if not text.startswith(self._emitted):
            return ""
        added = text[len(self._emitted) :]
        self._emitted = text
        return added
