"""Rules for SentencePiece models, checked before the library loads them. The C++ runtime checks the same.

A damaged model can crash the library or make it write outside its buffers. It follows the normalisation table, a double
array of Darts (sentencepiece_model.proto, normalizer.cc), without checks of the indices. It searches pieces by
recursion over their bytes. It writes the matches at one position into buffers of fixed size (sentencepiece#1263, #1265,
#1267, #1269; CVE-2026-1260). This holds for versions up to 0.2.1, which include those of Debian and Ubuntu.
"""

import hashlib
import re

import numpy as np
import numpy.typing as npt
from txport.runtime.bundle.protobuf import field_at, tagged

MAX_PIECE_BYTES = 1024
# Maximum number of user-defined pieces of which each begins with the previous one: the size of the library's buffer.
MAX_NESTED = 64
# Maximum number of rules of the table that match at one position (also the size of a buffer), and bytes of a key.
MAX_RULES = 32
MAX_KEY_BYTES = 256
# Maximum bytes that a rule writes. The library's own tables write up to 33, and a text may match at every character.
MAX_REPLACEMENT_BYTES = 256
MAX_TABLE_BYTES = 4 << 20
MAX_BYTES = 256 << 20  # maximum size of a model
MAX_SPECIAL = 1 << 18  # maximum number of fields that are not plain pieces
_MAX_VISITS = 4  # maximum average number of visits of a unit of the table; more than 1, as paths may share their ends

_PIECE, _TRAINER, _NORMALIZER, _DENORMALIZER = (number << 3 | 2 for number in (1, 2, 3, 5))
_UNKNOWN_SURFACE = 44 << 3 | 2  # the text of unknown tokens, in the options of the trainer
_TEXT = 1 << 3 | 2
_TABLE = 2 << 3 | 2
_TYPE = 3 << 3
_USER_DEFINED = 4
_TYPES = range(1, 7)
_ALGORITHM = 3 << 3
_ALGORITHMS = range(1, 5)
_NAMES = {number << 3 | 2 for number in range(44, 49)}  # what is written for unknown characters, and special pieces
# SHA-256 of tables of the library's trainer (nmt_nfkc, nfkc, nmt_nfkc_cf, nfkc_cf of 0.2.1 and 0.2.3), which pass:
# to check one takes 5 ms, a sixth of the time in which a small bundle opens.
_TRUSTED_TABLES = {
    bytes.fromhex("79372c41389c2b9b29bc171017ab5400e352debd686b02670a42bec709015074"),
    bytes.fromhex("52f11028ff8a7df3e009d94a8b6a54d4a8a17132efb4ccc1c9a0a41e432bd91e"),
    bytes.fromhex("22c292c76f503795f30c85d79d30a7f572fff4f49e00392d2d60f4f93e941a1e"),
    bytes.fromhex("60833ec11201446659c3549c183b18f024c4007628cc6b3a4e91ae007697b826"),
    bytes.fromhex("1e2c7b43d3ee9755ceaa2ac335e253d8703604e0249ee1e81156c92b46423844"),
    bytes.fromhex("7e46d9e08af4b6a37991b04fb8388644c1595a0abcd0f26d6a5d575e2a3663ea"),
    bytes.fromhex("2c03512e62f9ed965ec90d85314211b63b5b8aa0395311ea2147eec9ff738907"),
    bytes.fromhex("d8dfef3d6db0eef0742f8b55a73aee7fce6c1e21d26a09b8d3d4b52c42a791cb"),
}
_LABELS = 0x800000FF
_LEAF = 0x100
_VALUES = 0x7FFFFFFF
Units = npt.NDArray[np.int64]


