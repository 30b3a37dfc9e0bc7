"""Text to ids and back: SentencePiece, the `tokenizers` library, or nothing at all for models that work on ids."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import sentencepiece
from txport.runtime.bundle.archive import File, Files, files_of
from txport.runtime.bundle.protobuf import field, fields, number_field
from txport.runtime.bundle.tokenizer_schema import (
    FIRST_BYTE,
    TokenizerDescription,
    TokenizerFiles,
    Vocabularies,
    plain,
)
from txport.runtime.errors import BundleError, EngineError, InputError, is_failure
from txport.runtime.libraries import needs
from txport.runtime.text.added_tokens import WORD, Normalised, WithAdded
from txport.runtime.text.affixes import Affixes, affixes, split_marker, with_unknown_target
from txport.runtime.text.alignment import Span
from txport.runtime.text.sentencepiece_rules import check_sentencepiece
from txport.runtime.text.unknown import blocks, located, shortened
from txport.runtime.text.vocabulary import Vocabulary, load_vocabulary

# Pieces of the source that replace ids of a translation, by position.
Copies = Mapping[int, str]
NO_COPIES: Copies = {}


class Tokenizer(Protocol):
    """Protocol of tokenizers."""

    def encode(self, text: str) -> list[int]:
        """All source ids of one line in the default languages: those of the text, with prefix and suffix (eos)."""
        ids, around = self.encode_source(text)
        return around.wrap(ids)

    def encode_source(
        self, text: str, source_language: str | None = None, target_language: str | None = None
    ) -> tuple[list[int], Affixes]:
        """Return the source ids of the text alone, and its affixes; None for the default languages."""

    def locate_source(
        self, text: str, source_language: str | None = None, target_language: str | None = None
    ) -> tuple[list[int], list[Span], Affixes]:
        """Encode as `encode_source` does, with the characters, first and after the last, that each id stands for."""

    def affixes(self, source_language: str | None = None, target_language: str | None = None) -> Affixes:
        """Return the affixes of texts that choose no language by themselves; None for the default languages."""

    def encode_prefix(self, text: str) -> list[int]:
        """Return the target ids of a prefix that a translation must begin with, without bos and eos."""

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of target ids; special ids, and ids outside the vocabulary, leave no text."""

    def decode_copied(self, ids: Sequence[int], copies: Copies) -> str:
        """Return the text of target ids, some of which are replaced by pieces of the source."""
        return self.decode(ids)

    def split_source(self, text: str, source_language: str | None, target_language: str | None) -> list[str]:
        """Return the piece of each id of `encode_source`; the piece of an unknown id is its own text."""
        return []

    def source_piece(self, token: int) -> str | None:
        """Return the piece of a source id; None if it has none."""
        return None

    def source_pieces(self, ids: Sequence[int]) -> list[str]:
        """Return pieces of these source ids, for people."""

    def target_pieces(self, ids: Sequence[int]) -> list[str]:
        """Return pieces of these target ids, for people."""

    def target_spans(self, ids: Sequence[int], copies: Copies = NO_COPIES) -> list[Span]:
        """Characters of the text of `decode_copied` that each id adds; an unfinished character is the last id's."""
        stream = TextStream(self, copies)
        spans = list[Span]()
        end = 0
        for position, token in enumerate(ids):
            start = end
            end = end + len(stream.add(token, position == len(ids) - 1))
            spans.append((start, end))
        return spans


class Side(Protocol):
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


class Pieces(Side):
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


class FromTokenizers(Side):
    """A tokenizer.json of the `tokenizers` library, without the special tokens that it would add by itself.

    Raises:
        BundleError: the file is missing or is not one.
        MissingLibrary: the library is not installed.
    """

    def __init__(self, model: File) -> None:
        with needs("tokenizers"):
            import tokenizers
        try:
            self._tokenizer: Any = tokenizers.Tokenizer.from_str(model.read_bytes().decode("utf-8"))
        except OSError as error:
            raise BundleError(f"{model} is missing or cannot be read: copy or export the bundle again") from error
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


