"""CTranslate2 imports against CTranslate2 itself: logits, greedy ids and beams, for every option of its converters."""

import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest
import torch
from click.testing import CliRunner
from ctranslate2_models import (
    BOS,
    EOS,
    UNK,
    WIDTH,
    ctranslate2,
    sources,
    tokens,
    variables_of,
    without_aliases,
    without_config,
    write_file,
    write_model,
)
from foreign_models import INPUTS, MADE, greedy, import_here, padded, translators
from txport.exporter.export import ExportOptions, export_bundle
from txport.models.importers.command import main
from txport.runtime.translator import Translator

WHOLE_GRID = bool(os.environ.get("TXPORT_WHOLE_GRID"))
RELU, GELU_TANH, SWISH, GELU, GELU_SIGMOID = range(5)
T5 = {"rms_norm": True, "relative_attention_bias": True, "bias": False, "queries_scale": 1.0, "scale": False}
MARIAN: dict[str, Any] = {
    "pre_norm": False,
    "decoder": {"start_from_zero_embedding": True},
    "config": {"add_source_eos": True, "decoder_start_token": EOS},
    "names": ([EOS, UNK, *tokens()[4:]],) * 2,
}
GRID: dict[str, dict[str, Any]] = {
    "opennmt": {"encodings": True},
    "opennmt_tf": {"encodings": False, "shared": False, "tied": False, "projection_bias": True},
    "fairseq": {
        **{"layernorm_embedding": True, "activation": GELU, "pre_norm": False, "alignment_layer": 1},
        **{"alignment_heads": 2, "config": {"add_source_eos": True, "decoder_start_token": EOS}},
    },
    "pre_norm_with_embedding_norm": {"layernorm_embedding": True, "activation": GELU_TANH, "scale": 1.0},
    "marian": {**MARIAN, "activation": GELU_SIGMOID, "projection_bias": True},
    "marian_two_vocabularies": {**MARIAN, "shared": False, "names": (MARIAN["names"][0], [*MARIAN["names"][0], "x"])},
    "marian_untied": {**MARIAN, "shared": False, "tied": False, "activation": SWISH},
    "gated": {"activation": SWISH, "ffn_glu": True, "ffn": (48, 40)},
    "gated_gelu_sigmoid": {"activation": GELU_SIGMOID, "ffn_glu": True, "rms_norm": True, "bias": False},
    "rms_with_residual": {"rms_norm": True, "residual": True, "config": {"layer_norm_epsilon": 1e-3}},
    "t5": {**T5, "inner": 48, "decoder": {"scale_outputs": np.float32(WIDTH**-0.5)}},
    "umt5": {**T5, "per_layer": True, "ffn_glu": True, "activation": GELU_TANH, "tied": False},
    "rotary": {"rotary_dim": 8},
    "rotary_halves": {"rotary_dim": 0, "rotary_interleave": False, "quantization": "int8"},
    "shaw": {"relative_position": True, "quantization": "int8"},
    "shaw_scaled": {"relative_position": True, "heads": (4, 8), "queries_scale": 0.3, "scale": False, "tied": False},
    "no_final_norm": {"no_final_norm": True, "scale": 1.0, "decoder": {"scale_outputs": np.float32(0.3)}},
    "heads": {"heads": (4, 8), "layernorm_embedding": True},
    "head_dim": {"head_dim": 12, "inner": 48},
    "odd_scales": {"scale": 3.0, "queries_scale": 0.1, "decoder": {"scale_outputs": np.float32(0.5)}},
    "unknown_tokens_differ": {"shared": False, "tied": False, "names": (tokens(), [*tokens()[1:], "x", UNK])},
    "start_is_bos_of_source": {"config": {"add_source_bos": True, "add_source_eos": True}},
    "int8": {"quantization": "int8"},
    "int8_float16": {"quantization": "int8_float16", "tied": False},
    "int8_bfloat16": {"quantization": "int8_bfloat16"},
    "int8_float32": {**MARIAN, "quantization": "int8_float32"},
    "int16": {"quantization": "int16"},
    "float16": {"quantization": "float16"},
    "bfloat16": {"quantization": "bfloat16"},
}
# Those whose ids and beams are compared through bundles.
SEARCHED = ["opennmt", "marian", "t5", "no_final_norm", "shaw"]
FEW = 40


