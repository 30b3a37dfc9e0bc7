"""SentencePiece models whose pieces have few different scores, so that many segmentations are equally good.

As a program, it writes tests/data/tokenizer/score_sums.json, with the results of both arithmetics of SentencePiece:

    pip install --target A sentencepiece==0.2.1; pip install --target B sentencepiece==0.2.3
    python tests/foreign/tied_models.py A B
"""

import json
import random
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

from txport.runtime.bundle.protobuf import field, number_field

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
LETTERS = "ab0é漢▁"
UNSEEN = "z字\u0300"
FILE = Path(__file__).parents[1] / "data" / "tokenizer" / "score_sums.json"

ORACLE = """
import json, sys
import sentencepiece
cases = json.load(sys.stdin)
for case in cases:
    processor = sentencepiece.SentencePieceProcessor(model_proto=bytes.fromhex(case["model"]))
    case["results"] = []
    for text in case["texts"]:
        ids, pieces = processor.encode(text, out_type=int), processor.encode(text, out_type=str)
        _, places = processor.normalize(text, with_offsets=True)
        spans, at, held = [], 0, b""
        for token, piece in zip(ids, pieces):
            if processor.is_byte(token):
                held += bytes([int(piece[3:5], 16)])
                character = held.decode(errors="ignore")
                spans.append((places[at], places[at + len(character)]))
                at += len(character)
                held = held * (not character)
            else:
                spans.append((places[at], places[at + len(piece)]))
                at += len(piece)
        case["results"].append({"ids": ids, "spans": spans})
json.dump(cases, sys.stdout)
"""


def model_of(pieces: list[tuple[str, float, int]], *, has_bytes: bool = False, normaliser: bytes = b"") -> bytes:
    """Return a unigram model: text, score and type of each piece after <unk>."""
    if has_bytes:
        pieces = [*pieces, *((f"<0x{byte:02X}>", 0.0, BYTE) for byte in range(256))]
    messages = [
        field(1, text.encode()) + b"\x15" + struct.pack("<f", score) + number_field(3, kind)
        for text, score, kind in [("<unk>", 0.0, UNKNOWN), *pieces]
    ]
    trainer = number_field(3, 1) + number_field(35, has_bytes)
    return b"".join(field(1, message) for message in messages) + field(2, trainer) + field(3, normaliser)


def tied_model(rng: random.Random) -> bytes:
    """Return a random model. Scores are few, or differ by the last bits of float32."""
    unit = rng.choice([0.1, 0.5, 1.7, 3.3])
    texts = set(rng.sample(LETTERS, rng.randint(3, len(LETTERS))))
    inside = LETTERS if rng.random() < 0.3 else LETTERS.replace("▁", "")
    for _ in range(rng.randint(5, 30)):
        length = rng.randint(1, 4)
        texts.add(rng.choice(LETTERS) + "".join(rng.choice(inside) for _ in range(length)))
    pieces = []
    for text in sorted(texts):
        score = -unit * len(text) * rng.choice([1, 1, 1, 0.5]) * (1 + rng.choice([0, 0, 1, -2]) * 2.0**-23)
        kind = rng.choices([NORMAL, USER_DEFINED, UNUSED], [30, rng.choice([0, 0, 2]), 1])[0]
        pieces.append((text, score, kind))
    flags = number_field(3, rng.random() < 0.7) + number_field(4, rng.random() < 0.7)
    return model_of(pieces, has_bytes=rng.random() < 0.3, normaliser=flags)


def tied_text(rng: random.Random) -> str:
    """Return a text of letters of `tied_model`, with spaces and unseen characters."""
    weights = [6, 6, 6, 2, 2, 1, 1]
    words = []
    for _ in range(rng.choice([1, 2, 8, 30])):
        words.append("".join(rng.choices([*LETTERS, rng.choice(UNSEEN)], weights, k=rng.randint(1, 12))))
    return rng.choice([" ", " ", "  "]).join(words)


def results_of(folder: str, cases: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the cases with the ids and spans of the SentencePiece in a folder (pip install --target)."""
    environment = {"PYTHONPATH": str(Path(folder).resolve())}
    printed = subprocess.run(
        [sys.executable, "-c", ORACLE],
        input=json.dumps(cases),
        capture_output=True,
        text=True,
        env=environment,
        check=True,
    )
    results: list[dict[str, Any]] = json.loads(printed.stdout)
    return results


def main() -> None:
    """Record cases in which some text differs."""
    cases: list[dict[str, Any]] = []
    for seed in range(40):
        rng = random.Random(seed)
        cases.append({"model": tied_model(rng).hex(), "texts": [tied_text(rng) for _ in range(20)]})
    old, new = (results_of(folder, cases) for folder in sys.argv[1:3])
    kept = []
    for a, b in zip(old, new, strict=True):
        short = [i for i, text in enumerate(a["texts"]) if len(text) < 80]
        differing = [i for i in short if a["results"][i] != b["results"][i]]
        if differing:
            chosen = sorted({*differing[:5], 0})
            both = {"float64": a, "float32": b}
            results = {sums: [case["results"][i] for i in chosen] for sums, case in both.items()}
            kept.append({"model": a["model"], "texts": [a["texts"][i] for i in chosen], **results})
    lines = ",\n".join(json.dumps(case, ensure_ascii=True, separators=(",", ":")) for case in kept)
    FILE.write_text(f'{{"cases": [\n{lines}\n]}}\n')


if __name__ == "__main__":
    main()
