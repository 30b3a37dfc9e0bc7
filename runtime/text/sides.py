"""Conversion of text to ids and back for one language side (source or target).

A side is a SentencePiece model, a tokenizer.json of the library `tokenizers`, or bytes. Language tokens and eos around
the ids are added elsewhere (`txport.runtime.text.affixes`).
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from functools import cached_property
from typing import Any, Protocol

import sentencepiece
from txport.runtime.bundle.archive import File
from txport.runtime.bundle.protobuf import field, fields, number_field
from txport.runtime.bundle.tokenizer_schema import FIRST_BYTE, ScoreSums
from txport.runtime.errors import BundleError, EngineError, is_failure
from txport.runtime.libraries import needs
from txport.runtime.text.added_tokens import WORD, Normalised
from txport.runtime.text.alignment import Span
from txport.runtime.text.expression_rules import SlowExpression, check_expressions
from txport.runtime.text.pieces import LocatedPiece, read_pieces
from txport.runtime.text.sentencepiece_rules import check_sentencepiece
from txport.runtime.text.unigram import Unigram, library_sums, other_unigram
from txport.runtime.text.unknown import blocks, restore_spans, shorten_runs
from txport.runtime.text.vocabulary import Vocabulary

# Pieces of the source that replace ids of a translation, by position.
Copies = Mapping[int, str]
NO_COPIES: Copies = {}


class TokenizerSide(Protocol):
    """Converter of text to ids and back for one language side, without language tokens and eos (affixes)."""

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text alone. Unpaired surrogates count as unseen characters."""

    def locate(self, text: str) -> tuple[list[int], list[Span]]:
        """Return the ids of a text, and the span of each id in the original text, before normalisation."""

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ids."""

    def piece(self, token: int) -> str | None:
        """Return the piece of an id; None if it has none."""

    def split(self, text: str) -> list[str]:
        """Return the piece of each id of `encode`, including unknown ids; an empty list if no id can be unknown."""
        return []

    def decode_copied(self, ids: Sequence[int], copies: Copies) -> str:
        """Return the text of ids. `copies` replaces the ids at some positions by pieces of the source."""
        return self.decode(ids)


class SentencePieceSide(TokenizerSide):
    """A SentencePiece model (Kudo and Richardson 2018, arXiv:1808.06226), whose ids may be reordered by a vocabulary.

    Args:
        model: the file.
        vocabulary: the order of the ids; None for that of the model file.
        sums: whether a unigram model sums scores in float32 or float64, which can change the segmentation; None for the
            precision of the installed library.

    Raises:
        BundleError: the file is missing or is not a SentencePiece model.
    """

    def __init__(self, model: File, vocabulary: Vocabulary | None = None, sums: ScoreSums | None = None) -> None:
        self._processor = _load(model)
        self._vocabulary = vocabulary
        self._sums = sums or library_sums()
        self.size = int(self._processor.get_piece_size())

    def encode(self, text: str) -> list[int]:
        text, _ = shorten_runs(_valid(text), self._is_unknown)
        if (pieces := self._segmented(text)) is not None:
            return self._ids(pieces)
        if self._vocabulary is None:
            return list(self._processor.encode(text, out_type=int))
        with _wrap_failures("SentencePiece", "encode a text"):
            pieces = self._processor.encode(text, out_type=str)
        return self._vocabulary.ids(pieces)

    def locate(self, text: str) -> tuple[list[int], list[Span]]:
        text, gaps = shorten_runs(_valid(text), self._is_unknown)
        pieces = self._pieces(text)
        return self._ids(pieces), restore_spans([(piece.begin, piece.end) for piece in pieces], gaps)

    def _pieces(self, text: str) -> list[LocatedPiece]:
        if (pieces := self._segmented(text)) is not None:
            return pieces
        return _located_pieces(self._processor, text)

    def _segmented(self, text: str) -> list[LocatedPiece] | None:
        """Return the pieces of a text; None if both precisions of the sums of scores give the same segmentation."""
        if self._unigram is None:
            return None
        normal, places = self._processor.normalize(text, with_offsets=True)
        if self._unigram.is_certain(normal):
            return None
        return self._unigram.segment(normal, places)

    @cached_property
    def _unigram(self) -> Unigram | None:
        return other_unigram(self._processor.serialized_model_proto(), self._sums)

    def _ids(self, pieces: Sequence[LocatedPiece]) -> list[int]:
        if self._vocabulary is None:
            return [piece.id for piece in pieces]
        return self._vocabulary.ids([piece.text for piece in pieces])

    def _is_unknown(self, text: str) -> bool:
        """Return whether the model converts a text to one unknown piece, after the marker of a word.

        The doubled text is encoded. The model would remove characters at the ends of the text that it normalises to
        white space; in the middle of the doubled text they are kept.
        """
        ids = self._processor.encode(text * 2, out_type=int)
        return ids[-1:] == [self._processor.unk_id()] and ids[:-1] in ([], [self._processor.piece_to_id(WORD)])

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ids.

        A model's vocabulary may be padded beyond its pieces. Ids from the padding, which an undertrained model can
        choose, leave no text, as special ids do.
        """
        with _wrap_failures("SentencePiece", "decode ids"):
            if self._vocabulary is None:
                return str(self._processor.decode([int(i) for i in ids if 0 <= i < self.size]))
            return str(self._processor.decode_pieces(self._vocabulary.pieces(ids)))

    def split(self, text: str) -> list[str]:
        full_text = _valid(text)
        text, gaps = shorten_runs(full_text, self._is_unknown)
        pieces = self._pieces(text)
        spans = restore_spans([(piece.begin, piece.end) for piece in pieces], gaps)
        split = []
        for piece, (begin, end) in zip(pieces, spans, strict=True):
            piece_text = piece.text
            if end - begin > piece.end - piece.begin:  # a long run of unknown characters
                mark = WORD * piece_text.startswith(WORD)
                piece_text = mark + full_text[begin:end].strip()
            split.append(piece_text)
        return split

    def decode_copied(self, ids: Sequence[int], copies: Copies) -> str:
        pieces: list[str] = []
        has_text = False
        for position, token in enumerate(ids):
            piece = copies.get(position) or self.piece(token)
            if piece is None:
                continue
            piece_id = self._processor.piece_to_id(piece)
            if position in copies and piece_id == self._processor.unk_id():  # SentencePiece shows it unchanged
                piece = piece.replace(WORD, " ")
                if not has_text:
                    piece = piece.lstrip(" ")
            has_text = has_text or not self._processor.is_control(piece_id)
            pieces.append(piece)
        with _wrap_failures("SentencePiece", "decode pieces"):
            return str(self._processor.decode_pieces(pieces))

    def piece(self, token: int) -> str | None:
        if self._vocabulary is None:
            if token >= self.size:
                return None
            with _wrap_failures("SentencePiece", "decode ids"):
                return str(self._processor.id_to_piece(token))
        return "".join(self._vocabulary.pieces([token])) or None

    def locate_without_prefix(self, text: str) -> tuple[list[int], list[Span]]:
        """Encode as `locate` does, without the space that SentencePiece puts in front of a text."""
        return self._continuing.locate(text)

    def split_without_prefix(self, text: str) -> list[str]:
        """Return pieces as `split` does, without the space that SentencePiece puts in front of a text."""
        return self._continuing.split(text)

    def normalised(self, text: str) -> Normalised | None:
        """Return the normalised text, without the space that the model adds in front; None without normalisation."""
        if self._normalises:
            return _normalise(self._processor, _valid(text))
        return None

    def space(self) -> list[int]:
        """Return the ids of a space alone."""
        if self._vocabulary is None:
            return [self._processor.piece_to_id(WORD)]
        return self._vocabulary.ids([WORD])

    @cached_property
    def _normalises(self) -> bool:
        """True if the model has rules of normalisation."""
        specs = [content for number, content, _ in fields(self._processor.serialized_model_proto()) if number == 3]
        return any(number == 2 and content for spec in specs for number, content, _ in fields(spec))

    @cached_property
    def _continuing(self) -> "SentencePieceSide":
        """The same model without the space that it adds in front of a text."""
        # Protocol Buffers merges the fields of a repeated message, so NormalizerSpec.add_dummy_prefix becomes false.
        data = self._processor.serialized_model_proto() + field(3, number_field(3, 0))
        continuing = copy(self)
        continuing._processor = sentencepiece.SentencePieceProcessor(model_proto=data)
        return continuing