class Bytes(Side):
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


class TextTokenizer(Tokenizer):
    """Two sides, and the affixes of a text.

    Args:
        source: the model of the source side.
        target: that of the target side.
        description: the affixes and languages, as in the manifest.
        unk: the id that takes the place of an unknown language.
    """

    def __init__(self, source: Side, target: Side, description: TokenizerDescription, unk: int) -> None:
        self._source = source
        self._target = target
        self._description = description
        self._unk = unk

    def encode_source(
        self, text: str, source_language: str | None = None, target_language: str | None = None
    ) -> tuple[list[int], Affixes]:
        """Return the source ids of the text alone, and its affixes.

        Args:
            text: one line, which may choose its target language by itself if the bundle has that.
            source_language: its language, None for the default.
            target_language: likewise.

        Raises:
            InputError: as `txport.runtime.text.affixes.affixes`.
        """
        rest, around = self._split(text, source_language, target_language)
        return self._source.encode(rest), around

    def locate_source(
        self, text: str, source_language: str | None = None, target_language: str | None = None
    ) -> tuple[list[int], list[Span], Affixes]:
        """Encode with the characters of each id, counted from the beginning of the whole text; see `encode_source`."""
        rest, around = self._split(text, source_language, target_language)
        ids, spans = self._source.locate(rest)
        skipped = len(text) - len(rest)
        return ids, [(start + skipped, end + skipped) for start, end in spans], around

    def split_source(self, text: str, source_language: str | None, target_language: str | None) -> list[str]:
        return self._source.split(self._split(text, source_language, target_language)[0])

    def affixes(self, source_language: str | None = None, target_language: str | None = None) -> Affixes:
        return affixes(self._description, source_language, target_language)

    def encode_prefix(self, text: str) -> list[int]:
        return self._target.encode(text)

    def prefix_spans(self, text: str) -> list[Span]:
        """Return the characters that each id of `encode_prefix` stands for."""
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
        """Return the pieces of source ids; an id without one is its number."""
        return [self._source.piece(token) or f"<{token}>" for token in ids]

    def target_pieces(self, ids: Sequence[int]) -> list[str]:
        """Return the pieces of target ids, likewise."""
        return [self._target.piece(token) or f"<{token}>" for token in ids]

    def source_text(self, ids: Sequence[int]) -> str:
        """Return the text of source ids: it turns random ids into sample texts for a model that came without any."""
        return self._source.decode(ids)

    def _split(self, text: str, source_language: str | None, target_language: str | None) -> tuple[str, Affixes]:
        """Return the text without its own choice of a language, and the affixes for that choice."""
        description = self._description
        name, text = split_marker(text, description)
        if name is not None:
            known = description.languages is not None and name in description.languages.target
            if known:
                target_language = name
            else:
                target_language = None
            if not known:
                description = with_unknown_target(description, self._unk)
        return text, affixes(description, source_language, target_language)


class SentencePieceTokenizer(TextTokenizer):
    """A SentencePiece model for each side, perhaps the same one, whose ids are the model's.

    Args:
        source: the model file of the source side.
        target: that of the target side; None for the same.
        eos: the id that is appended to source ids.

    Raises:
        BundleError: a file is missing or is not a SentencePiece model.
    """

    def __init__(self, source: Path, target: Path | None = None, *, eos: int) -> None:
        pieces = Pieces(source)
        if target is None or target == source:
            target_pieces = pieces
        else:
            target_pieces = Pieces(target)
        super().__init__(pieces, target_pieces, plain(source.name, (target or source).name, eos), 0)
        self.source_size = pieces.size
        self.target_size = target_pieces.size


