"""Tiny Transformers in CTranslate2's format with random weights, written by its own specifications."""

import json
import struct
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

ctranslate2 = pytest.importorskip("ctranslate2", reason="needs CTranslate2: pip install 'txport[dev]'")

UNK, PAD, BOS, EOS = "<unk>", "<blank>", "<s>", "</s>"
SPECIAL = [UNK, PAD, BOS, EOS]
WIDTH, HEADS, FFN, ROWS, POSITIONS = 32, 4, 48, 60, 40
LAYERS = (2, 3)


def tokens(count: int = ROWS) -> list[str]:
    """Return special tokens and numbered ordinary tokens."""
    return [*SPECIAL, *(f"w{index}" for index in range(count - len(SPECIAL)))]


def sources(count: int, rows: int = ROWS, longest: int = 11) -> list[list[str]]:
    """Return `count` sources of ordinary tokens."""
    draw = np.random.default_rng(1)
    return [
        [f"w{each}" for each in draw.integers(0, rows - len(SPECIAL), draw.integers(1, longest + 1))]
        for _ in range(count)
    ]


class Writer:
    """A writer of random weights, none of which is neutral, into a specification.

    Args:
        seed: seed of the weights.
    """

    def __init__(self, seed: int) -> None:
        self._draw = np.random.default_rng(seed)

    def array(self, *shape: int, scale: float | None = None, centre: float = 0.0) -> np.ndarray[Any, Any]:
        """Return float32 values. Products with matrices keep the magnitude of their input."""
        spread = (shape[-1] ** -0.5 if len(shape) > 1 else 0.1) if scale is None else scale
        return (centre + spread * self._draw.standard_normal(shape)).astype(np.float32)

    def linear(self, spec: Any, rows: int, columns: int, *, bias: bool = True, scale: float = 1.0) -> None:
        spec.weight = self.array(rows, columns, scale=scale * columns**-0.5)
        if bias:
            spec.bias = self.array(rows)

    def norm(self, spec: Any) -> None:
        spec.gamma = self.array(WIDTH, centre=1.0)
        if hasattr(spec, "beta"):
            spec.beta = self.array(WIDTH)

    def attention(self, spec: Any, *, own: bool, bias: bool, inner: int, queries: float) -> None:
        scale = 1.0 if own else 2.0  # sharp attention to the source makes outputs follow it
        if own:
            self.linear(spec.linear[0], 3 * inner, WIDTH, bias=bias)
        else:
            self.linear(spec.linear[0], inner, WIDTH, bias=bias, scale=scale)
            self.linear(spec.linear[1], 2 * inner, WIDTH, bias=bias, scale=scale)
        spec.linear[0].weight[:inner] *= queries
        self.linear(spec.linear[-1], WIDTH, inner, bias=bias)
        self.norm(spec.layer_norm)

    def side(self, spec: Any, *, bias: bool, inner: int, ffn: int, queries: float) -> None:
        """Fill the layers of an encoder or a decoder, and its embeddings and norms."""
        for layer in spec.layer:
            self.attention(layer.self_attention, own=True, bias=bias, inner=inner, queries=queries)
            if hasattr(layer, "attention"):
                self.attention(layer.attention, own=False, bias=bias, inner=inner, queries=queries)
            for name in ("linear_0", "linear_0_noact"):
                if hasattr(layer.ffn, name):
                    self.linear(getattr(layer.ffn, name), ffn, WIDTH, bias=bias)
            self.linear(layer.ffn.linear_1, WIDTH, ffn, bias=bias)
            self.norm(layer.ffn.layer_norm)
        for name in ("layer_norm", "layernorm_embedding"):
            if hasattr(spec, name):
                self.norm(getattr(spec, name))

    def biases(self, spec: Any, heads: int, *, per_layer: bool, buckets: int = 8) -> None:
        """Fill T5's relative positions."""
        for index, layer in enumerate(spec.layer):
            attention = layer.self_attention
            first = spec.layer[0].self_attention
            attention.relative_attention_bias = (
                self.array(buckets, heads, scale=1.0) if per_layer or not index else first.relative_attention_bias
            )
            attention.relative_attention_max_distance = np.dtype("int32").type(20)

    def shaw(self, spec: Any, width: int, farthest: int = 3) -> None:
        """Fill vectors by distance (Shaw et al. 2018)."""
        for layer in spec.layer:
            for name in ("keys", "values"):
                setattr(
                    layer.self_attention, f"relative_position_{name}", self.array(2 * farthest + 1, width, scale=0.5)
                )