def _normalise(processor: sentencepiece.SentencePieceProcessor, text: str) -> Normalised:
    """Normalise a text. Runs of many characters without white space are normalised block by block."""
    spans = list(blocks(text, lambda part: _normalised_block(processor, part).text))
    parts = [_normalised_block(processor, text[start:end]) for start, end in spans]
    offsets = [start + offset for (start, _), part in zip(spans, parts, strict=True) for offset in part.offsets[:-1]]
    return Normalised("".join(part.text for part in parts), [*offsets, len(text)])


def _located_pieces(processor: sentencepiece.SentencePieceProcessor, text: str) -> list[LocatedPiece]:
    with _wrap_failures("SentencePiece", "encode a text"):
        return read_pieces(processor.encode(text, out_type="serialized_proto"), text)


def _normalised_block(processor: sentencepiece.SentencePieceProcessor, text: str) -> Normalised:
    """Return a normalised text, joined from its pieces."""
    parts: list[str] = []
    offsets: list[int] = []
    for piece in _located_pieces(processor, text):
        # A character outside the vocabulary becomes one piece per byte. SentencePiece gives its span to the last one.
        if processor.is_byte(piece.id):
            part = text[piece.begin : piece.end]
        else:
            part = piece.text.replace(WORD, " ")
        # Offsets count from the end of the piece, since the space that SentencePiece puts in front is not in the text.
        offsets += [max(piece.begin, piece.end - len(part) + i) for i in range(len(part))]
        parts.append(part)
    joined_text = "".join(parts)
    skipped = len(joined_text) - len(joined_text.lstrip(" "))
    # The model removes white space at both ends, so it is restored here. A text of only white space becomes one space.
    before = text[:1].isspace()
    after = text[-1:].isspace() and not text.isspace()
    end = len(text.rstrip())
    return Normalised(
        " " * before + joined_text[skipped:] + " " * after,
        [*[0] * before, *offsets[skipped:], *[end] * after, len(text)],
    )


