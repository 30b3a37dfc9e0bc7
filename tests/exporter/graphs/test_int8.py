"""Int8 graphs: near to PyTorch, each row by itself, each table once, and layers that int8 would spoil left out."""

import functools
import json
import re
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import sacrebleu
import torch
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from numpy_runner import OPTIONS, NumpyRunner, graphs_of, open_session, random_model
from onnx import numpy_helper
from txport.exporter.export_command import main as command
from txport.exporter.graphs.int8 import quantised, to_int8
from txport.exporter.reference import answers
from txport.exporter.sample import choose_sample
from txport.exporter.verification.quality import Quality
from txport.models.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from txport.models.transformer import Transformer
from txport.runtime.bundle.manifest import Manifest
from txport.runtime.errors import InputError
from txport.runtime.golden import check_translator, load_golden
from txport.runtime.translator import Translator

WEIGHTS = arrays.arrays(
    np.float32,
    arrays.array_shapes(min_dims=2, max_dims=2, max_side=9),
    elements=st.integers(-1000, 1000).map(lambda value: value / 128),
)


@given(WEIGHTS)
def test_weights_are_rounded_by_less_than_half_a_level(weight: np.ndarray) -> None:
    ints, scales = quantised(weight)
    assert ints.dtype == np.int8 and ints.min() >= -127
    assert (np.abs(ints * scales[:, None] - weight) <= scales[:, None] * 0.501).all()


class Largest(dict[str, float]):
    """Ranges for graphs of which only the speed and the form matter: what a LayerNorm gives is seldom beyond."""

    def __missing__(self, name: str) -> float:
        return 6.0


def in_int8(model: Transformer) -> tuple[ir.Model, ir.Model]:
    encoder, step = graphs_of(model, "ort")
    for graph in (encoder, step):
        to_int8(graph, Largest())
    return encoder, step


def run(runner: NumpyRunner, source: np.ndarray, lengths: np.ndarray, target: np.ndarray) -> np.ndarray:
    """Logits `[b, t, v]` of a target that is fed."""
    cross, caches = runner.encode(source, lengths), runner.empty_caches(len(source), target.shape[1])
    feeds = [
        {"token_ids": target[:, position], "positions": np.full(len(source), position)}
        for position in range(target.shape[1])
    ]
    return np.stack([runner.step(cross, caches, **feed)["logits"] for feed in feeds], axis=1)


def relative_error(model: Transformer) -> float:
    """Error of the logits in int8, over their spread."""
    source, lengths = torch.randint(4, 64, (3, 7)), torch.tensor([7, 4, 1])
    target = torch.randint(4, 64, (3, 9))
    with torch.inference_mode():
        expected = model(source, lengths, target).numpy()
    found = run(NumpyRunner(model, *in_int8(model)), source.numpy(), lengths.numpy(), target.numpy())
    return float(np.sqrt(np.square(found - expected).mean()) / expected.std())


@pytest.mark.parametrize("option", OPTIONS)
def test_graphs_are_near_pytorch(option: str) -> None:
    """By the median of several models where no norm bounds a row: errors of single ones are from 4 to 15%."""
    count = 9 if OPTIONS[option].get("norm_kind") == "batch" else 1
    models = [random_model(seed, **OPTIONS[option]) for seed in range(count)]
    error = float(np.median([relative_error(model) for model in models]))
    tails = 2 if models[0].config.feed_forward == "gated" else 1  # products have some values far above the others
    assert 0 < error < 0.1 * tails, "127 levels a side leave some percent"


@pytest.mark.parametrize("option", OPTIONS)
def test_no_matrix_of_weights_stays_in_float32(option: str) -> None:
    """But for positions and whether to copy; and a table that is also the projection is one tensor for both."""
    model = random_model(**OPTIONS[option])
    encoder, step = in_int8(model)
    for graph in (encoder, step):
        matrices = [value for value in graph.graph.initializers.values() if len(value.shape or ()) == 2]
        wide = [value.name or "" for value in matrices if value.dtype == ir.DataType.FLOAT and value.shape[1] != 1]
        assert [name for name in wide if "positions" not in name and not name.startswith("copying.")] == []
    (lookup,) = (node for node in step.graph if node.op_type == "Gather" and node.inputs[0].dtype == ir.DataType.INT8)
    projections = [node for node in step.graph if node.op_type == "QGemm"]
    assert [node.inputs[3] for node in projections] == ([lookup.inputs[0]] if model.config.tie_projection else [])


@given(st.data())
@settings(max_examples=15, deadline=None)
def test_a_row_does_not_depend_on_its_batch(data: st.DataObject) -> None:
    """But for the order of float32 sums; one scale for a whole batch would change much more."""
    runner = _runner()
    rows = data.draw(st.integers(2, 5))
    seed = np.random.default_rng(data.draw(st.integers(0, 2**16)))
    lengths = seed.integers(1, 9, rows)
    source, target = seed.integers(4, 64, (rows, 8)), seed.integers(4, 64, (rows, 5))
    together = run(runner, source, lengths, target)
    for row in range(rows):
        alone = run(runner, source[row : row + 1], lengths[row : row + 1], target[row : row + 1])
        np.testing.assert_allclose(alone[0], together[row], atol=2e-5, rtol=0)


