"""Tiny Transformers in Marian's format with random weights, and Marian's search."""

import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from foreign_models import padded
from txport.models.transformer import Transformer

WIDTH, HEADS, FFN, ROWS = 32, 4, 48, 60
LAYERS = (2, 3)
EOS, UNK = "</s>", "<unk>"
# Numbers of inputs.
FEW = 40
INPUTS = 200
Arrays = dict[str, npt.NDArray[np.float32]]
# The options that Marian writes into a model.
OPTIONS: dict[str, Any] = {
    **{"type": "transformer", "dim-vocabs": [ROWS, ROWS], "dim-emb": WIDTH, "dim-rnn": 1024, "enc-cell": "gru"},
    **{"enc-type": "bidirectional", "enc-cell-depth": 1, "enc-depth": LAYERS[0], "dec-depth": LAYERS[1]},
    **{"dec-cell": "gru", "dec-cell-base-depth": 2, "dec-cell-high-depth": 1, "skip": False},
    **{"layer-normalization": False, "right-left": False, "input-types": [], "tied-embeddings": False},
    **{"tied-embeddings-src": False, "tied-embeddings-all": True, "transformer-heads": HEADS},
    **{"transformer-no-projection": False, "transformer-rnn-projection": False, "transformer-dim-ffn": FFN},
    **{"transformer-decoder-dim-ffn": 0, "transformer-ffn-depth": 2, "transformer-decoder-ffn-depth": 0},
    **{"transformer-ffn-activation": "swish", "transformer-dim-aan": 2048, "transformer-aan-depth": 2},
    **{"transformer-aan-activation": "swish", "transformer-aan-nogate": False, "transformer-preprocess": ""},
    **{"transformer-postprocess": "dan", "transformer-postprocess-emb": "d", "transformer-postprocess-top": ""},
    **{"transformer-decoder-autoreg": "self-attention", "transformer-tied-layers": []},
    **{"transformer-guided-alignment-layer": "last", "transformer-train-position-embeddings": False},
    **{"transformer-pool": False, "ulr": False, "lemma-dim-emb": 0, "output-omit-bias": False},
    "version": "v1.12.0 65bf82ffce52f4854295d8b98482534f176d494e 2023-02-21",
}


def tokens(count: int = ROWS) -> list[str]:
    """Return special tokens and numbered ordinary tokens."""
    return [EOS, UNK, *(f"w{index}" for index in range(count - 2))]


def yaml(options: Mapping[str, Any]) -> str:
    """Return options in Marian's format."""
    lines = []
    for name, value in options.items():
        if isinstance(value, list):
            lines.append(f"{name}:")
            lines += [f"  - {_scalar(each)}" for each in value] or ["  []"]
        else:
            lines.append(f"{name}: {_scalar(value)}")
    return "\n".join(lines)