def theirs(directory: Path) -> Any:
    return ctranslate2.Translator(str(directory), compute_type="float32", inter_threads=1, intra_threads=1)


class Pair:
    """A model as CTranslate2 has it, and as imported."""

    def __init__(self, directory: Path, options: dict[str, Any], count: int) -> None:
        write_model(directory / "theirs", **options)
        self.sides = options.get("names") or (tokens(), tokens(60 if options.get("shared", True) else 64))
        self.checkpoint = import_here(directory / "theirs", directory / "ours", tokenizer=False)
        self.translator = theirs(directory / "theirs")
        self.tokens = sources(count)
        config = options.get("config", {})
        self.ids = [
            [
                *([self.id(BOS)] if config.get("add_source_bos") else []),
                *(self.id(token) for token in row),
                *([self.id(EOS)] if config.get("add_source_eos") else []),
            ]
            for row in self.tokens
        ]

    def id(self, token: str) -> int:
        """The id of a source token: that in the vocabulary, as long as the unknown token has one id on both sides."""
        return self.sides[0].index(token)

    def translate(self, **options: Any) -> Any:
        return self.translator.translate_batch(
            self.tokens, max_decoding_length=MADE, min_decoding_length=0, max_batch_size=64, **options
        )

    def named(self, ids: list[int]) -> list[str]:
        """Tokens of an answer. Of the unknown tokens that differ, the target's changes its place with another."""
        target = list(self.sides[1])
        unk, ours = target.index(UNK), self.checkpoint.config.unk_id
        target[unk], target[ours] = target[ours], target[unk]
        return [target[each] for each in ids if each != self.checkpoint.config.eos_id]

    def order(self) -> list[int]:
        """Our ids of the target's tokens, in their order."""
        order = list(range(len(self.sides[1])))
        unk, ours = self.sides[1].index(UNK), self.checkpoint.config.unk_id
        order[unk], order[ours] = ours, unk
        return order


def assert_same_logits(pair: Pair, made: list[list[int]], results: Any) -> None:
    """Logits of the greedy answers within 1e-4; ours is one pass over all of an answer."""
    config = pair.checkpoint.config
    ids, lengths = padded(pair.ids, config.pad_id)
    inputs, _ = padded([[config.bos_id, *row[:-1]] for row in made], config.pad_id)
    with torch.inference_mode():
        model = pair.checkpoint.model
        logits = model.decode(inputs, model.encode(ids, lengths), lengths).numpy()
    assert logits.std() > 0.1, "a model that says nothing proves nothing"
    compared = 0
    for ours, result in zip(logits, results, strict=True):
        expected: npt.NDArray[np.float32] = np.array(result.logits[0], np.float32).reshape(-1, len(pair.sides[1]))
        np.testing.assert_allclose(ours[: len(expected), pair.order()], expected[: len(ours)], atol=1e-4)
        compared += len(expected)
    assert compared > len(made)


@pytest.mark.parametrize("name", GRID)
def test_same_logits_and_greedy_ids_as_ctranslate2(name: str, tmp_path: Path) -> None:
    pair = Pair(tmp_path, GRID[name], INPUTS if WHOLE_GRID else FEW)
    results = pair.translate(beam_size=1, return_logits_vocab=True)
    made = greedy(pair.checkpoint, pair.ids)
    expected = [result.hypotheses[0] for result in results]
    assert [pair.named(row) for row in made] == expected
    assert len({tuple(row) for row in expected}) > 5
    assert_same_logits(pair, made, results)


