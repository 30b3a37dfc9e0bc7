"""vocabulary.json: pieces of a SentencePiece model, in the order of the ids of a translation model with other ids.

    {"format_version": 1, "pieces": ["</s>", null, "▁the", ...]}

The id of a piece is its index. null marks an id without text: special tokens, languages, padding.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from txport.runtime.bundle.archive import File
from txport.runtime.bundle.strict_json import load
from txport.runtime.errors import BundleError

FORMAT_VERSION = 1


@dataclass(frozen=True)
class VocabularyFile:
    """Contents of the file."""

    format_version: int
    pieces: tuple[str | None, ...]


class Vocabulary:
    """A mapping of pieces to ids and back.

    Args:
        pieces: the piece of each id, without duplicates; None for ids without text.
        unk: the id of all unknown pieces.
    """

    def __init__(self, pieces: Sequence[str | None], unk: int) -> None:
        self._pieces = pieces
        self._unk = unk
        self._ids = {piece: token for token, piece in enumerate(pieces) if piece is not None}

    def ids(self, pieces: Iterable[str]) -> list[int]:
        """Return the ids of pieces."""
        return [self._ids.get(piece, self._unk) for piece in pieces]

    def pieces(self, ids: Iterable[int]) -> list[str]:
        """Return the pieces of ids; ids without a piece or outside the vocabulary are skipped."""
        texts = (self._pieces[token] for token in ids if 0 <= token < len(self._pieces))
        return [piece for piece in texts if piece is not None]


def load_vocabulary(path: File, size: int, unk: int) -> Vocabulary:
    """Read vocabulary.json.

    Args:
        path: the file.
        size: the number of source or target ids of the model.
        unk: the id of unknown pieces.

    Raises:
        BundleError: the file is missing, damaged or of a newer format, or has a duplicate piece or more than `size`.
    """
    pieces = load(VocabularyFile, path, FORMAT_VERSION).pieces
    if len(pieces) > size:
        raise BundleError(
            f"{path} has {len(pieces)} pieces, more than the vocabulary of {size}: "
            "it belongs to another model, export the bundle again"
        )
    seen: set[str] = set()
    for token, piece in enumerate(pieces):
        if piece in seen:
            raise BundleError(f"{path} has the piece {piece!r} twice, the second time at {token}: export again")
        if piece is not None:
            seen.add(piece)
    return Vocabulary(pieces, unk)
