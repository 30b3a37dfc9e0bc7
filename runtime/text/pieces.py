"""Reader of SentencePieceText, the message with the place of each piece of a text, which every version writes."""

from typing import NamedTuple

from txport.runtime.bundle.protobuf import tagged

# Tags of sentencepiece.proto.
_PIECE = 2 << 3 | 2
_TEXT = 1 << 3 | 2
_ID = 2 << 3
_BEGIN = 4 << 3
_END = 5 << 3


class LocatedPiece(NamedTuple):
    """A piece, and the characters of a text that it stands for.

    Attributes:
        id: that of the model file.
        text: the piece; of an unknown one, its normalised characters.
        begin: its first character.
        end: the character after its last one.
    """

    id: int
    text: str
    begin: int
    end: int


def read_pieces(message: bytes, text: str) -> list[LocatedPiece]:
    """Return the pieces of a text, whose places the message counts in bytes of UTF-8."""
    places: range | list[int] = range(len(text) + 1)
    if not text.isascii():
        places = [i for i, character in enumerate(text) for _ in character.encode()] + [len(text)]
    values = [dict(tagged(value)) for tag, value in tagged(message) if tag == _PIECE]
    return [LocatedPiece(each[_ID], each[_TEXT].decode(), places[each[_BEGIN]], places[each[_END]]) for each in values]