class TokenizersSide(TokenizerSide):
    """A tokenizer.json of the library `tokenizers`, without the special tokens that the library would add.

    Raises:
        BundleError: the file is missing or is not a tokenizer.json.
        MissingLibrary: the library is not installed.
    """

    def __init__(self, model: File) -> None:
        with needs("tokenizers"):
            import tokenizers
        try:
            data = bytes(model.read_bytes())
            check_expressions(data)
            self._tokenizer: Any = tokenizers.Tokenizer.from_str(data.decode("utf-8"))
        except OSError as error:
            raise BundleError(f"{model} is missing or cannot be read: copy or export the bundle again") from error
        except SlowExpression as error:
            raise BundleError(f"{model} {error}: use a tokenizer.json without it") from error
        except BaseException as error:  # the library raises plain Exception; its panics are only BaseException
            if not is_failure(error):
                raise
            raise BundleError(f"{model} is not a tokenizer.json ({error}): copy or export the bundle again") from error
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self.size = int(self._tokenizer.get_vocab_size())

    def encode(self, text: str) -> list[int]:
        return self.locate(text)[0]

    def locate(self, text: str) -> tuple[list[int], list[Span]]:
        with _wrap_failures("tokenizers", "encode a text"):
            encoding = self._tokenizer.encode(_valid(text), add_special_tokens=False)
        return list(encoding.ids), list(encoding.offsets)

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ids, without special ones."""
        with _wrap_failures("tokenizers", "decode ids"):
            return str(self._tokenizer.decode([int(i) for i in ids if i >= 0], skip_special_tokens=True))

    def piece(self, token: int) -> str | None:
        piece: str | None = self._tokenizer.id_to_token(token)
        return piece


class Bytes(TokenizerSide):
    """UTF-8 bytes, as in ByT5. Ids that are not bytes, and invalid bytes, are dropped from texts."""

    def encode(self, text: str) -> list[int]:
        return [byte + FIRST_BYTE for byte in _valid(text).encode()]

    def locate(self, text: str) -> tuple[list[int], list[Span]]:
        spans = [(i, i + 1) for i, character in enumerate(_valid(text)) for _ in character.encode()]
        return self.encode(text), spans

    def decode(self, ids: Sequence[int]) -> str:
        return bytes(i - FIRST_BYTE for i in ids if 0 <= i - FIRST_BYTE < 256).decode(errors="ignore")

    def piece(self, token: int) -> str | None:
        byte = token - FIRST_BYTE
        if 0 <= byte < 256:
            if 32 < byte < 127:
                return chr(byte)
            return f"<0x{byte:02X}>"
        return None

    def locate_without_prefix(self, text: str) -> tuple[list[int], list[Span]]:
        """Encode as `locate` does: bytes have no prefix."""
        return self.locate(text)

    def split_without_prefix(self, text: str) -> list[str]:
        """Return no pieces: no byte is unknown."""
        return []

    def normalised(self, text: str) -> Normalised | None:
        """Return None: bytes are not normalised."""
        return None

    def space(self) -> list[int]:
        """Return the id of a space."""
        return self.encode(" ")


def _load(path: File) -> sentencepiece.SentencePieceProcessor:
    processor = sentencepiece.SentencePieceProcessor()
    try:
        model = path.read_bytes()
        check_sentencepiece(model)
        processor.LoadFromSerializedProto(model)
    except OSError as error:
        raise BundleError(f"{path} is missing or cannot be read: copy or export the bundle again") from error
    except ValueError as error:
        raise BundleError(f"{path} {error}: copy or export the bundle again") from error
    except RuntimeError as error:
        raise BundleError(f"{path} is not a SentencePiece model: copy or export the bundle again") from error
    return processor


@contextmanager
def _wrap_failures(library: str, what: str) -> Iterator[None]:
    """Convert exceptions of a library. A panic of `tokenizers` is not an `Exception`.

    SentencePiece raises UnicodeDecodeError for pieces that are not UTF-8.
    """
    try:
        yield
    except BaseException as error:
        if not is_failure(error):
            raise
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise EngineError(f"{library} failed to {what} ({reason}): copy or export the bundle again") from error


def _valid(text: str) -> str:
    """Return the text with unpaired surrogates replaced, since UTF-8 cannot encode them."""
    if not text.isascii():
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text