POSITIONS: tuple[dict[str, Any], ...] = (
    {},
    {"encodings": False},
    {"relative_attention_bias": True},
    {"relative_attention_bias": True, "per_layer": True},
    {"relative_position": True},
    {"rotary_dim": 0},
    {"rotary_dim": 0, "rotary_interleave": False},
)
QUANTIZATION = (None, "int8", "int8_float16", "int16", "float16", "bfloat16")
SEEDS = [seed for seed in range(60 if WHOLE_GRID else 5) if seed not in (1, 9)]  # answers of these are empty


def combination(seed: int) -> dict[str, Any]:
    """Return random options of a model, without `no_final_norm`, where CTranslate2's own errors reach 1e-4."""
    draw = random.Random(seed)

    def perhaps(value: Any) -> dict[str, Any]:
        return value if draw.random() < 0.35 else {}

    heads = draw.choice([{"heads": (4, 4)}, {"heads": (2, 4)}, {"heads": (8, 2)}, {"head_dim": 12, "inner": 48}])
    names = ("layernorm_embedding", "rms_norm", "ffn_glu", "projection_bias")
    config = perhaps({"add_source_eos": True}) | perhaps({"add_source_bos": True})
    config |= perhaps({"decoder_start_token": EOS}) | perhaps({"layer_norm_epsilon": 1e-4})
    decoder = perhaps({"scale_outputs": np.float32(0.5)}) | perhaps({"start_from_zero_embedding": True})
    return {
        **{"seed": seed, **heads, **draw.choice(POSITIONS), "config": config, "decoder": decoder},
        **{name: draw.random() < 0.35 for name in names},
        **{name: draw.random() < 0.65 for name in ("pre_norm", "bias", "tied", "shared")},
        **{"activation": draw.randrange(5), "scale": draw.choice([None, 1.0, 2.5, False])},
        **{"quantization": draw.choice(QUANTIZATION), "ffn": draw.choice([(48, 48), (48, 40)])},
        **perhaps({"queries_scale": draw.choice([1.0, 0.2])}),
        **perhaps({"alignment_layer": draw.choice([-1, 0, 1]), "alignment_heads": draw.choice([0, 1, 2])}),
    }


@pytest.mark.parametrize("seed", SEEDS)
def test_random_combinations(seed: int, tmp_path: Path) -> None:
    pair = Pair(tmp_path, combination(seed), 16)
    results = pair.translate(beam_size=1, return_logits_vocab=True)
    made = greedy(pair.checkpoint, pair.ids)
    assert [pair.named(row) for row in made] == [result.hypotheses[0] for result in results]
    assert_same_logits(pair, made, results)


@pytest.mark.parametrize("name", GRID if WHOLE_GRID else SEARCHED)
def test_same_ids_and_beams_as_ctranslate2_in_every_engine(name: str, tmp_path: Path) -> None:
    """All hypotheses of four beams, with Argos Translate's length penalty, and all greedy ids."""
    pair = Pair(tmp_path, GRID[name], INPUTS if WHOLE_GRID else 2 * FEW)
    options = ExportOptions(verify=False, max_source=20, max_target=MADE)
    export_bundle(pair.checkpoint.directory, tmp_path / "bundle", options)
    expected = [result.hypotheses for result in pair.translate(beam_size=4, num_hypotheses=4, length_penalty=0.2)]
    first = [result.hypotheses[0] for result in pair.translate(beam_size=1)]
    ended = sum(len(row) < MADE for row in first)
    assert ended > 1 and len({tuple(row) for row in first}) > 20
    for engine, translator in translators(tmp_path / "bundle"):
        made = translator.translate_ids(pair.ids, max_length=MADE)
        assert [pair.named(each.ids) for each in made] == first, engine
        made = translator.translate_ids(
            pair.ids, beam=4, n_best=4, length_penalty=0.2, early_stopping=True, max_length=MADE
        )
        found = [[pair.named(each.ids) for each in row.hypotheses] for row in made]
        # Candidates that float32 cannot tell apart may leave a beam in one engine and stay in another.
        different = [row for row, (ours, theirs) in enumerate(zip(found, expected, strict=True)) if ours != theirs]
        assert len(different) <= 1, (engine, different)