def _plain_pieces() -> "re.Pattern[bytes]":
    """Return a pattern for runs of plain pieces: a short text, a score, and an ordinary type or none.

    The trainer of the library writes nearly all pieces in this form. The regular expression skips them a hundred times
    as fast as the parser in Python. Plain texts contain neither NUL nor 0x15, the tag of the score, so that the first
    0x15 after characters in UTF-8 ends the text.
    """

    def byte(value: int) -> bytes:
        return re.escape(bytes([value]))

    ascii_run = rb"[\1-\x14\x16-\x7f]*"
    others = (
        rb"[\xc2-\xdf][\x80-\xbf]",
        rb"[\xe1-\xec\xee\xef][\x80-\xbf]{2}|\xe0[\xa0-\xbf][\x80-\xbf]|\xed[\x80-\x9f][\x80-\xbf]",
        rb"\xf0[\x90-\xbf][\x80-\xbf]{2}|[\xf1-\xf3][\x80-\xbf]{3}|\xf4[\x80-\x8f][\x80-\xbf]{2}",
    )
    utf8 = ascii_run + b"(?:(?:" + b"|".join(others) + b")" + ascii_run + b")*"
    before_text = rb"\n[\0-\xff]\n[\0-\xff]"
    tails = {5: rb"\x15[\0-\xff]{4}", 7: rb"\x15[\0-\xff]{4}\x18[\1\2\3\5\6]"}
    kinds = []
    for size in range(7, 128):
        texts = ((size - 2 - extra, tail) for extra, tail in tails.items())
        inner = b"|".join(byte(length) + rb"[^\0\x15]{%d}" % length + tail for length, tail in texts if length >= 0)
        kinds.append(byte(size) + b"\n(?:" + inner + b")")
    return re.compile(b"(?:(?=" + before_text + utf8 + rb"\x15)\n(?:" + b"|".join(kinds) + b")){0,10000}")


_PLAIN = _plain_pieces()


class _Refusal(ValueError):
    """A fault of a model."""


def check_sentencepiece(model: bytes) -> None:
    """Refuse a model that may crash the library.

    Raises:
        ValueError: the fault, as the rest of a sentence that begins with the name of the model.
    """
    try:
        _check_model(model)
    except _Refusal:
        raise
    except ValueError as error:
        raise ValueError(f"is not a SentencePiece model ({error})") from error


def _check_model(model: bytes) -> None:
    if len(model) > MAX_BYTES:
        raise _Refusal(f"has more than {MAX_BYTES} bytes")
    user_defined: list[bytes] = []
    position = special = 0
    while position < len(model):
        match = _PLAIN.match(model, position)
        assert match is not None, "nothing matches as well"
        if match.end() > position:
            position = match.end()
            continue
        tag, value, position = field_at(model, position)
        special += 1
        if special > MAX_SPECIAL:
            raise _Refusal("has fields that no trainer writes")
        if tag == _PIECE:
            user_defined += _checked_piece(value)
        elif tag == _TRAINER:
            _check_trainer(value)
        elif tag in (_NORMALIZER, _DENORMALIZER):
            for table in (each for inner, each in tagged(value) if inner == _TABLE):
                check_table(table)
    _check_nesting(user_defined)


def _check_trainer(message: bytes) -> None:
    for tag, value in tagged(message):
        if tag == _ALGORITHM and value not in _ALGORITHMS:
            raise _Refusal("has an unknown algorithm")
        if tag in _NAMES:
            _check_utf8(value)
        if tag == _UNKNOWN_SURFACE and len(value) > MAX_PIECE_BYTES:
            raise _Refusal(f"has a text for unknown tokens of more than {MAX_PIECE_BYTES} bytes")


def _check_utf8(text: bytes) -> None:
    try:
        text.decode()
    except UnicodeDecodeError:
        raise _Refusal("has a piece that is not UTF-8") from None


def _checked_piece(message: bytes) -> list[bytes]:
    """Check a piece, and return its text if it is user-defined; otherwise an empty list."""
    texts: list[bytes] = []
    kinds: list[int] = []
    for tag, value in tagged(message):
        if tag == _TEXT:
            texts.append(value)
        elif tag == _TYPE:
            kinds.append(value)
    if any(kind not in _TYPES for kind in kinds):  # protobuf would ignore other values, or cut them to 32 bits
        raise _Refusal("has a piece of an unknown type")
    for text in texts:
        if len(text) > MAX_PIECE_BYTES or b"\0" in text:
            raise _Refusal(f"has a piece of more than {MAX_PIECE_BYTES} bytes, or with the character NUL")
        _check_utf8(text)
    if _USER_DEFINED in kinds:
        return texts
    return []


