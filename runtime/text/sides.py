"""The model of one side of a tokenizer: SentencePiece, the `tokenizers` library, or bytes."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from functools import cached_property
from typing import Any, Protocol

import sentencepiece
from txport.runtime.bundle.archive import File
from txport.runtime.bundle.protobuf import field, fields, number_field
from txport.runtime.bundle.tokenizer_schema import FIRST_BYTE
from txport.runtime.errors import BundleError, EngineError, is_failure
from txport.runtime.libraries import needs
from txport.runtime.text.added_tokens import WORD, Normalised
from txport.runtime.text.alignment import Span
from txport.runtime.text.expression_rules import SlowExpression, check_expressions
from txport.runtime.text.sentencepiece_rules import check_sentencepiece
from txport.runtime.text.unknown import blocks, located, shortened
from txport.runtime.text.vocabulary import Vocabulary

# Pieces of the source that replace ids of a translation, by position.
Copies = Mapping[int, str]
NO_COPIES: Copies = {}


class TokenizerSide(Protocol):
    """The model of one side: text to ids and back, without affixes."""

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text alone. Unpaired surrogates count as unseen characters."""

    def locate(self, text: str) -> tuple[list[int], list[Span]]:
        """Encode, with the characters that each id stands for, also where normalisation changes them."""

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ids."""

    def piece(self, token: int) -> str | None:
        """Return the piece of an id; None if it has none."""

    def split(self, text: str) -> list[str]:
        """Return the piece of each id of `encode`, that of an unknown id as well; nothing if no id is unknown."""
        return []

    def decode_copied(self, ids: Sequence[int], copies: Copies) -> str:
        """Return the text of ids, some of which are replaced by pieces, if an id can be unknown."""
        return self.decode(ids)


class Pieces(TokenizerSide):
    """A SentencePiece model (Kudo and Richardson 2018, arXiv:1808.06226), whose ids may be reordered by a vocabulary.

    Args:
        model: the file.
        vocabulary: the order of the ids; None for that of the model file.

    Raises:
        BundleError: the file is missing or is not a SentencePiece model.
    """

    def __init__(self, model: File, vocabulary: Vocabulary | None = None) -> None:
        self._processor = _load(model)
        self._vocabulary = vocabulary
        self.size = int(self._processor.get_piece_size())

    def encode(self, text: str) -> list[int]:
        text, _ = shortened(_valid(text), self._is_unknown)
        if self._vocabulary is None:
            return list(self._processor.encode(text, out_type=int))
        return self._vocabulary.ids(self._processor.encode(text, out_type=str))

    def locate(self, text: str) -> tuple[list[int], list[Span]]:
        text, gaps = shortened(_valid(text), self._is_unknown)
        pieces = self._processor.encode(text, out_type="immutable_proto").pieces
        spans = located([(piece.begin, piece.end) for piece in pieces], gaps)
        if self._vocabulary is None:
            return [piece.id for piece in pieces], spans
        return self._vocabulary.ids([piece.piece for piece in pieces]), spans

    def _is_unknown(self, text: str) -> bool:
        """Return whether the model makes one unknown piece of a text, after the mark of a word.

        It reads the text twice, since white space at the ends would be removed, and not be seen.
        """
        ids = self._processor.encode(text * 2, out_type=int)
        return ids[-1:] == [self._processor.unk_id()] and ids[:-1] in ([], [self._processor.piece_to_id(WORD)])

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ids.

        A model's vocabulary may be padded beyond its pieces. Ids from the padding, which an undertrained model can
        choose, leave no text, as special ids do.
        """
        if self._vocabulary is None:
            return str(self._processor.decode([int(i) for i in ids if 0 <= i < self.size]))
        return str(self._processor.decode_pieces(self._vocabulary.pieces(ids)))

    def split(self, text: str) -> list[str]:
        whole = _valid(text)
        text, gaps = shortened(whole, self._is_unknown)
        pieces = self._processor.encode(text, out_type="immutable_proto").pieces
        spans = located([(piece.begin, piece.end) for piece in pieces], gaps)
        split = []
        for piece, (begin, end) in zip(pieces, spans, strict=True):
            own = piece.piece
            if end - begin > piece.end - piece.begin:  # a long run of unknown characters
                mark = WORD * own.startswith(WORD)
                own = mark + whole[begin:end].strip()
            split.append(own)
        return split

    def decode_copied(self, ids: Sequence[int], copies: Copies) -> str:
        pieces: list[str] = []
        begun = False
        for position, token in enumerate(ids):
            piece = copies.get(position) or self.piece(token)
            if piece is None:
                continue
            known = self._processor.piece_to_id(piece)
            if position in copies and known == self._processor.unk_id():  # SentencePiece shows it unchanged
                piece = piece.replace(WORD, " ")
                if not begun:
                    piece = piece.lstrip(" ")
            begun = begun or not self._processor.is_control(known)
            pieces.append(piece)
        return str(self._processor.decode_pieces(pieces))

    def piece(self, token: int) -> str | None:
        if self._vocabulary is None:
            if token < self.size:
                return str(self._processor.id_to_piece(token))
            return None
        return "".join(self._vocabulary.pieces([token])) or None

    def without_prefix(self, text: str) -> tuple[list[int], list[Span]]:
        """Encode as `locate` does, for text that continues a word."""
        return self._continuing.locate(text)

    def split_without_prefix(self, text: str) -> list[str]:
        """Return pieces as `split` does, for text that continues a word."""
        return self._continuing.split(text)

    def normalised(self, text: str) -> Normalised | None:
        """Return the text as the model reads it, without a space that it puts in front; None if it changes nothing."""
        if self._normalises:
            return _normalised(self._processor, _valid(text))
        return None

    def space(self) -> list[int]:
        """Return the ids of a space alone."""
        if self._vocabulary is None:
            return [self._processor.piece_to_id(WORD)]
        return self._vocabulary.ids([WORD])

    @cached_property
    def _normalises(self) -> bool:
        """True if there are rules of normalisation."""
        specs = [content for number, content, _ in fields(self._processor.serialized_model_proto()) if number == 3]
        return any(number == 2 and content for spec in specs for number, content, _ in fields(spec))

    @cached_property
    def _continuing(self) -> "Pieces":
        """The same model, which puts no space in front of a text."""
        # Fields of a message that is there twice are merged: NormalizerSpec.add_dummy_prefix becomes false.
        data = self._processor.serialized_model_proto() + field(3, number_field(3, 0))
        other = copy(self)
        other._processor = sentencepiece.SentencePieceProcessor(model_proto=data)
        return other


