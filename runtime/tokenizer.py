"""Text to ids and back: SentencePiece, or nothing at all for models that work on ids."""

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import sentencepiece
from txport.runtime.errors import BundleError, InputError


class Tokenizer(Protocol):
    """What the translator needs of a tokenizer."""

    def encode(self, text: str) -> list[int]:
        """The source ids of one line, eos included."""

    def encode_prefix(self, text: str) -> list[int]:
        """The target ids that a translation shall begin with, without bos and eos."""

    def decode(self, ids: Sequence[int]) -> str:
        """The text of target ids; special ids and ids that the model has not got leave nothing."""


class SentencePieceTokenizer:
    """A SentencePiece model for each side (Kudo and Richardson 2018, arXiv:1808.06226), perhaps the same one.

    Args:
        source: the model file of the source side.
        target: that of the target side; None for the same.
        eos: the id that is appended to source ids.

    Raises:
        BundleError: a file is missing or is not a SentencePiece model.
    """

    def __init__(self, source: Path, target: Path | None = None, *, eos: int) -> None:
        self._source = _load(source)
        self._target = self._source if target is None or target == source else _load(target)
        self._eos = eos
        self.source_pieces = int(self._source.get_piece_size())
        self.target_pieces = int(self._target.get_piece_size())

    def encode(self, text: str) -> list[int]:
        """The source ids of one line, eos included. Unpaired surrogates count as unseen characters."""
        return [*self._source.encode(_valid(text), out_type=int), self._eos]

    def encode_prefix(self, text: str) -> list[int]:
        """The target ids that a translation shall begin with, without bos and eos."""
        return list(self._target.encode(_valid(text), out_type=int))

    def decode(self, ids: Sequence[int]) -> str:
        """The text of target ids.

        The vocabulary of a model may be padded beyond its pieces; ids from there, which an undertrained model can
        choose, leave nothing, as special ids do.
        """
        return str(self._target.decode([int(i) for i in ids if 0 <= i < self.target_pieces]))


class IdsOnly:
    """The tokenizer of a bundle that has none."""

    def encode(self, text: str) -> list[int]:
        """Raises InputError: there is nothing to encode with."""
        raise InputError("this bundle has no tokenizer: give it ids (Translator.translate_ids)")

    def encode_prefix(self, text: str) -> list[int]:
        """Raises InputError: there is nothing to encode with."""
        raise InputError("this bundle has no tokenizer: give it ids (Translator.translate_ids)")

    def decode(self, ids: Sequence[int]) -> str:
        """No text."""
        return ""


class TextStream:
    """Turns ids that arrive one by one into pieces of text whose concatenation is the text of all ids."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._ids: list[int] = []
        self._given = ""

    def add(self, token_id: int, last: bool = False) -> str:
        """The text that became certain by one more id: none while a character is incomplete, all by the last id."""
        self._ids.append(token_id)
        text = self._tokenizer.decode(self._ids)
        # A trailing replacement character is what the first bytes of a character look like.
        return self._advance(text if last else text.rstrip("\ufffd"))

    def _advance(self, text: str) -> str:
        if not text.startswith(self._given):
            return ""
        added = text[len(self._given) :]
        self._given = text
        return added


def _load(path: Path) -> sentencepiece.SentencePieceProcessor:
    processor = sentencepiece.SentencePieceProcessor()
    try:
        processor.LoadFromSerializedProto(path.read_bytes())
    except OSError as error:
        raise BundleError(f"{path} is missing or cannot be read: copy or export the bundle again") from error
    except RuntimeError as error:
        raise BundleError(f"{path} is not a SentencePiece model: copy or export the bundle again") from error
    return processor


def _valid(text: str) -> str:
    """The text without unpaired surrogates, which UTF-8 cannot hold."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace") if not text.isascii() else text