def int8_vectors(bundle: Path) -> Iterator[npt.NDArray[np.int8]]:
    """Rows of embeddings and columns of other matrices, of the graphs of a bundle."""
    for file in sorted((bundle / "onnx").glob("*.onnx")):
        for tensor in onnx.load(str(file)).graph.initializer:
            if tensor.data_type == onnx.TensorProto.INT8 and len(tensor.dims) == 2:
                matrix = onnx.numpy_helper.to_array(tensor)
                yield from matrix if "tokens" in tensor.name else matrix.T


@pytest.mark.parametrize("name", GRID if WHOLE_GRID else ["opennmt_tf", "marian_untied", "t5", "odd_scales"])
def test_int8_values_of_a_bundle_are_those_of_the_file(name: str, tmp_path: Path) -> None:
    """The exporter rounds again what was rounded: no value differs. Only tokens that were added are rows of zeros."""
    write_model(tmp_path / "theirs", **{**GRID[name], "quantization": "int8"})
    import_here(tmp_path / "theirs", tmp_path / "ours", tokenizer=False)
    options = ExportOptions(verify=False, int8=True, lowerings=("ort",), max_source=20, max_target=MADE)
    export_bundle(tmp_path / "ours", tmp_path / "bundle", options)
    variables = variables_of(tmp_path / "theirs" / "model.bin")[0]
    known = {
        row.tobytes()
        for each in variables
        if each.code == 1 and len(each.shape) == 2
        for row in np.frombuffer(each.data, np.int8).reshape(each.shape)
    }
    vectors = list(int8_vectors(tmp_path / "bundle"))
    assert sum(map(len, vectors)) > 50_000 and not any(row.any() and row.tobytes() not in known for row in vectors)
    assert sum(not row.any() for row in vectors) <= 4


def old_file(directory: Path, version: int, revision: int) -> None:
    """Write a model again as older converters did."""
    variables, aliases = variables_of(directory / "model.bin")
    extra = without_config(directory) if version < 6 else []
    if revision < 5:
        moved = {"num_heads", "pre_norm", "activation", "embeddings_merge", "alignment_layer", "alignment_heads"}
        common = {each.name.partition("/")[2]: each for each in variables if each.name.partition("/")[2] in moved}
        variables = [each for each in variables if each.name.partition("/")[2] not in moved]
        variables += [each._replace(name=name) for name, each in common.items()]
    if revision < 3:
        variables = [each for each in variables if each.name != "num_heads"]
    if version < 3:
        variables = without_aliases(variables, aliases)
    if revision == 1:
        variables = [each._replace(name=opennmt_name(each.name)) for each in variables]
        variables = [each for each in variables if each.name.endswith(":0")]
    name = "TransformerBase" if revision < 3 else "TransformerSpec"
    write_file(directory / "model.bin", version, name, revision, [*variables, *extra], aliases)


def opennmt_name(name: str) -> str:
    """The name of a weight in OpenNMT-tf; attributes stay as they are."""
    if not name.endswith(("weight", "bias", "gamma", "beta")):
        return name
    side = name.partition("/")[0]
    own, other = ("multi_head", "") if side == "encoder" else ("masked_multi_head", "multi_head")
    pairs = (
        *(("embeddings_0/weight", "w_embs"), ("embeddings/weight", "w_embs"), ("self_attention", own)),
        *(("/attention", f"/{other}"), ("layer_norm", "LayerNorm"), ("projection", "dense"), ("weight", "kernel")),
        *(("linear_0", "conv1d"), ("linear_", "conv1d_")),
    )
    for new, old in pairs:
        name = name.replace(new, old)
    return f"transformer/{name}:0"