def _check_nesting(user_defined: list[bytes]) -> None:
    nested: list[bytes] = []
    for text in sorted(set(user_defined)):
        while nested and not text.startswith(nested[-1]):
            nested.pop()
        nested.append(text)
        if len(nested) > MAX_NESTED:
            raise _Refusal(f"has more than {MAX_NESTED} user-defined pieces that begin with each other")


def check_table(table: bytes) -> None:
    """Check every unit of a normalisation table that a text can reach.

    Raises:
        ValueError: as of `check_sentencepiece`.
    """
    if not table or hashlib.sha256(table).digest() in _TRUSTED_TABLES:
        return
    size = int.from_bytes(table[:4], "little")
    if len(table) > MAX_TABLE_BYTES or not 0 < size <= len(table) - 4 or size % 4:
        raise _Refusal("has a normalisation table of a wrong size")
    units = np.frombuffer(table, "<u4", size // 4, 4).astype(np.int64)
    text = table[4 + size :]
    try:
        text.decode()
    except UnicodeDecodeError:
        raise _Refusal("has a normalisation table that writes no UTF-8") from None
    _Table(units, text if text.endswith(b"\0") else b"").check()


class _Table:
    """A double array (Aoe 1989, format of Darts-clone). From a place, byte c leads to unit place ^ c if its label is c.

    Args:
        units: int64 `[n]`.
        text: the replacement texts, each with NUL at its end.
    """

    def __init__(self, units: Units, text: bytes) -> None:
        self._units = units
        self._text = np.frombuffer(text, np.uint8)
        self._ends = np.flatnonzero(self._text == 0)
        labels = units & _LABELS
        self._offsets = units >> 10 << ((units & 0x200) >> 6)
        places = np.where(labels < 256, np.arange(units.size) ^ labels, -1)
        self._order = np.argsort(places, kind="stable")
        self._places = places[self._order]  # ascending, so that the units reached from one place are adjacent

    def check(self) -> None:
        """Follow all paths, byte by byte, and count the rules that match on each."""
        places = self._offsets[:1]
        rules = np.zeros(1, np.int64)
        visits = 0
        for _ in range(MAX_KEY_BYTES):
            if (places | 255).max() >= self._units.size:
                raise _Refusal("has a normalisation table that leads out of itself")
            first, last = (np.searchsorted(self._places, places, side) for side in ("left", "right"))
            counts = last - first
            visits += int(counts.sum())
            if visits > _MAX_VISITS * self._units.size:
                break
            if not counts.any():
                return
            starts = np.repeat(first - np.cumsum(counts) + counts, counts)
            places, rules = self._after(self._order[starts + np.arange(starts.size)], np.repeat(rules, counts))
        raise _Refusal("has a normalisation table whose rules have no end")

    def _after(self, indices: Units, rules: Units) -> tuple[Units, Units]:
        """Return the places after these units, without duplicates, and the most rules on a path to each place."""
        places = indices ^ self._offsets[indices]
        matches = self._units[indices] & _LEAF != 0
        self._check_replacements(places[matches])
        rules = rules + matches
        if rules.max() > MAX_RULES:
            raise _Refusal(f"has a normalisation table with more than {MAX_RULES} rules for one place")
        unique, inverse = np.unique(places, return_inverse=True)
        max_rules = np.zeros(unique.size, np.int64)
        np.maximum.at(max_rules, inverse, rules)
        return unique, max_rules

    def _check_replacements(self, leaves: Units) -> None:
        """Check the texts that rules write. The library crashes if one begins inside a character."""
        if (leaves >= self._units.size).any() or (self._units[leaves] & _VALUES >= self._text.size).any():
            raise _Refusal("has a normalisation table that leads out of itself")
        starts = self._units[leaves] & _VALUES
        if (self._text[starts] & 0xC0 == 0x80).any():
            raise _Refusal("has a normalisation table that writes no UTF-8")
        if (self._ends[np.searchsorted(self._ends, starts)] - starts > MAX_REPLACEMENT_BYTES).any():
            raise _Refusal(f"has a normalisation table with a rule that writes more than {MAX_REPLACEMENT_BYTES} bytes")
