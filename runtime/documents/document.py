"""Translated documents, and documents on their way to it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from txport.runtime.arguments import check_text
from txport.runtime.documents.cuts import cut
from txport.runtime.documents.layout import Piece, join, split
from txport.runtime.results import Translation
from txport.runtime.text.affixes import split_marker
from txport.runtime.text.alignment import Span
from txport.runtime.text.requests import Call, Sentence

if TYPE_CHECKING:
    from txport.runtime.bundle.tokenizer_schema import TokenizerDescription


@dataclass(frozen=True)
class Part:
    """A sentence of a document, or a part of one.

    Attributes:
        source: its characters in the document.
        target: those of its translation in the translated document.
        cut: whether it is a part of a sentence that is longer than the model takes, and was cut.
        translation: of its text, in which line breaks are spaces.
    """

    source: Span
    target: Span
    cut: bool
    translation: Translation


@dataclass(frozen=True)
class Document:
    """A translated document.

    Attributes:
        text: the whole, with the layout of the source.
        parts: its sentences, in order.
    """

    text: str
    parts: list[Part]


class Draft:
    """A document before it is translated.

    Args:
        call: the options.
        text: the document. It may choose a target language by its beginning, if the bundle has that, for all of it.
        description: of the bundle's tokenizer.
        what: names a line in messages, before its number.

    Attributes:
        sentences: those of its pieces; None where a tokenizer leaves nothing of one.

    Raises:
        InputError: it is no text, or a sentence is too long and the call is strict.
    """

    def __init__(self, call: Call, text: str, description: "TokenizerDescription", what: str) -> None:
        check_text(text, "the document")
        self.call = call
        self.text = split_marker(text, description)[1]
        self._marker = text[: len(text) - len(self.text)]
        languages = description.languages
        language = call.options.source_language or (None if languages is None else languages.source_default)
        self.pieces: list[Piece] = []
        self.sentences: list[Sentence | None] = []
        line, seen = 1, 0
        for piece in split(self.text, language):
            line += self.text.count("\n", seen, piece.start)
            seen = piece.start
            self._add(piece, f"the sentence in {what} {line}")

    def _add(self, piece: Piece, what: str) -> None:
        warnings: list[str] = []
        sentence = replace(self.call, warn=warnings.append).sentence(*self._numbered(piece, what))
        if sentence is None or not sentence.truncated:
            self.pieces.append(piece)
            self.sentences.append(sentence)
            return
        first = len(self.pieces)
        for part in cut(self.text, piece, self._fitting):
            self.sentences.append(self.call.sentence(*self._numbered(part, what)))
            self.pieces.append(part)
        self.call.warn(f"{warnings[0]} into {len(self.pieces) - first} parts")

    def _numbered(self, piece: Piece, what: str) -> tuple[str, str, int]:
        return self._marker + piece.text, what, len(self.pieces) + 1

    def _fitting(self, text: str) -> int:
        return self.call.fitting(self._marker + text) - len(self._marker)

    def built(self, translations: Sequence[Translation]) -> Document:
        """The document, of the translations of all pieces; warns of those that did not come to their end."""
        text, targets = join(self.text, self.pieces, [each.text for each in translations])
        skipped = len(self._marker)
        parts = [
            Part((piece.start + skipped, piece.end + skipped), target, piece.cut, translation)
            for piece, target, translation in zip(self.pieces, targets, translations, strict=True)
        ]
        if unfinished := sum(not each.finished for each in translations):
            self.call.warn(
                f"{unfinished} of {len(parts)} parts of the document reached the maximum length before an end"
            )
        return Document(text, parts)
