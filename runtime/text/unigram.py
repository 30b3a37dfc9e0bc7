"""Segmentation by a unigram model (Kudo 2018, arXiv:1804.10959) as one version of SentencePiece computes it.

Versions up to 0.2.1 compare sums of scores in float64 with the best sum so far, which is stored in float32. Versions
from 0.2.2 on compare float32 with float32, and score user-defined pieces differently. So they choose differently among
segmentations of equal score ("000" as 00 0 or 0 00). A bundle's manifest contains the arithmetic of its exporter. If
the installed library has the other one, texts that may have such segmentations are segmented here, exactly as there.
"""

import struct
from array import array
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import pairwise
from typing import NamedTuple

import sentencepiece
from txport.runtime.bundle.protobuf import field, fields, number_field, tagged
from txport.runtime.bundle.tokenizer_schema import ScoreSums
from txport.runtime.text.added_tokens import WORD
from txport.runtime.text.pieces import LocatedPiece

# Tags and values of sentencepiece_model.proto.
_PIECE = 1 << 3 | 2
_TRAINER = 2 << 3 | 2
_TEXT = 1 << 3 | 2
_SCORE = 2 << 3 | 5
_TYPE = 3 << 3
_ALGORITHM = 3 << 3
_BYTE_FALLBACK = 35 << 3
_NORMAL = 1
_UNKNOWN = 2
_USER_DEFINED = 4
_BYTE = 6
_UNIGRAM = 1
_FLOAT = struct.Struct("<f")
_LARGEST = _FLOAT.unpack(b"\xff\xff\x7f\x7f")[0]
_SMALLEST = 2.0**-126
_UNKNOWN_PENALTY = 10.0
_RESET = 100_000.0  # where sums in float32 begin again at 0
# Words whose judgement is kept, and the characters of a word that is judged: texts without spaces are segmented here.
_MAX_WORDS = 1 << 17
_MAX_LETTERS = 48
# Rounding errors of float32, relative to a sum: twice 2**-23, since two sums are compared.
_ROUNDING = 2.0**-22


class _Edge(NamedTuple):
    """A piece of a model.

    Attributes:
        token: its id.
        score: its score, or that of a user-defined piece.
        is_defined: whether a user defined it.
    """

    token: int
    score: float
    is_defined: bool


class _Judgement(NamedTuple):
    """Values of a word that hold at any place of a text.

    Attributes:
        bound: the largest absolute sum of scores inside it.
        margin: the smallest distance to another segmentation, divided by the number of additions.
    """

    bound: float
    margin: float