def _normalised(processor: sentencepiece.SentencePieceProcessor, text: str) -> Normalised:
    """Normalise a text, long runs in blocks."""
    spans = list(blocks(text, lambda part: _normalised_block(processor, part).text))
    parts = [_normalised_block(processor, text[start:end]) for start, end in spans]
    places = [start + place for (start, _), part in zip(spans, parts, strict=True) for place in part.places[:-1]]
    return Normalised("".join(part.text for part in parts), [*places, len(text)])


def _normalised_block(processor: sentencepiece.SentencePieceProcessor, text: str) -> Normalised:
    """Normalise a text by putting its pieces together."""
    parts: list[str] = []
    places: list[int] = []
    for piece in processor.encode(text, out_type="immutable_proto").pieces:
        # A character of several pieces is one of bytes: the last piece has it.
        if processor.is_byte(piece.id):
            part = text[piece.begin : piece.end]
        else:
            part = piece.piece.replace(WORD, " ")
        # From the end, since a space in front may be of none of the text's characters.
        places += [max(piece.begin, piece.end - len(part) + i) for i in range(len(part))]
        parts.append(part)
    whole = "".join(parts)
    skipped = len(whole) - len(whole.lstrip(" "))
    # White space at both ends, which the model drops; one of white space alone has it once.
    before = text[:1].isspace()
    after = text[-1:].isspace() and not text.isspace()
    end = len(text.rstrip())
    return Normalised(
        " " * before + whole[skipped:] + " " * after,
        [*[0] * before, *places[skipped:], *[end] * after, len(text)],
    )


class FromTokenizers(TokenizerSide):
    """A tokenizer.json of the `tokenizers` library, without the special tokens that it would add by itself.

    Raises:
        BundleError: the file is missing or is not one.
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
        except BaseException as error:  # the library raises nothing more special, or panics
            if not is_failure(error):
                raise
            raise BundleError(f"{model} is not a tokenizer.json ({error}): copy or export the bundle again") from error
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self.size = int(self._tokenizer.get_vocab_size())

    def encode(self, text: str) -> list[int]:
        return self.locate(text)[0]

    def locate(self, text: str) -> tuple[list[int], list[Span]]:
        with _panics("encode a text"):
            encoding = self._tokenizer.encode(_valid(text), add_special_tokens=False)
        return list(encoding.ids), list(encoding.offsets)

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ids, without special ones."""
        with _panics("decode ids"):
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

    def without_prefix(self, text: str) -> tuple[list[int], list[Span]]:
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
def _panics(what: str) -> Iterator[None]:
    """Turn what `tokenizers` raises into an error; a panic, as by a damaged tokenizer.json, is not an `Exception`."""
    try:
        yield
    except BaseException as error:
        if not is_failure(error):
            raise
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise EngineError(f"tokenizers failed to {what} ({reason}): copy or export the bundle again") from error


def _valid(text: str) -> str:
    """Return the text without unpaired surrogates, which UTF-8 cannot hold."""
    if not text.isascii():
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text
