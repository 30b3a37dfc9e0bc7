"""FP16 graphs: what becomes half, what stays single, and that rounding shows on a CPU."""

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy_runner import STEPS, NumpyRunner, graphs_of, open_session, random_model
from txport.exporter.bundle import write_graphs
from txport.exporter.graphs.decoder import write_step
from txport.exporter.graphs.encoder import write_encoder
from txport.exporter.graphs.float16 import HALF_LOWERINGS, fold_biases, round_results, to_float16
from txport.exporter.graphs.lowerings import LOWERINGS
from txport.exporter.graphs.tensors import ModelTensors
from txport.exporter.precision.calibration import Calibration, Loss
from txport.exporter.precision.islands import choose_islands, island_nodes, lossy_scopes
from txport.exporter.reference import answers, sample_sources
from txport.models.transformer import Transformer
from txport.runtime.bundle.tokenizer_schema import ids_only
from txport.runtime.errors import CheckFailed
from txport.runtime.text.affixes import affixes

FLOAT, HALF = ir.DataType.FLOAT, ir.DataType.FLOAT16


def graphs(model: Transformer, *lowerings: str) -> dict[str, ir.Model]:
    length, tensors = model.config.max_positions, ModelTensors()
    steps = {f"decoder_step.{name}": write_step(model, HALF_LOWERINGS[name], length, tensors) for name in lowerings}
    return {"encoder": write_encoder(model, length, tensors), **steps}


def calibration(model: Transformer) -> Calibration:
    sources = sample_sources(model.config, 8, 12, affixes(ids_only(model.config.eos_id)))
    return Calibration(list(answers(model, sources, 16)), model.config.bos_id)


def silent(_: str) -> None:
    pass


@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize("lowering", STEPS)
def test_only_islands_stay_single(lowering: str, biased: bool) -> None:
    """Attention without biases has other nodes: MatMul where there was Gemm."""
    step = graphs_of(random_model(attention_bias=biased), lowering)[1]
    islands = {node.name for node in step.graph if (node.name or "").startswith("layers.1.feed_forward.outer/")}
    assert islands
    to_float16(step, islands)
    onnx.checker.check_model(ir.to_proto(step), full_check=True)
    for node in step.graph:
        dtypes = {value.dtype for value in [*node.inputs, *node.outputs] if value is not None} & {FLOAT, HALF}
        if node.name in islands:
            assert dtypes == {FLOAT}
        elif node.op_type == "Cast" and dtypes == {FLOAT, HALF}:
            assert node.inputs[0].producer().name in islands or {u.node.name for u in node.outputs[0].uses()} <= islands
        else:
            assert FLOAT not in dtypes, node.name
    assert {value.dtype for value in [*step.graph.inputs, *step.graph.outputs]} <= {
        HALF,
        ir.DataType.INT64,
        ir.DataType.BOOL,
    }


def test_rounding_is_that_of_numpy() -> None:
    """y = (x + 1) - 1 loses in float16 what it keeps in float32; ONNX Runtime's CPU provider alone does not lose it."""
    text = """<ir_version: 8, opset_import: ["" : 18]>
    agraph (float16[n] x) => (float16[n] y) { t = Add(x, one)  y = Sub(t, one) }"""
    x = np.random.default_rng(0).normal(size=1000).astype(np.float16) * np.float16(0.01)
    expected = (x + np.float16(1)) - np.float16(1)
    proto = onnx.parser.parse_model(text)
    proto.graph.initializer.append(onnx.numpy_helper.from_array(np.float16(1), "one"))
    model = ir.from_proto(onnx.shape_inference.infer_shapes(proto))
    plain = open_session(model).run(None, {"x": x})[0]
    round_results(model)
    onnx.checker.check_model(ir.to_proto(model), full_check=True)
    np.testing.assert_array_equal(open_session(model).run(None, {"x": x})[0], expected)
    assert (plain != expected).mean() > 0.5, (
        "ONNX Runtime rounds by itself now: `round_results` may have become needless"
    )


def overflowing_model() -> Transformer:
    """Its second feed-forward layer reaches 1e5 inside, and is harmless outside."""
    model = random_model()
    with torch.no_grad():
        model.decoder[1].feed_forward.inner.weight.mul_(1e5)
        model.decoder[1].feed_forward.outer.weight.mul_(1e-5)
    return model


