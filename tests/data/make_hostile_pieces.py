"""Makes `hostile_pieces.json`: SentencePiece models, as hexadecimal digits, and words of their refusal, or "".

Both runtimes must answer so. To write it again: `python tests/data/make_hostile_pieces.py`
"""

import io
import json
import struct
from collections.abc import Sequence
from pathlib import Path

import sentencepiece
from txport.runtime.bundle.protobuf import field, number_field

FILE = Path(__file__).with_name("hostile_pieces.json")
BLOCK = 256
LARGE = ("too large",)  # not in the file
LEAF, VALUE = 0x100, 0x80000000


def trained() -> bytes:
    """A small model without a normalisation table."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(["a b c aa ab ba bb abc cab bca aab bba"] * 20),
        model_writer=model,
        vocab_size=12,
        normalization_rule_name="identity",
        minloglevel=2,
    )
    return model.getvalue()


def place(number: int) -> int:
    """The place to which a rule leads; those of 64 rules share a block."""
    return BLOCK * (1 + number // 64) + number % 64


def chain(count: int, value: int = 0, end: int | None = None) -> list[int]:
    """Units of a table whose rules write a text for "a", "aa" and so on.

    Args:
        count: of rules.
        value: where in the text.
        end: place to which the last rule leads, instead of one of its own.
    """
    units = [index & 255 ^ 255 for index in range(BLOCK * (2 + count // 64))]  # labels that lead nowhere
    units[0] = place(0) << 10  # the root
    for number in range(1, count + 1):
        unit = place(number - 1) ^ ord("a")
        after = place(number) if end is None or number < count else end
        units[unit] = ord("a") | LEAF | (unit ^ after) << 10
        units[after] = VALUE | value
    return units


def table(units: Sequence[int], text: bytes = b"b\0", size: int | None = None) -> bytes:
    data = struct.pack(f"<{len(units)}I", *units)
    return struct.pack("<I", len(data) if size is None else size) + data + text


def with_table(data: bytes) -> bytes:
    return field(3, field(2, data))


def piece(text: bytes, kind: int) -> bytes:
    return field(1, field(1, text) + b"\x15" + struct.pack("<f", -1.0) + bytes([3 << 3, kind]))


def cases() -> dict[str, tuple[bytes, str]]:
    """What is added to a trained model, and words of the refusal."""
    out, size, fault = "leads out of itself", "of a wrong size", "is not a SentencePiece model"
    root = chain(1)
    root[0] = VALUE | (1 << 21) << 10
    far = chain(1)
    far[place(0) ^ ord("a")] = ord("a") | 0x200 | (1 << 20) << 10
    return {
        "32 rules": (with_table(table(chain(32))), ""),
        "no table": (with_table(b""), ""),
        "64 nested pieces": (b"".join(piece(b"x" * n, 4) for n in range(1, 65)), ""),
        "longest piece": (piece(b"x" * 1024, 1), ""),
        "unknown field": (field(200, b"x"), ""),
        "33 rules": (with_table(table(chain(33))), "more than 32 rules for one place"),
        "root leads out": (with_table(table(root)), out),
        "unit leads out": (with_table(table(far)), out),
        "half a block": (with_table(table(chain(1)[:-BLOCK])), out),
        "value outside": (with_table(table(chain(1, value=2))), out),
        "text without an end": (with_table(table(chain(1), b"b")), out),
        "no text": (with_table(table(chain(1), b"")), out),
        "no end": (with_table(table(chain(1, end=place(0)))), "rules for one place"),
        "long rules": (with_table(table([unit & ~LEAF for unit in chain(256)])), "whose rules have no end"),
        "text inside a character": (with_table(table(chain(1, value=1), "é\0".encode())), "writes no UTF-8"),
        "256 bytes": (with_table(table(chain(1), b"b" * 256 + b"\0")), ""),
        "257 bytes": (with_table(table(chain(1), b"b" * 257 + b"\0")), "a rule that writes more than 256 bytes"),
        "unknown tokens": (field(2, field(44, b"?" * 1024)), ""),
        "long unknown tokens": (field(2, field(44, b"?" * 1025)), "a text for unknown tokens of more than 1024 bytes"),
        "no UTF-8": (with_table(table(chain(1), b"\xff\0")), "writes no UTF-8"),
        "no units": (with_table(table([])), size),
        "odd size": (with_table(table(chain(1), size=1023)), size),
        "size beyond the end": (with_table(table(chain(1), size=1 << 31)), size),
        "three bytes": (with_table(b"\0\0\0"), size),
        "too large": (with_table(table([0] * (1 << 20))), size),
        "table of the denormaliser": (field(5, field(2, table(root))), out),
        "long piece": (piece(b"x" * 1025, 1), "a piece of more than 1024 bytes"),
        "NUL": (piece(b"a\0b", 1), "with the character NUL"),
        "65 nested pieces": (b"".join(piece(b"x" * n, 4) for n in range(1, 66)), "more than 64 user-defined pieces"),
        "last type": (piece(b"x", 6), ""),
        "piece of all lengths in UTF-8": (piece("a\u00e9\u2581\U0001f600".encode(), 1), ""),
        "piece with the tag of a score": (piece(b"a\x15\xc3\xa9", 1), ""),
        "half a character": (piece(b"a\xc3", 1), "a piece that is not UTF-8"),
        "half a character after the tag of a score": (piece(b"a\x15\xc3", 1), "a piece that is not UTF-8"),
        "half a character that is user-defined": (piece(b"\xef", 4), "a piece that is not UTF-8"),
        "surrogate": (piece(b"\xed\xa0\x80", 1), "a piece that is not UTF-8"),
        "overlong": (piece(b"\xc0\x80", 1), "a piece that is not UTF-8"),
        "overlong in three bytes": (piece(b"\xe0\x80\x80", 1), "a piece that is not UTF-8"),
        "above the last character": (piece(b"\xf4\x90\x80\x80", 1), "a piece that is not UTF-8"),
        "half a character for unknown ones": (field(2, field(44, b"\xc3")), "a piece that is not UTF-8"),
        "type 0": (piece(b"x", 0), "a piece of an unknown type"),
        "type 7": (piece(b"x", 7), "a piece of an unknown type"),
        # protobuf would cut it to 32 bits: 1, a normal piece
        "type of 33 bits": (field(1, field(1, b"x") + b"\x18\x81\x80\x80\x80\x10"), "a piece of an unknown type"),
        "last algorithm": (field(2, b"\x18\x04"), ""),
        "algorithm 0": (field(2, b"\x18\x00"), "an unknown algorithm"),
        "algorithm 5": (field(2, b"\x18\x05"), "an unknown algorithm"),
        "cut": (b"\x0a\x05", fault),
        "group": (b"\x0b\x0c", fault),
        "tag of five bytes": (b"\x8a\x80\x80\x80\x10\x00", fault),
        "tag of five bytes in a field": (field(3, b"\x92\x80\x80\x80\x10\x00"), fault),
        "kind of more than 32 bits": (
            b"".join(field(1, field(1, b"x" * n) + number_field(3, 4 + (1 << 32))) for n in range(1, 66)),
            "a piece of an unknown type",
        ),
        "half of a character": (piece(b"\xc3", 4), "a piece that is not UTF-8"),
    }


if __name__ == "__main__":
    added = {
        name: {"added": data.hex(), "words": words} for name, (data, words) in cases().items() if name != "too large"
    }
    FILE.write_text(json.dumps({"model": trained().hex(), "cases": added}, indent=1) + "\n")