@functools.cache
def _runner() -> NumpyRunner:
    model = random_model()
    return NumpyRunner(model, *in_int8(model))


def test_a_row_of_zeros_gives_the_bias() -> None:
    """Its largest value, 0, divides it."""
    text = """<ir_version: 8, opset_import: ["" : 18]>
    agraph (float[n, 3] x) => (float[n, 2] y) { y = Gemm<transB=1>(x, w, b) }"""
    proto = onnx.parser.parse_model(text)
    weight, bias = np.array([[1, 2, 3], [-4, 5, 6]], np.float32), np.array([7, -8], np.float32)
    proto.graph.initializer.extend([numpy_helper.from_array(weight, "w"), numpy_helper.from_array(bias, "b")])
    model = ir.from_proto(onnx.shape_inference.infer_shapes(proto))
    to_int8(model, {})
    x = np.array([[0, 0, 0], [1, 0, -1], [1e-30, 0, 0]], np.float32)
    (found,) = open_session(model).run(None, {"x": x})
    np.testing.assert_array_equal(found[0], bias)
    np.testing.assert_allclose(found, x @ weight.T + bias, atol=0.05)


@pytest.mark.parametrize(
    ("body", "products", "splits"),
    [
        ("m = MatMul(x, w)  a = Add(m, b)  y, z = Split<axis=2, num_outputs=2>(a)", 2, 0),
        ("m = MatMul(x, w)  a = Add(b, m)  y, z = Split<axis=-1, num_outputs=2>(a)", 2, 0),
        ("a = MatMul(x, w)  y, z = Split<axis=2, num_outputs=2>(a)", 2, 0),
        ("m = MatMul(x, w)  a = Add(m, b)  y, z = Split<axis=1, num_outputs=2>(a)", 1, 1),
        ("m = MatMul(x, w)  a = Add(m, b)  y, z = Split<axis=2>(a, sizes)", 1, 1),
        ("z = MatMul(x, w)  y = Add(z, b)", 1, 0),
        ("m = MatMul(x, w)  a = Add(m, b)  y = Relu(a)  z, t = Split<axis=2, num_outputs=2>(a)", 1, 1),
    ],
)
def test_what_is_split_at_once_comes_apart_only_if_nothing_else_reads_it(body: str, products: int, splits: int) -> None:
    text = f"""<ir_version: 8, opset_import: ["" : 18]>
    agraph (float[n, 2, 4] x) => (float[n, p, q] y, float[n, r, s] z) {{ {body} }}"""
    proto = onnx.parser.parse_model(text)
    rng = np.random.default_rng(1)
    weight, bias = rng.normal(size=(4, 6)).astype(np.float32), rng.normal(size=6).astype(np.float32)
    constants = {"w": weight, "b": bias, "sizes": np.array([2, 4])}
    proto.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in constants.items())
    model = ir.from_proto(onnx.shape_inference.infer_shapes(proto))
    x = rng.normal(size=(3, 2, 4)).astype(np.float32)
    expected = open_session(model).run(None, {"x": x})
    to_int8(model, {})
    onnx.checker.check_model(ir.to_proto(model))
    kinds = [node.op_type for node in model.graph]
    assert (kinds.count("MatMulIntegerToFloat"), kinds.count("Split")) == (products, splits)
    for found, wanted in zip(open_session(model).run(None, {"x": x}), expected, strict=True):
        np.testing.assert_allclose(found, wanted, atol=0.05)


def test_a_bias_is_in_the_product_where_all_rows_have_one_scale() -> None:
    """After a LayerNorm, that is; and the packed projections of the encoder come as several products."""
    encoder, _ = in_int8(random_model(**OPTIONS["pre"]))
    products = [node for node in encoder.graph if node.op_type == "MatMulIntegerToFloat"]
    after_norms = [node for node in products if "LayerNormalization" in str(node.inputs[2].name)]
    assert len(after_norms) > len(products) / 2
    assert all(len(node.inputs) == 7 for node in after_norms)
    assert "Split" not in {node.op_type for node in encoder.graph}


def clearest(loaded: Checkpoint, count: int, among: int) -> list[str]:
    """The sentences whose tokens lead the next best by most: whole layers in int8 change none of them."""
    sample = choose_sample(loaded, among, 128, 128)
    leads = {}
    for answer in answers(loaded.model, sample.sources, sample.limits):
        best = np.sort(answer.logits, axis=-1)
        for row, (index, target) in enumerate(zip(answer.batch.indices, answer.batch.targets, strict=True)):
            leads[sample.texts[index]] = float((best[row, : len(target), -1] - best[row, : len(target), -2]).min())
    return sorted(leads, key=lambda text: -leads[text])[:count]


