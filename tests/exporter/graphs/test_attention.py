"""The optional graphs of every kind of model against PyTorch and a softmax in NumPy, in every precision."""

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch
from numpy_runner import (
    OPTIONS,
    NumpyRunner,
    attention_graphs_of,
    copied,
    graphs_of,
    open_session,
    random_model,
    run_graph,
)
from txport.exporter.bundle import graph_record, write_graphs
from txport.exporter.graphs.float16 import final_nodes, round_results, to_float16
from txport.exporter.graphs.int8 import norm_outputs, to_int8
from txport.models.attention_maps import attention_maps
from txport.models.transformer import Transformer
from txport.runtime.bundle import interface

SOURCE, TARGET = np.array([7, 4, 1]), np.array([2, 9, 5])
Outputs = dict[str, np.ndarray]


@pytest.fixture(params=OPTIONS)
def model(request: pytest.FixtureRequest) -> Transformer:
    return random_model(**OPTIONS[request.param])


def ids(seed: int) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    return random.integers(4, 64, (3, 7)), random.integers(4, 64, (3, 9))


def run(encoder: ir.Model, graphs: dict[str, ir.Model], seed: int = 0) -> tuple[Outputs, Outputs]:
    """Outputs of the decoder graph and of the encoder's."""
    source, target = ids(seed)
    of_source = {"input_ids": source, "source_lengths": SOURCE}
    cross = run_graph(open_session(encoder), of_source)
    feed = {"target_ids": target, "target_lengths": TARGET, **cross}
    return run_graph(open_session(graphs["decoder"]), feed), run_graph(
        open_session(graphs["encoder_attention"]), of_source
    )


@torch.inference_mode()
def expected(model: Transformer, seed: int = 0) -> tuple[Outputs, Outputs]:
    source, target, lengths = *map(torch.from_numpy, ids(seed)), torch.from_numpy(SOURCE)
    maps = attention_maps(model, source, lengths, target, torch.from_numpy(TARGET))
    memory = model.encode(source, lengths) * (torch.arange(7)[None] < lengths[:, None])[..., None]
    decoder = {
        "log_probabilities": maps.log_probabilities,
        "cross_attention": maps.cross,
        "self_attention": maps.decoder,
    }
    encoder = {"memory": memory, "self_attention": maps.encoder}
    return {k: v.numpy() for k, v in decoder.items()}, {k: v.numpy() for k, v in encoder.items()}


def test_graphs_equal_pytorch(model: Transformer) -> None:
    """Ragged on both sides; attention within 1e-5, and exactly 0 for padding and the future."""
    found = run(graphs_of(model, "scatter")[0], attention_graphs_of(model))
    for ours, theirs in zip(found, expected(model), strict=True):
        assert list(ours) == list(theirs)
        for name, values in ours.items():
            assert values.dtype == np.float32
            np.testing.assert_allclose(values, theirs[name], atol=1e-5, rtol=1e-5)
            assert not values[theirs[name] == 0].any()
    for row, length in enumerate(TARGET):
        for name in ("cross_attention", "self_attention"):
            np.testing.assert_allclose(found[0][name][:, row, :, :length].sum(-1), 1, atol=1e-6)
        assert not np.triu(found[0]["self_attention"], 1).any()
        assert not found[0]["cross_attention"][:, row, :, :, SOURCE[row] :].any()


def test_the_first_layer_is_a_softmax_written_in_numpy() -> None:
    """With nothing of PyTorch but its weights: embedding, keys, queries, and their softmax."""
    model = random_model()
    config, layer = model.config, model.encoder[0].attention
    source, _ = ids(0)
    _, found = run(graphs_of(model, "scatter")[0], attention_graphs_of(model))

    def linear(part: torch.nn.Linear, x: np.ndarray) -> np.ndarray:
        y = x @ part.weight.detach().double().numpy().T + part.bias.detach().double().numpy()
        return y.reshape(len(x), config.encoder.heads, config.encoder.head_dim).transpose(1, 0, 2)

    for row, length in enumerate(SOURCE):
        table = model.source_embedding.tokens.weight.detach().double().numpy()
        x = table[source[row, :length]] * np.sqrt(config.d_model)
        x = x + model.source_embedding.positions[:length].double().numpy()
        scores = linear(layer.query, x) @ linear(layer.key, x).transpose(0, 2, 1) / np.sqrt(config.encoder.head_dim)
        weights = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
        np.testing.assert_allclose(found["self_attention"][0, row, :, :length, :length], weights, atol=1e-5)


def test_scores_are_those_of_the_steps(model: Transformer) -> None:
    """The logits of each step, with their logarithm of a sum in NumPy."""
    encoder, step = graphs_of(model, "scatter")
    runner, (source, target) = NumpyRunner(model, encoder, step), ids(0)
    (found, _), cross = run(encoder, attention_graphs_of(model)), runner.encode(source, SOURCE)
    caches = runner.empty_caches(3, 9)
    for position in range(9):
        tokens = target[:, position - 1] if position else np.full(3, model.config.bos_id)
        logits = runner.step(cross, caches, token_ids=tokens, positions=np.full(3, position))["logits"].astype(float)
        chosen = logits[np.arange(3), target[:, position]] - np.log(np.exp(logits).sum(-1))
        there = position < TARGET
        np.testing.assert_allclose(found["log_probabilities"][there, position], chosen[there], atol=1e-4)