@pytest.mark.parametrize(
    ("version", "revision"), [(6, 6), (5, 6), (5, 5), (5, 4), (4, 4), (3, 3), (2, 3), (2, 2), (2, 1), (1, 1)]
)
def test_old_versions_and_revisions(version: int, revision: int, tmp_path: Path) -> None:
    """CTranslate2 reads the same file. Before revision 3, the number of heads follows from the specification's name."""
    options: dict[str, Any] = {"heads": (8, 8), "encodings": revision > 1, "config": {"add_source_eos": True}}
    write_model(tmp_path / "theirs", **options)
    old_file(tmp_path / "theirs", version, revision)
    checkpoint = import_here(tmp_path / "theirs", tmp_path / "ours", tokenizer=False)
    assert checkpoint.config.heads == 8 and checkpoint.tokenizer.source_suffix == (tokens().index(EOS),)
    rows = sources(20)
    results = theirs(tmp_path / "theirs").translate_batch(
        rows, beam_size=1, max_decoding_length=MADE, min_decoding_length=0
    )
    ids = [[*(tokens().index(token) for token in row), tokens().index(EOS)] for row in rows]
    made = greedy(checkpoint, ids)
    found = [[tokens()[each] for each in row if each != checkpoint.config.eos_id] for row in made]
    assert found == [result.hypotheses[0] for result in results]


SPECIAL = ["<blank>", "<s>", EOS]
LETTERS = [*"abcdefghijklmnopqrstuvwxyz", "'", "-"]
SIGNS = [
    *map(chr, range(0x622, 0x63B)),
    *map(chr, range(0x905, 0x94E)),
    "\u200c",
    "\u200d",
    "\u0301",
    "e\u0301",
    "\u00e9",
]


@pytest.mark.parametrize("engine", ["fused", "ort"])
@pytest.mark.parametrize(("version", "quantization"), [(1, None), (2, "int16"), (2, "int8"), (6, "int8")])
def test_transliteration_from_files_to_texts(
    version: int, quantization: str | None, engine: str, tmp_path: Path
) -> None:
    """Letters as tokens, as OpenNMT-tf and old converters write them: no config.json, and no unknown token in lists."""
    names = ([*SPECIAL, *SIGNS, UNK], [*SPECIAL, *LETTERS, UNK])
    options: dict[str, Any] = {"heads": (8, 8), "shared": False, "tied": False, "encodings": False, "names": names}
    write_model(tmp_path / "theirs", quantization=quantization, **options)
    old_file(tmp_path / "theirs", version, {1: 1, 2: 2, 6: 7}[version])
    for side, tokens_of in zip(("source", "target"), names, strict=True):
        (tmp_path / "theirs" / f"{side}_vocabulary.json").unlink()
        text = "".join(f"{token}\n" for token in tokens_of[:-1])
        (tmp_path / "theirs" / f"{side}_vocabulary.txt").write_text(text, encoding="utf-8")
    done = CliRunner().invoke(main, [str(tmp_path / "theirs"), "-o", str(tmp_path / "ours")])
    assert done.exit_code == 0 and "texts are tokens between spaces" in done.output, done.output
    export_bundle(
        tmp_path / "ours", tmp_path / "bundle", ExportOptions(verify=False, lowerings=("ort",), max_target=MADE)
    )
    draw = random.Random(3)
    rows = [draw.choices([*SIGNS, "Q"], k=draw.randrange(1, 12)) for _ in range(INPUTS)]
    translator = theirs(tmp_path / "theirs")
    ours = Translator(tmp_path / "bundle", "cpu", engine, workers=0)
    settings = {"max_decoding_length": MADE, "min_decoding_length": 0, "max_batch_size": 64}
    results = translator.translate_batch(rows, beam_size=1, **settings)
    made = ours.translate([" ".join(row) for row in rows], max_length=MADE)
    ordinary = [not {UNK, *SPECIAL} & {*result.hypotheses[0]} for result in results]
    assert sum(ordinary) > INPUTS / 2 and len({result.text for result in made}) > 20
    for result, expected, comparable in zip(made, results, ordinary, strict=True):
        assert result.text == " ".join(expected.hypotheses[0]) or not comparable
