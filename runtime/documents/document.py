"""Documents: split into sentences, translated, and joined with their layout."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from txport.runtime.arguments import check_text
from txport.runtime.calls.requests import Call, Sentence
from txport.runtime.documents.cuts import split_long_sentence
from txport.runtime.documents.layout import Segment, join, split
from txport.runtime.results import Translation
from txport.runtime.text.affixes import split_marker
from txport.runtime.text.alignment import Span

if TYPE_CHECKING:
    from txport.runtime.bundle.tokenizer_schema import TokenizerDescription

# More characters than the average token has.
_TOKEN_CHARACTERS = 16


@dataclass(frozen=True)
class Part:
    """Sentence of a document, or part of a long sentence.

    Attributes:
        source: character span in the document.
        target: character span of its translation in the translated document.
        cut: whether it is a part of a sentence that was too long for the model and was split.
        text: the text of the source that was translated: line breaks are spaces, and a prefix that selects the language
            is included.
        translation: translation of `text`.
    """

    source: Span
    target: Span
    cut: bool
    text: str
    translation: Translation


@dataclass(frozen=True)
class Document:
    """Translated document.

    Attributes:
        text: the complete translation, with the layout of the source.
        parts: its sentences, in order.
    """

    text: str
    parts: list[Part]


class Draft:
    """Document before its translation.

    Args:
        call: the options.
        text: the document. Its beginning may choose the target language of all parts, if the bundle supports that.
        description: of the bundle's tokenizer.
        what: names a line in messages, before its number.

    Attributes:
        sentences: those of its segments; None for a segment without tokens.

    Raises:
        InputError: it is not text, or a sentence is too long and the call is strict.
    """

    def __init__(self, call: Call, text: str, description: "TokenizerDescription", what: str) -> None:
        check_text(text, "the document")
        self.call = call
        self.text = split_marker(text, description)[1]
        self._marker = text[: len(text) - len(self.text)]
        languages = description.languages
        language = call.options.source_language or (None if languages is None else languages.source_default)
        self.segments: list[Segment] = []
        self.sentences: list[Sentence | None] = []
        warnings: list[str] = []
        collecting_call = replace(call, warn=warnings.append)
        line = 1
        counted = 0
        for segment in split(self.text, language):
            line += self.text.count("\n", counted, segment.start)
            counted = segment.start
            location = f"the sentence in {what} {line}"
            sentence = self._sentence(collecting_call, segment, location)
            if sentence is not None and sentence.truncated:
                self._add_parts(segment, location, warnings.pop())
            else:
                self.segments.append(segment)
                self.sentences.append(sentence)

    def _add_parts(self, segment: Segment, what: str, warning: str) -> None:
        first = len(self.segments)
        for part in split_long_sentence(self.text, segment, self._fitting, _TOKEN_CHARACTERS * self.call.limits.source):
            self.sentences.append(self._sentence(self.call, part, what))
            self.segments.append(part)
        self.call.warn(f"{warning} into {len(self.segments) - first} parts")

    def _sentence(self, call: Call, segment: Segment, what: str) -> Sentence | None:
        return call.sentence(self._marker + segment.text, what, len(self.segments) + 1)

    def _fitting(self, text: str) -> int:
        return self.call.fitting_length(self._marker + text) - len(self._marker)

    def document_of(self, translations: Sequence[Translation]) -> Document:
        """Return the document from the translations of all segments. Warn about unfinished translations."""
        text, targets = join(self.text, self.segments, [each.text for each in translations])
        skipped = len(self._marker)
        parts = [
            Part(
                (segment.start + skipped, segment.end + skipped),
                target,
                segment.cut,
                self._marker + segment.text,
                translation,
            )
            for segment, target, translation in zip(self.segments, targets, translations, strict=True)
        ]
        if unfinished := sum(not each.finished for each in translations):
            self.call.warn(
                f"{unfinished} of {len(parts)} parts of the document reached the maximum length before an end"
            )
        return Document(text, parts)