class IdsOnly(Tokenizer):
    """The tokenizer of a bundle that has none.

    Args:
        description: the affixes and languages, as in the manifest.
    """

    def __init__(self, description: TokenizerDescription) -> None:
        self._description = description

    def encode_source(
        self, text: str, source_language: str | None = None, target_language: str | None = None
    ) -> tuple[list[int], Affixes]:
        """Raises InputError: there is nothing to encode with."""
        raise InputError("this bundle has no tokenizer: give it ids (Translator.translate_ids)")

    def encode_prefix(self, text: str) -> list[int]:
        """Raises InputError: there is nothing to encode with."""
        raise InputError("this bundle has no tokenizer: give it ids (Translator.translate_ids)")

    def locate_source(
        self, text: str, source_language: str | None = None, target_language: str | None = None
    ) -> tuple[list[int], list[Span], Affixes]:
        """Raises InputError: there is nothing to encode with."""
        raise InputError("this bundle has no tokenizer: give it ids (Translator.translate_ids)")

    def affixes(self, source_language: str | None = None, target_language: str | None = None) -> Affixes:
        return affixes(self._description, source_language, target_language)

    def decode(self, ids: Sequence[int]) -> str:
        """No text."""
        return ""

    def source_pieces(self, ids: Sequence[int]) -> list[str]:
        """Their numbers."""
        return [f"<{token}>" for token in ids]

    def target_pieces(self, ids: Sequence[int]) -> list[str]:
        """Their numbers."""
        return [f"<{token}>" for token in ids]


def open_tokenizer(
    bundle: Files, description: TokenizerDescription, vocabularies: Vocabularies
) -> TextTokenizer | IdsOnly:
    """Return the tokenizer that the field `tokenizer` of a manifest describes.

    Args:
        bundle: what has its files, by the names in the description.
        description: the field.
        vocabularies: the ids that the model has.

    Raises:
        BundleError: a file is missing, damaged, or has more pieces than the model has ids.
        MissingLibrary: the library that it needs is not installed.
    """
    unk = vocabularies.unk
    if description.kind == "bytes":
        side = _with_added(Bytes(), description, decodes=False)
        return TextTokenizer(side, side, description, unk)
    if description.source is None or description.target is None:
        return IdsOnly(description)
    files = files_of(bundle)
    source = _side(files, description, description.source, unk, vocabularies.source)
    same = description.source == description.target and vocabularies.source == vocabularies.target
    if same:
        target = source
    else:
        target = _side(files, description, description.target, unk, vocabularies.target)
    return TextTokenizer(source, target, description, unk)


def _with_added(side: Pieces | Bytes, description: TokenizerDescription, *, decodes: bool) -> Side:
    if description.added is None:
        return side
    return WithAdded(side, description.added, decodes)


def _side(bundle: Files, description: TokenizerDescription, files: TokenizerFiles, unk: int, size: int) -> Side:
    path = bundle / files.model
    if description.kind == "sentencepiece" and files.vocabulary is not None:
        pieces = Pieces(path, load_vocabulary(bundle / files.vocabulary, size, unk))
        return _with_added(pieces, description, decodes=True)
    side: FromTokenizers | Pieces = FromTokenizers(path) if description.kind == "tokenizers" else Pieces(path)
    if side.size > size:
        raise BundleError(
            f"{path} has {side.size} pieces, more than the vocabulary of {size}: "
            "it belongs to another model, export the bundle again"
        )
    return side


class TextStream:
    """Turns ids that arrive one by one into pieces of text whose concatenation is the text of all ids."""

    def __init__(self, tokenizer: Tokenizer, copies: Copies = NO_COPIES) -> None:
        self._tokenizer = tokenizer
        self._copies = copies
        self._ids: list[int] = []
        self._given = ""

    def add(self, token_id: int, last: bool = False) -> str:
        """The text that became certain by one more id: none while a character is incomplete, all by the last id."""
        self._ids.append(token_id)
        text = self._tokenizer.decode_copied(self._ids, self._copies)
        # A trailing replacement character is what the first bytes of a character look like.
        if not last:
            text = text.rstrip("\ufffd")
        if not text.startswith(self._given):
            return ""
        added = text[len(self._given) :]
        self._given = text
        return added


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