def test_layers_that_int8_would_spoil_stay_in_float32(checkpoint: Path, tmp_path: Path) -> None:
    """A value 200 times the others takes all levels of its row; what the next layer does with it is the same.

    Without references: those of a model trained for a moment cannot tell a spoilt layer from a whole one everywhere.
    """
    hostile = tmp_path / "hostile"
    loaded = load_checkpoint(checkpoint)
    with torch.no_grad():
        layer = loaded.model.encoder[0]
        norm, inner = layer.feed_forward_residual.norm, layer.feed_forward.inner
        norm.weight[0] *= 200
        norm.bias[0] *= 200
        inner.weight[:, 0] /= 200
    save_checkpoint(hostile, loaded.model, checkpoint / "tokenizer", clearest(loaded, 60, among=600), {})
    arguments = [str(hostile), "-o", str(tmp_path / "bundle"), "--int8", "--singles", "4", "--json"]
    result = CliRunner().invoke(command, arguments, catch_exceptions=False)
    report = json.loads(result.stdout)["verification"]
    qualities = [lowering["quality"] for lowering in report["lowerings"]]
    assert report["passed"]
    assert all(each["changed"] <= 0.02 for each in qualities)
    islands = Manifest.load(tmp_path / "bundle").precision.islands
    kept = {(island.graph, node) for island in islands for node in island.nodes}
    assert kept == {("encoder", "layers.0.feed_forward.inner/MatMul")}
    assert {island.reason for island in islands} == {"loss"}


def test_a_bundle_of_int8(int8_bundle: Path, bundle: Path) -> None:
    manifest = Manifest.load(int8_bundle)
    assert (manifest.precision.type, manifest.precision.weights, manifest.precision.islands) == ("float32", "int8", ())
    assert [graph.name for graph in manifest.graphs] == ["encoder", "decoder_step.ort"]
    size, whole = ((each / "onnx" / "weights.bin").stat().st_size for each in (int8_bundle, bundle))
    positions = 128 * 64 * 4
    assert size - positions < 0.35 * (whole - positions), "a quarter, and what a norm and a scale for each channel take"
    report = json.loads((int8_bundle / "verification.json").read_text())
    for lowering in report["lowerings"]:  # of the fused engine too, where it is here
        assert lowering["loop_identical"] == lowering["sentences"] == 200
        assert lowering["batch_identical"] == lowering["padded_identical"] == lowering["single_sentences"] > 0
        assert lowering["quality"]["sentences"] == 200
        name = lowering["lowering"]
        where = {"engine" if name == "fused" else "lowering": name}
        translator = Translator(int8_bundle, **where)
        assert check_translator(translator, load_golden(int8_bundle)) == []


def test_quality_is_measured_on_text(int8_bundle: Path, checkpoint: Path) -> None:
    """The figure of the report is sacreBLEU's for what the translator gives, cut where verification cuts it."""
    loaded = load_checkpoint(checkpoint)
    pairs = [(text, reference) for text, reference in zip(loaded.sentences, loaded.references, strict=True)][:200]
    translator = Translator(int8_bundle, lowering="ort")
    texts = [text for text, _ in pairs]
    most = [min(128, 2 * len(translator.tokenizer.encode(text)) + 20) for text in texts]  # as verification cuts them
    made = [translator.translate([text], max_length=limit)[0].text for text, limit in zip(texts, most, strict=True)]
    expected = sacrebleu.corpus_bleu(made, [[reference for _, reference in pairs]]).score
    lowering = json.loads((int8_bundle / "verification.json").read_text())["lowerings"][0]
    assert lowering["quality"]["bleu"] == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize(
    ("quality", "words"),
    [
        (Quality(10, 0.5, 29.0, 30.0, 0.2), None),
        (Quality(10, 0.5, 31.0, 30.0), None),
        (Quality(10, 0.0, 29.69, 30.0, 0.0009), "0.31 BLEU"),
        (Quality(10, 0.02), None),
        (Quality(10, 0.021), "2.10% of the tokens"),
    ],
)
def test_quality_has_a_bound(quality: Quality, words: str | None) -> None:
    assert (quality.failure is None) if words is None else (words in (quality.failure or ""))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--int8", "--fp16"], "exclude each other"),
        (["--int8", "--lowering", "scatter"], "--lowering ort"),
        (["--int8", "--references", "lines"], "--text"),
        (["--int8", "--text", "lines", "--references", "more"], "more has 3 lines, but lines has 2"),
    ],
)
def test_bad_options(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("lines").write_text("a\nb\n")
    Path("more").write_text("a\nb\nc\n")
    with pytest.raises(InputError, match=re.escape(words)):
        CliRunner().invoke(command, [str(checkpoint), "-o", "bundle", *arguments], catch_exceptions=False)
    assert not Path("bundle").exists()