def new_spec(heads: tuple[int, int], options: dict[str, Any]) -> Any:
    """Return an empty specification with these options of CTranslate2 on both sides."""
    given = {"activation": ctranslate2.specs.common_spec.Activation.RELU, **options}
    encoder = {key: value for key, value in given.items() if not key.startswith("alignment")}
    return ctranslate2.specs.transformer_spec.TransformerSpec(
        ctranslate2.specs.transformer_spec.TransformerEncoderSpec(LAYERS[0], heads[0], **encoder),
        ctranslate2.specs.transformer_spec.TransformerDecoderSpec(LAYERS[1], heads[1], **given),
    )


def set_attention(side: Any, queries_scale: float | None, residual: bool) -> None:
    """Set options of all attention of a side; see `write_model`."""
    layers = [getattr(layer, name, None) for layer in side.layer for name in ("self_attention", "attention")]
    for attention in filter(None, layers):
        if queries_scale is not None:
            attention.queries_scale = np.float32(queries_scale)
        if residual:
            attention.layer_norm.layer_norm_use_residual = True


def write_model(
    directory: Path,
    *,
    seed: int = 0,
    heads: tuple[int, int] = (HEADS, HEADS),
    residual: bool = False,
    ffn: tuple[int, int] = (FFN, FFN),
    quantization: str | None = None,
    tied: bool = True,
    shared: bool = True,
    bias: bool = True,
    encodings: bool = True,
    inner: int = WIDTH,
    per_layer: bool = False,
    queries_scale: float | None = None,
    projection_bias: bool = False,
    scale: Any = None,
    decoder: dict[str, Any] | None = None,
    config: dict[str, Any] | None = None,
    names: tuple[list[str], list[str]] | None = None,
    **options: Any,
) -> Any:
    """Write a model of CTranslate2 with random weights.

    Args:
        directory: directory to write.
        seed: seed of the weights.
        heads, ffn: numbers of heads and feed-forward widths of the encoder and the decoder.
        residual: RMSNorms multiply by 1 plus their weight.
        quantization: quantization of CTranslate2.
        tied: the projection is the target embedding.
        shared: source and target have one embedding.
        bias: linear layers have biases.
        encodings: tables of positions, instead of CTranslate2's sinusoids.
        inner: the width of all heads together.
        per_layer: each layer has its relative positions.
        queries_scale: divisor of scores instead of the square root of the head width.
        projection_bias: logits have a bias.
        scale: `scale_embeddings`; None for the default of the specification.
        decoder: attributes of the decoder, such as start_from_zero_embedding.
        config: fields of config.json.
        names: the tokens of both sides.
        options: options of TransformerSpec, on both sides.
    """
    spec = new_spec(heads, options)
    write = Writer(seed)
    source, target = names or (tokens(), tokens() if shared else tokens(ROWS + 4))
    spec.encoder.embeddings[0].weight = write.array(len(source), WIDTH)
    same = shared and len(source) == len(target)
    table = spec.encoder.embeddings[0].weight if same else write.array(len(target), WIDTH)
    table[target.index(EOS)] *= 2  # so that many answers end
    spec.decoder.embeddings.weight = table
    spec.decoder.projection.weight = table if tied else write.array(len(target), WIDTH)
    if not tied:
        spec.decoder.projection.weight[target.index(EOS)] *= 2
    if projection_bias:
        spec.decoder.projection.bias = write.array(len(target))
    queries = 1.0 if queries_scale is None else (inner / heads[0]) ** -0.5 / queries_scale
    for side, count, width in zip((spec.encoder, spec.decoder), heads, ffn, strict=True):
        write.side(side, bias=bias, inner=inner, ffn=width, queries=queries)
        if encodings and hasattr(side, "position_encodings"):
            side.position_encodings.encodings = write.array(POSITIONS, WIDTH, scale=0.3)
        if options.get("relative_attention_bias"):
            write.biases(side, count, per_layer=per_layer)
        if options.get("relative_position"):
            write.shaw(side, inner // count)
        if scale is not None:
            side.scale_embeddings = scale
        set_attention(side, queries_scale, residual)
    for name, value in (decoder or {}).items():
        setattr(spec.decoder, name, value)
    spec.register_source_vocabulary(source)
    spec.register_target_vocabulary(target)
    for name, value in (config or {}).items():
        setattr(spec.config, name, value)
    spec.validate()
    spec.optimize(quantization=quantization)
    directory.mkdir(parents=True)
    spec.save(str(directory))
    return spec


class Variable(NamedTuple):
    """A variable of model.bin. Its type is an index into float32, int8, int16, int32, float16, bfloat16."""

    name: str
    shape: tuple[int, ...]
    code: int
    data: bytes


SIZES = (4, 1, 2, 4, 2, 2)


def variables_of(file: Path) -> tuple[list[Variable], dict[str, str]]:
    """Return the variables and aliases of a model.bin of the newest version."""
    data = file.read_bytes()
    place = 0

    def number(form: str) -> int:
        nonlocal place
        (value,) = struct.unpack_from(f"<{form}", data, place)
        place += struct.calcsize(f"<{form}")
        return int(value)

    def text() -> str:
        nonlocal place
        length = number("H")
        place += length
        return data[place - length : place - 1].decode()

    assert number("I") == 6 and text() == "TransformerSpec" and number("I") == 7
    variables = []
    for _ in range(number("I")):
        name = text()
        shape = tuple(number("I") for _ in range(number("B")))
        code = number("B")
        size = number("I")
        variables.append(Variable(name, shape, code, data[place : place + size]))
        place += size
    return variables, {text(): text() for _ in range(number("I"))}


def write_file(
    file: Path,
    version: int,
    name: str,
    revision: int,
    variables: list[Variable],
    aliases: dict[str, str] | None = None,
) -> None:
    """Write model.bin in the format of this version."""

    def text(value: str) -> bytes:
        return struct.pack("<H", len(value.encode()) + 1) + value.encode() + b"\0"

    parts = [struct.pack("<I", version)]
    if version > 1:
        parts += [text(name), struct.pack("<I", revision)]
    parts.append(struct.pack("<I", len(variables)))
    for each in variables:
        size = SIZES[each.code]
        kind = struct.pack("<BI", each.code, len(each.data))
        if version < 4:
            kind = struct.pack("<BI", size, len(each.data) // size)
        parts += [text(each.name), struct.pack(f"<B{len(each.shape)}I", len(each.shape), *each.shape), kind, each.data]
    if version >= 3:
        found = aliases or {}
        parts += [struct.pack("<I", len(found)), *(text(alias) + text(each) for alias, each in found.items())]
    file.write_bytes(b"".join(parts))


def without_aliases(variables: list[Variable], aliases: dict[str, str]) -> list[Variable]:
    """Return the variables with copies for all aliases, and for the scales of quantised ones."""
    named = {each.name: each for each in variables}
    names = [(alias, name) for alias, name in aliases.items()]
    names += [(f"{alias}_scale", f"{name}_scale") for alias, name in names if f"{name}_scale" in named]
    return [*variables, *(named[name]._replace(name=alias) for alias, name in names)]


def attribute(name: str, value: int | str) -> Variable:
    """Return an int8 variable for an attribute: a number, or the bytes of a text."""
    if isinstance(value, str):
        return Variable(name, (len(value.encode()),), 1, value.encode())
    return Variable(name, (), 1, struct.pack("<b", value))


def without_config(directory: Path) -> list[Variable]:
    """Remove config.json, which files before version 6 do not have; return its fields as attributes."""
    config = json.loads((directory / "config.json").read_bytes())
    (directory / "config.json").unlink()
    names = ("unk_token", "bos_token", "eos_token")
    flags = {"with_source_bos": config["add_source_bos"], "with_source_eos": config["add_source_eos"]}
    flags["with_target_bos"] = config["decoder_start_token"] == config["bos_token"]
    return [*(attribute(name, config[name]) for name in names), *(attribute(*flag) for flag in flags.items())]