def _scalar(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return '""' if value == "" else str(value)


def random_weights(options: Mapping[str, Any], seed: int = 0) -> Arrays:
    """Return random weights for these options, none of which is neutral."""
    draw = np.random.default_rng(seed)
    arrays: Arrays = {}
    before, after = (str(options[f"transformer-{name}process"]) for name in ("pre", "post"))
    rows = options["dim-vocabs"]

    def array(name: str, *shape: int, scale: float, centre: float = 0.0) -> None:
        arrays[name] = (centre + scale * draw.standard_normal(shape)).astype(np.float32)

    def norms(name: str, order: str, suffix: str = "") -> None:
        for letter in set(order) & {"n", "r"}:
            kind = {"n": "ln", "r": "rms"}[letter]
            array(f"{name}_{kind}_scale{suffix}", 1, WIDTH, scale=0.1, centre=1.0)
            if letter == "n":
                array(f"{name}_{kind}_bias{suffix}", 1, WIDTH, scale=0.1)

    def linear(name: str, part: str, shape: tuple[int, int], factor: float = 1.0) -> None:
        array(f"{name}_W{part}", *shape, scale=factor * shape[0] ** -0.5)
        array(f"{name}_b{part}", 1, shape[1], scale=0.1)

    def layer(name: str, attentions: Sequence[str], ffn: int) -> None:
        for attention in attentions:
            for part in "qkvo":
                # Sharp attention to the source makes outputs follow it.
                linear(f"{name}_{attention}", part, (WIDTH, WIDTH), 2.0 if attention == "context" else 1.0)
            norms(f"{name}_{attention}_Wo", before, "_pre")
            norms(f"{name}_{attention}_Wo", after)
        linear(f"{name}_ffn", "1", (WIDTH, ffn))
        linear(f"{name}_ffn", "2", (ffn, WIDTH))
        norms(f"{name}_ffn_ffn", before, "_pre")
        norms(f"{name}_ffn_ffn", after)

    for side, attentions, depth, count in zip(
        ("encoder", "decoder"), (("self",), ("self", "context")), ("enc-depth", "dec-depth"), rows, strict=True
    ):
        ffn = options["transformer-decoder-dim-ffn"] if side == "decoder" else 0
        numbers = range(1, options[depth] + 1)
        tied = options["transformer-tied-layers"] if side == "decoder" else []
        for index in sorted({*(tied or numbers)}):
            layer(f"{side}_l{index}", attentions, ffn or options["transformer-dim-ffn"])
        norms(f"{side}_top", str(options["transformer-postprocess-top"]))
        norms(f"{side}_emb", str(options["transformer-postprocess-emb"]), "_pre")
        one = options["tied-embeddings-all"] or options["tied-embeddings-src"]
        array("Wemb" if one else f"{side}_Wemb", count, WIDTH, scale=2 * WIDTH**-0.5)
    if not (options["tied-embeddings"] or options["tied-embeddings-all"]):
        array("decoder_ff_logit_out_Wt", rows[1], WIDTH, scale=2 * WIDTH**-0.5)
    if not options["output-omit-bias"]:
        array("decoder_ff_logit_out_b", 1, rows[1], scale=0.3)
        arrays["decoder_ff_logit_out_b"][0, 0] += 3  # answers end
    return arrays


def save(file: Path, arrays: Mapping[str, npt.NDArray[Any]], options: Mapping[str, Any] | str) -> None:
    """Write a model like Marian, with its options in an array of bytes that ends with a zero."""
    text = options if isinstance(options, str) else yaml(options)
    config: npt.NDArray[np.int8] = np.frombuffer(text.encode() + b"\0", np.int8)
    np.savez(file, **{**arrays, "special:model.yml": config})


def save_binary(
    file: Path, arrays: Mapping[str, npt.NDArray[Any]], options: Mapping[str, Any], kind: int = 0x404
) -> list[int]:
    """Write a model like marian-conv, with matrices of the type `kind`; return the end offsets of its fields.

    Types are those of Marian (0x10001, 0x10002) and of browsermt (0x4101, 0x4102), which also rounds embeddings.
    """
    config: npt.NDArray[np.int8] = np.frombuffer(yaml(options).encode() + b"\0", np.int8)
    items: list[tuple[str, int, tuple[int, ...], bytes]] = []
    for name, array in {**arrays, "special:model.yml": config}.items():
        code, data = 0x101 if array.dtype == np.int8 else 0x404, array.tobytes()
        embedding = "Wemb" in name
        if kind != 0x404 and ((name.rpartition("_")[2][0] == "W" and not embedding) or (embedding and kind < 0x10000)):
            code, data = kind, _rounded(array, kind & 0xFF, transposed=not embedding)
        items.append((name, code, array.shape, data + bytes(-len(data) % 256)))
    fields = [struct.pack("<Q", 1), struct.pack("<Q", len(items))]
    fields += [struct.pack("<4Q", len(name) + 1, code, len(shape), len(data)) for name, code, shape, data in items]
    fields += [name.encode() + b"\0" for name, *_ in items]
    fields += [struct.pack(f"<{len(shape)}i", *shape) for *_, shape, _ in items]
    padding = 255 - (sum(map(len, fields)) + 8 - 1) % 256
    fields += [struct.pack("<Q", padding), bytes(padding), *(data for *_, data in items)]
    file.write_bytes(b"".join(fields))
    return np.cumsum([len(each) for each in fields]).tolist()


def _rounded(array: npt.NDArray[np.float32], size: int, *, transposed: bool) -> bytes:
    """Return a matrix as integers, followed by their factor."""
    factor = np.float32(127 / np.abs(array).max() if size == 1 else 1024)
    limit = 127 if size == 1 else 32767
    values = np.clip(np.rint(array * factor), -limit, limit).astype(np.int8 if size == 1 else np.int16)
    return (values.T if transposed else values).tobytes() + factor.tobytes()


def write_marian(
    directory: Path, names: Sequence[Sequence[str]] | None = None, seed: int = 0, **options: Any
) -> dict[str, Any]:
    """Write a model with decoder.yml and vocab.yml, and return its options; hyphens are underscores in `options`."""
    directory.mkdir(parents=True, exist_ok=True)
    given = {**OPTIONS, **{name.replace("_", "-"): value for name, value in options.items()}}
    files = ["vocab.yml"] * 2
    if names is not None:
        files = ["source.vocab.yml", "target.vocab.yml"]
        given["dim-vocabs"] = [len(side) for side in names]
    for file, side in zip(files, names or [tokens()] * 2, strict=True):
        text = "".join(f'"{token}": {index}\n' for index, token in enumerate(side))
        (directory / file).write_text(text, encoding="utf-8")
    save(directory / "model.npz", random_weights(given, seed), given)
    decoder = {"relative-paths": True, "models": ["model.npz"], "vocabs": files, "beam-size": 4, "normalize": 1}
    (directory / "decoder.yml").write_text(yaml(decoder) + "\n")
    return given


def search_of_marian(model: Transformer, source: list[int], limit: int) -> list[tuple[float, list[int]]]:
    """Return the scores and ids of four hypotheses by Marian's search (src/translator/beam_search.cpp, history.h).

    The beam becomes smaller with each hypothesis that ends. Scores are divided by the length.
    """
    config = model.config
    alive, ended = [(0.0, [config.bos_id])], list[tuple[float, list[int]]]()
    beam = 4
    for length in range(1, limit + 1):
        ids, lengths = padded([source] * len(alive), config.pad_id)
        with torch.inference_mode():
            logits = model.decode(torch.tensor([row for _, row in alive]), model.encode(ids, lengths), lengths)[:, -1]
        scores = logits[:, :ROWS].log_softmax(-1) + torch.tensor([score for score, _ in alive])[:, None]
        best = scores.flatten().topk(beam)
        made = [
            (score, [*alive[index // ROWS][1], index % ROWS])
            for score, index in zip(best.values.tolist(), best.indices.tolist(), strict=True)
        ]
        alive = [each for each in made if each[1][-1] != config.eos_id]
        if not alive or length == limit:
            ended += [(score / length, row[1:]) for score, row in made]
            break
        ended += [(score / length, row[1:]) for score, row in made if row[-1] == config.eos_id]
        beam = len(alive)
    return sorted(ended, key=lambda each: -each[0])


def rows_of_ids(count: int = FEW) -> list[list[int]]:
    """Return random sources of 1 to 11 tokens."""
    draw = np.random.default_rng(1)
    return [draw.integers(2, ROWS, draw.integers(1, 12)).tolist() for _ in range(count)]


def greedy_ids_of_marian(model: Path, vocabulary: Path, rows: list[list[int]]) -> list[list[int]]:
    """Return the answers of Marian itself, at most three times as long as the sources."""
    pymarian = pytest.importorskip("pymarian", reason="needs Marian: pip install pymarian")
    theirs = pymarian.Translator(
        f"-m {model} -v {vocabulary} {vocabulary} --beam-size 1 --allow-unk --max-length-factor 3 --cpu-threads 1 "
        "--mini-batch 1 --quiet"
    )
    lines = theirs.translate([" ".join(tokens()[each] for each in row) for row in rows])
    return [[tokens().index(token) for token in line.split()] for line in lines]