@pytest.mark.parametrize("lowering", LOWERINGS)
def test_overflow_makes_islands(tmp_path: Path, lowering: str) -> None:
    model = overflowing_model()
    models = graphs(model, lowering)
    name = f"decoder_step.{lowering}"
    files = write_graphs(tmp_path, models, "0")
    sentences = calibration(model)
    islands = choose_islands(tmp_path, files, sentences, silent)
    overflow = {node for island in islands if island.reason == "overflow" for node in island.nodes}
    assert overflow and all(node.startswith("layers.1.feed_forward") for node in overflow)

    def logits(kept: set[str]) -> np.ndarray:
        half = {key: ir.load(file) for key, file in files.items()}
        for key, each in half.items():
            to_float16(each, island_nodes(islands, key) if kept else set())
            round_results(each)
        runner = NumpyRunner(model, half["encoder"], half[name])
        batch = sentences.answers[0].batch
        cross = runner.encode(batch.source_ids, batch.source_lengths)
        rows = len(batch.targets)
        state = {"token_ids": np.full(rows, model.config.bos_id), "positions": np.zeros(rows, np.int64)}
        return runner.step(cross, runner.empty_caches(rows, 4), **state)["logits"].astype(np.float32)

    expected = sentences.answers[0].logits[:, 0]
    assert not np.isfinite(logits(set())).all(), "without islands it overflows"
    np.testing.assert_allclose(logits(overflow), expected, atol=0.1)


def test_a_cache_that_overflows_is_refused(tmp_path: Path) -> None:
    model = random_model()
    with torch.no_grad():
        model.decoder[0].cross_attention.value.bias.add_(1e5)
    files = write_graphs(tmp_path, graphs(model, "scatter"), "0")
    with pytest.raises(CheckFailed, match="float16 cannot hold this model: cross_value_0 .* without --fp16"):
        choose_islands(tmp_path, files, calibration(model), silent)


def test_loss_makes_islands(tmp_path: Path) -> None:
    """Cancellation: two huge parts of a sum differ by what matters; no value overflows, yet float16 loses all."""
    model = random_model(encoder_layers=1)
    with torch.no_grad():
        outer = model.decoder[1].feed_forward.outer
        model.decoder[1].feed_forward.inner.bias[:2] = 30000.0
        model.decoder[1].feed_forward.inner.weight[:2] *= 10
        # Not the same for all of d_model: LayerNorm would take that away.
        outer.weight[:, 1] = -outer.weight[:, 0]
    files = write_graphs(tmp_path, graphs(model, "scatter"), "0")
    islands = choose_islands(tmp_path, files, calibration(model), silent)
    lossy = {node for island in islands if island.reason == "loss" for node in island.nodes}
    assert any(node.startswith("layers.1.feed_forward") for node in lossy)


@given(st.lists(st.integers(0, 50), min_size=1, max_size=12, unique=True), st.integers(0, 600))
def test_the_search_adds_what_helps_most(noise: list[int], bearable: int) -> None:
    """Of independent noises the loudest, each tried once or twice, until the tokens are kept or all is silent."""
    scopes = [("encoder", f"layers.{i}") for i in range(len(noise))]
    trials = 0

    def left(kept: Sequence[tuple[str, str]]) -> int:
        return sum(each for scope, each in zip(scopes, noise, strict=True) if scope not in kept)

    def measure(kept: Sequence[tuple[str, str]]) -> Loss:
        nonlocal trials
        trials += 1
        return Loss(math.sqrt(left(kept)), changed=float(left(kept) > bearable), regret=0.0)

    found = lossy_scopes(measure, scopes)
    assert trials <= 1 + 2 * len(scopes)
    loudest = sorted(noise, reverse=True)
    assert [noise[scopes.index(scope)] for scope in found] == loudest[: len(found)] and 0 not in loudest[: len(found)]
    assert left(found) <= bearable and (not found or left(found[:-1]) > bearable)


def test_the_search_goes_on_from_what_only_helps_together() -> None:
    """The second module helps only after the first; and one that makes the logits finite is worth more than any."""
    losses = {"": math.inf, "a": math.inf, "b": 3.0, "c": math.inf, "ab": 4.0, "bc": 2.0, "abc": 1.0, "ac": 9.0}

    def measure(kept: Sequence[tuple[str, str]]) -> Loss:
        rms = losses["".join(sorted(scope for _, scope in kept))]
        return Loss(rms, changed=float(rms > 1), regret=0.0)

    assert [scope for _, scope in lossy_scopes(measure, [("encoder", each) for each in "abc"])] == ["b", "c", "a"]


@pytest.mark.parametrize("shared", [False, True])
def test_a_bias_moves_into_a_norm_unless_something_else_reads_the_sum(shared: bool) -> None:
    x, weight, bias, scale, shift = (ir.Value(name=name) for name in ("x", "weight", "bias", "scale", "shift"))
    product = ir.Node("", "Gemm", [x, weight, bias])
    norm = ir.Node("com.microsoft", "SkipLayerNormalization", [product.outputs[0], x, scale, shift])
    nodes = [product, norm, *([ir.Node("", "Relu", [product.outputs[0]])] if shared else [])]
    graph = ir.Graph([x], [node.outputs[0] for node in nodes[1:]], nodes=nodes)
    fold_biases(graph)
    assert len(product.inputs) == (3 if shared else 2) and (bias in norm.inputs) is not shared