def test_interface(model: Transformer) -> None:
    sizes = model.config.sizes
    for name, graph in attention_graphs_of(model).items():
        wanted = interface.interface(name, sizes, "float32")
        assert wanted is not None
        record = graph_record(name, graph, sizes)
        assert (record.inputs, record.outputs, record.aliases) == (wanted.inputs, wanted.outputs, ())
        assert record.optional and record.role == name and record.lowering == "standard"
        onnx.checker.check_model(ir.to_proto(graph), full_check=True)


@pytest.mark.parametrize("option", ["post", "marian", "odd_heads"])
def test_float16_keeps_scores_and_softmax_in_float32(option: str) -> None:
    """With every other value rounded as float16 hardware does; inputs are float16, outputs are not."""
    model = random_model(**OPTIONS[option])
    encoder, graphs = (
        graphs_of(model, "scatter")[0],
        attention_graphs_of(model),
    )
    to_float16(encoder, ())
    round_results(encoder)
    for name, graph in graphs.items():
        kinds = {node.op_type for node in graph.graph if node.name in final_nodes(graph)}
        assert "Softmax" in kinds and not kinds & {"Gemm", "MatMul", "LayerNormalization"}
        to_float16(graph, final_nodes(graph))
        wanted = interface.interface(name, model.config.sizes, "float16")
        assert wanted is not None
        assert graph_record(name, graph, model.config.sizes).outputs == wanted.outputs
        round_results(graph)
        onnx.checker.check_model(ir.to_proto(graph), full_check=True)
    for ours, theirs in zip(run(encoder, graphs), expected(model), strict=True):
        for name, values in ours.items():
            assert values.dtype == np.float32 and np.abs(values - theirs[name]).mean() < 0.02
            assert not values[theirs[name] == 0].any()
    np.testing.assert_allclose(run(encoder, graphs)[0]["cross_attention"][:, 1].sum(-1), 1, atol=1e-6)


@pytest.mark.parametrize("option", ["post", "odd_heads", "pre", "copies"])
def test_int8_scores_as_the_int8_step_does(option: str) -> None:
    """The same integers, scales and constants: only the order of float32 sums differs."""
    model = random_model(**OPTIONS[option])
    encoder, step = graphs_of(model, "ort")
    graphs = attention_graphs_of(model)
    assert len(norm_outputs(step)) == len(norm_outputs(graphs["decoder"]))
    assert len(norm_outputs(encoder)) == len(norm_outputs(graphs["encoder_attention"]))
    for main, other in ((encoder, "encoder_attention"), (step, "decoder")):
        for graph in (main, graphs[other]):
            to_int8(graph, dict.fromkeys(norm_outputs(graph), 6.0))
    for graph in graphs.values():
        assert "DynamicQuantizeLinear" not in {node.op_type for node in graph.graph}
        assert {node.op_type for node in graph.graph} >= {"MatMulIntegerToFloat"}
    runner, (source, target) = NumpyRunner(model, encoder, step), ids(0)
    (found, _), cross, caches = run(encoder, graphs), runner.encode(source, SOURCE), runner.empty_caches(3, 9)
    errors = []
    for position in range(9):
        tokens = target[:, position - 1] if position else np.full(3, model.config.bos_id)
        logits = runner.step(cross, caches, token_ids=tokens, positions=np.full(3, position))["logits"].astype(float)
        chosen = logits[np.arange(3), target[:, position]] - np.log(np.exp(logits).sum(-1))
        errors += np.abs(found["log_probabilities"][:, position] - chosen)[position < TARGET].tolist()
    plain = expected(model)[0]["log_probabilities"]
    assert np.mean(errors) < 0.2 * np.abs(found["log_probabilities"] - plain).mean()


@pytest.mark.parametrize("option", ["post", "odd_heads", "copies"])
@pytest.mark.parametrize("precision", ["float32", "float16", "int8"])
def test_they_share_every_weight(option: str, precision: str, tmp_path: Path) -> None:
    """The weights file, and the other graphs' files, do not change by a byte."""
    model = random_model(**OPTIONS[option])
    encoder, step = graphs_of(model, "ort" if precision == "int8" else "scatter")
    for name, more in (("without", {}), ("with", attention_graphs_of(model))):
        graphs = {n: copied(g) for n, g in {"encoder": encoder, "decoder_step": step, **more}.items()}
        for graph in graphs.values():
            if precision == "float16":
                to_float16(graph, final_nodes(graph))
            if precision == "int8":
                to_int8(graph, dict.fromkeys(norm_outputs(graph), 6.0))
        write_graphs(tmp_path / name, graphs, "0")
    for file in (tmp_path / "without").iterdir():
        assert file.read_bytes() == (tmp_path / "with" / file.name).read_bytes(), file.name
