"""Bundles of models with other norms than LayerNorm: what is left of the norms, and that each bundle is verified."""

import os
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from bundles import recorded_checkpoint
from numpy_runner import NumpyRunner, attention_graphs_of, graphs_of, random_model
from parity import by_cpp, by_python
from txport.exporter.export import ExportOptions, export_bundle
from txport.exporter.graphs.float16 import final_nodes, round_results, to_float16
from txport.exporter.graphs.lowerings import LOWERINGS
from txport.exporter.graphs.tensors import folded_into
from txport.models.norms import BatchNorm, PowerNorm, SharedNorm
from txport.models.transformer import Transformer
from txport.runtime.bundle.manifest import Manifest
from txport.runtime.engines.choice import choose
from txport.runtime.errors import BundleError
from txport.runtime.translator import Translator

KINDS = ("rms", "power", "batch")
LIMITS: dict[str, Any] = {"max_source": 48, "max_target": 48}


@pytest.fixture(scope="module", params=KINDS)
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pre-norm models of each kind."""
    directory = tmp_path_factory.mktemp("norms") / str(request.param)
    recorded_checkpoint(request.param, directory)
    return directory


@pytest.fixture(scope="module")
def bundle(checkpoint: Path) -> Path:
    """Verified in float32, with every lowering and the optional graphs."""
    output = checkpoint.with_name("bundle")
    report = export_bundle(checkpoint, output, ExportOptions(attention=True, sentences=24, singles=2, **LIMITS))
    assert report is not None and report.passed
    return output


@pytest.fixture(scope="module")
def int8_bundle(checkpoint: Path) -> Path:
    output = checkpoint.with_name("int8")
    options = ExportOptions(int8=True, lowerings=("ort",), sentences=64, singles=2, **LIMITS)
    report = export_bundle(checkpoint, output, options)
    assert report is not None and report.passed
    return output


def operators(bundle: Path, graph: str) -> Counter[str]:
    model = onnx.load(bundle / "onnx" / f"{graph}.onnx", load_external_data=False)
    return Counter(node.op_type for node in model.graph.node)


def test_pre_norm_models_lose_the_norms_that_are_affine(bundle: Path, checkpoint: Path) -> None:
    """Of the norms only the last may be left, as Mul and Add, where the projection is tied."""
    kind, norms = checkpoint.name, {}
    for graph in ("encoder", *(f"decoder_step.{lowering}" for lowering in LOWERINGS)):
        found = operators(bundle, graph)
        norms[graph.rpartition(".")[2]] = sum(found[name] for name in found if "Normalization" in name)
        assert kind == "rms" or found["ReduceMean"] == 0
    # Three of each of two layers; in the other graphs of RMSNorm they are in parts.
    of_rms = {"encoder": 0, "scatter": 0, "ort": 6, "tensorscatter": 7}
    assert norms == (of_rms if kind == "rms" else dict.fromkeys(norms, 0))
    # The others: of the embedding's scale, and of the search for the best token.
    assert operators(bundle, "decoder_step.ort")["Mul"] - 2 == {"rms": 1, "power": 1, "batch": 0}[kind]


def test_on_a_cpu_onnx_runtime_runs_them_and_says_why_once(bundle: Path) -> None:
    """But for RMSNorm, which the fused engine has."""
    manifest = Manifest.load(bundle)
    assert (manifest.parameters is not None) == (bundle.with_name("rms").exists())
    if manifest.parameters is not None:
        return
    choice = choose(manifest, "cpu")
    assert choice.engine == "ort" and choice.fallback is None
    assert choice.reason.count("the bundle has no parameters for the fused engine") == 1
    with pytest.raises(
        BundleError, match="no parameters for the fused engine: .* LayerNorm or RMSNorm and without Shaw"
    ):
        choose(manifest, "cpu", "fused")
    translators = [Translator(bundle, "cpu", lowering=each, workers=0) for each in (None, *LOWERINGS)]
    found = [translator.translate(["a cat sees it"]) for translator in translators]
    assert all(other == found[0] for other in found)


def test_int8_is_verified(int8_bundle: Path) -> None:
    step = operators(int8_bundle, "decoder_step.ort")
    assert step["MatMulIntegerToFloat"] + step["QGemm"] > 12 and step["MatMul"] + step["Gemm"] < 6


@pytest.mark.skipif("TXPORT_CPP_BUILD" not in os.environ, reason="needs the C++ build: make cpp")
def test_cpp_gives_the_same_bytes(bundle: Path, int8_bundle: Path) -> None:
    tool = Path(os.environ["TXPORT_CPP_BUILD"]) / "txport-translate"
    lines = ["the cat sees a bird", "twenty-one", "", "it is ten past nine", "page 17"]
    for directory in (bundle, int8_bundle):
        for lowering in Manifest.load(directory).lowerings:
            where = {"lowering": lowering}
            assert by_cpp(tool, directory, lines, where, 2) == by_python(directory, lines, where, 2)


@pytest.mark.parametrize("kind", ["power", "batch"])
@pytest.mark.parametrize("biased", [True, False])
def test_folding_is_exact(kind: str, biased: bool) -> None:
    """Also where the linear layer had no bias, and where a channel has hardly varied."""
    torch.manual_seed(0)
    norm: SharedNorm = PowerNorm(64, 1e-5) if kind == "power" else BatchNorm(64, 1e-5)
    with torch.no_grad():
        for value in [*norm.parameters(), *norm.buffers()]:
            value.copy_(torch.rand_like(value) + 0.1)
        list(norm.buffers())[kind == "batch"][3] = 1e-6
    linear, x = torch.nn.Linear(64, 48, bias=biased), torch.randn(200, 64)
    expected = linear(norm.eval()(x))
    found = torch.nn.functional.linear(x, *folded_into(linear, norm))
    assert float((found - expected).abs().max()) < 1e-5 * float(expected.abs().max())


def logits(model: Transformer, graphs: tuple[object, object]) -> np.ndarray:
    runner = NumpyRunner(model, *graphs)  # type: ignore[arg-type]
    cross = runner.encode(np.array([[5, 9, 12, 3], [7, 3, 0, 0]]), np.array([4, 2]))
    caches = runner.empty_caches(2, 6)
    steps = [[2, 2], [8, 11], [30, 20], [5, 6]]
    return np.stack([
        runner.step(cross, caches, token_ids=np.array(ids), positions=np.full(2, position))["logits"]
        for position, ids in enumerate(steps)
    ])  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("lowering", LOWERINGS)
def test_float16_is_near_pytorch(kind: str, lowering: str) -> None:
    """With every value rounded, and no node in float32."""
    model = random_model(norm_kind=kind, norm="pre")
    source, target = torch.tensor([[5, 9, 12, 3], [7, 3, 0, 0]]), torch.tensor([[2, 8, 30, 5], [2, 11, 20, 6]])
    with torch.inference_mode():
        expected = model(source, torch.tensor([4, 2]), target).transpose(0, 1).numpy()
    graphs = list(graphs_of(model, lowering))
    for graph in graphs:
        to_float16(graph, ())
        round_results(graph)
    found = logits(model, (graphs[0], graphs[1])).astype(np.float32)
    assert 0 < float(np.abs(found - expected).max()) < 0.02 * float(np.abs(expected).max())


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_user_reads_in_float32_begins_after_the_last_norm(kind: str) -> None:
    """A norm in parts, or folded away, would else draw the residual stream, and tables with it, into float32."""
    graph = attention_graphs_of(random_model(norm_kind=kind, norm="pre"))["encoder_attention"]
    kept = final_nodes(graph)
    assert kept and not any(name.startswith(("embedding/", "norm/")) or "norm/" in name for name in kept)
    adds = {node.name for node in graph.graph if node.op_type == "Add" and (node.name or "").startswith("layers.")}
    assert adds and not adds & kept