class Unigram:
    """The pieces of a unigram model, and the best segmentation of a normalised text.

    Args:
        pieces: the text, score and type of each piece, in the order of ids.
        sums: the arithmetic of the segmentation.
        has_bytes: whether unknown characters become bytes.
    """

    def __init__(self, pieces: Sequence[tuple[str, float, int]], sums: ScoreSums, has_bytes: bool) -> None:
        scores = [score for _, score, kind in pieces if kind == _NORMAL]
        self._rounds = sums == "float32"
        self._best_score = max([_SMALLEST, *scores])
        self._unknown_score = _float32(min([_LARGEST, *scores]) - _UNKNOWN_PENALTY)
        self._unknown = -1
        self._bytes: dict[str, int] = {}
        self._edges: dict[str, _Edge] = {}
        self._lengths: dict[str, int] = {}  # characters of the longest piece, by its first character
        self._marks_words = True
        self._words: dict[str, _Judgement] = {}
        for token, (text, score, kind) in enumerate(pieces):
            if kind == _UNKNOWN:
                self._unknown = token
            elif kind == _BYTE and has_bytes:
                self._bytes[text] = token
            elif kind in (_NORMAL, _USER_DEFINED):
                self._add(text, token, score, kind == _USER_DEFINED)

    def _add(self, text: str, token: int, score: float, is_defined: bool) -> None:
        if is_defined:
            score = self._defined_score(len(text.encode("utf-8", "surrogateescape")))
        self._edges[text] = _Edge(token, score, is_defined)
        self._lengths[text[0]] = max(self._lengths.get(text[0], 0), len(text))
        self._marks_words &= WORD not in text[1:]

    def _defined_score(self, size: int) -> float:
        if self._rounds:
            return _float32(0.1 * (size - 1))
        return _float32(size * self._best_score) - 0.1

    def is_certain(self, text: str) -> bool:
        """Return whether both arithmetics certainly give a normalised text the same segmentation.

        Pieces contain the marker of words only at their beginning, so words are segmented independently. The result is
        certain if each word's best segmentation leads by more than rounding errors of float32 at any place of the text.
        """
        if not self._marks_words:
            return False
        first, *others = text.split(WORD)
        total = 0.0
        least = _LARGEST
        for word in ([first] if first else []) + [WORD + other for other in others]:
            bound, margin = self._words.get(word) or self._judge(word)
            total += bound
            least = min(least, margin)
        return least > total * _ROUNDING and total < _RESET / 2

    def _judge(self, word: str) -> _Judgement:
        if len(word) > _MAX_LETTERS:
            return _Judgement(0.0, -1.0)
        best = [0.0] + [-_LARGEST] * len(word)
        margins = [_LARGEST] * len(best)
        starts = [-1] * len(best)
        for start in range(len(word)):
            for end, edge in self._edges_at(word, start):
                if edge.is_defined:
                    return _Judgement(0.0, -1.0)
                total = best[start] + edge.score
                gap = total - best[end]
                if gap > 0:
                    best[end] = total
                    starts[end] = start
                    margins[end] = gap
                else:
                    margins[end] = min(margins[end], -gap)
        margin = _LARGEST
        end = len(word)
        while end > 0:
            margin = min(margin, margins[end])
            end = starts[end]
        if len(self._words) >= _MAX_WORDS:
            self._words.clear()
        judgement = _Judgement(max(map(abs, best)), margin / (len(word) + 2))
        self._words[word] = judgement
        return judgement

    def segment(self, text: str, places: Sequence[int]) -> list[LocatedPiece]:
        """Return the best segmentation of a normalised text; unknown characters in a row are one piece, or bytes.

        Args:
            text: the normalised text.
            places: for each of its characters and its end, the character of the text before normalisation.
        """
        starts = self._best_starts(text)
        ends = [len(text)]
        while ends[-1] > 0:
            ends.append(starts[ends[-1]])
        pieces = list[LocatedPiece]()
        for start, end in pairwise(reversed(ends)):
            edge = self._edges.get(text[start:end])
            piece = LocatedPiece(
                self._unknown if edge is None else edge.token, text[start:end], places[start], places[end]
            )
            if edge is None and self._bytes:
                pieces += self._of_bytes(piece)
            elif edge is None and pieces and pieces[-1].id == self._unknown:
                last = pieces.pop()
                pieces.append(piece._replace(text=last.text + piece.text, begin=last.begin))
            else:
                pieces.append(piece)
        return pieces

    def _of_bytes(self, piece: LocatedPiece) -> Iterator[LocatedPiece]:
        """Yield the bytes of a character; the last one stands for it."""
        names = [f"<0x{byte:02X}>" for byte in piece.text.encode()]
        for name in names[:-1]:
            yield LocatedPiece(self._bytes[name], name, piece.begin, piece.begin)
        yield LocatedPiece(self._bytes[names[-1]], names[-1], piece.begin, piece.end)

    def _best_starts(self, text: str) -> list[int]:
        """Return where the last piece of the best segmentation of each beginning of the text begins.

        Follows `unigram::Model::EncodeOptimized` of the library step by step.
        """
        best = array("f", bytes(4 * (len(text) + 1)))  # rounds what it stores
        starts = [-1] * (len(text) + 1)
        frontier = 0
        rounded = array("f", [0.0])
        for start in range(len(text)):
            if self._rounds and abs(best[start]) > _RESET:
                offset = best[start]
                for i in range(start, frontier + 1):
                    if i == start or starts[i] >= 0:
                        best[i] -= offset
            here = best[start]
            for end, edge in self._edges_at(text, start):
                frontier = max(frontier, end)
                total = here + edge.score
                if self._rounds or edge.token == self._unknown:
                    rounded[0] = total
                    total = rounded[0]
                if starts[end] < 0 or total > best[end]:
                    best[end] = total
                    starts[end] = start
        return starts

    def _edges_at(self, text: str, start: int) -> Iterator[tuple[int, _Edge]]:
        """Yield the pieces that begin at a place of a text, shorter ones first, with their ends."""
        has_character = False
        for end in range(start + 1, min(len(text), start + self._lengths.get(text[start], 0)) + 1):
            edge = self._edges.get(text[start:end])
            if edge is not None:
                has_character |= end == start + 1
                yield end, edge
        if not has_character:
            yield start + 1, _Edge(self._unknown, self._unknown_score, False)


@cache
def library_sums() -> ScoreSums:
    """Return the precision in which the installed library sums scores.

    The library encodes "ab" by a model in which the pieces a and b are together better than ab by 2**-25. In float32
    this difference is rounded to 0.
    """
    scores = {"ab": -1.0, "a": -0.5, "b": -0.5 + 2.0**-25}
    pieces = [field(1, b"<unk>") + number_field(3, _UNKNOWN)]
    pieces += [field(1, text.encode()) + bytes([_SCORE]) + _FLOAT.pack(score) for text, score in scores.items()]
    without_prefix = field(3, number_field(3, 0))
    model = b"".join(field(1, piece) for piece in pieces) + without_prefix
    if len(sentencepiece.SentencePieceProcessor(model_proto=model).encode("ab", out_type=int)) == 1:
        return "float32"
    return "float64"


def other_unigram(model: bytes, sums: ScoreSums) -> Unigram | None:
    """Return a unigram model that sums scores in `sums`; None if the installed library does this itself.

    Args:
        model: the bytes of a SentencePiece model that passes `check_sentencepiece`.
        sums: precision of the sums of scores. Only unigram models depend on it.
    """
    if sums == library_sums():
        return None
    options = {_ALGORITHM: _UNIGRAM, _BYTE_FALLBACK: 0}
    pieces = []
    for tag, value in tagged(model):
        if tag == _PIECE:
            pieces.append(_piece(value))
        elif tag == _TRAINER:
            options.update(tagged(value))
    if options[_ALGORITHM] != _UNIGRAM:
        return None
    return Unigram(pieces, sums, bool(options[_BYTE_FALLBACK]))


def _piece(message: bytes) -> tuple[str, float, int]:
    """Return text, score and type. Text that is not UTF-8 gets surrogates, which no text to encode has."""
    values = {_TEXT: b"", _TYPE: _NORMAL, **dict(tagged(message))}
    scores = [_FLOAT.unpack(whole[-4:])[0] for number, _, whole in fields(message) if number == _SCORE >> 3]
    return values[_TEXT].decode("utf-8", "surrogateescape"), ([0.0, *scores])[-1], values[_TYPE]


def _float32(value: float) -> float:
    return array("f", [value])[0]
