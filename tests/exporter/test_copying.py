"""Bundles of models that copy: verified in each precision, with rows that move, and scores of the mixture."""

import dataclasses
import os
from collections import Counter
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from bundles import recorded_checkpoint
from hypothesis import given, settings
from hypothesis import strategies as st
from memory_device import MemoryDevice
from moved_rows import Turn, check_moves, turns
from numpy_runner import NumpyRunner, graphs_of, random_model
from parity import by_cpp, by_python
from txport.exporter.export import ExportOptions, export_bundle
from txport.exporter.graphs.float16 import round_results, to_float16
from txport.exporter.graphs.lowerings import LOWERINGS
from txport.exporter.precision.islands import mixture_nodes
from txport.exporter.reference import answers
from txport.models.checkpoint import load_checkpoint, save_checkpoint
from txport.runtime.bundle.manifest import Manifest
from txport.runtime.device.engine import DeviceEngine
from txport.runtime.engine import Engine
from txport.runtime.engines.choice import choose
from txport.runtime.engines.ort import OrtEngine
from txport.runtime.engines.ort_cuda import OrtProgram
from txport.runtime.engines.teacher_forcing import TeacherForcing
from txport.runtime.errors import BundleError
from txport.runtime.search.decoding import decode_all
from txport.runtime.search.requests import Request

HEADS = ((1, 0), (1, 2))
LIMITS: dict[str, Any] = {"max_source": 48, "max_target": 48}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("copying") / "checkpoint"
    recorded_checkpoint("copying", directory)
    return directory


@pytest.fixture(scope="module")
def bundle(checkpoint: Path) -> Path:
    """Verified in float32, with every lowering and the optional graphs."""
    output = checkpoint.with_name("bundle")
    report = export_bundle(checkpoint, output, ExportOptions(attention=True, sentences=24, singles=2, **LIMITS))
    assert report is not None and report.passed and report.attention is not None
    return output


@pytest.fixture(scope="module")
def int8_bundle(checkpoint: Path) -> Path:
    output = checkpoint.with_name("int8")
    options = ExportOptions(int8=True, lowerings=("ort",), attention=True, sentences=64, singles=2, **LIMITS)
    report = export_bundle(checkpoint, output, options)
    assert report is not None and report.passed and report.attention is not None
    return output


def test_the_manifest_says_that_steps_read_the_source(bundle: Path) -> None:
    manifest = Manifest.load(bundle)
    assert manifest.model.copies and manifest.parameters is None
    for graph in manifest.graphs:
        names = [tensor.name for tensor in (graph.outputs if graph.role == "encoder" else graph.inputs)]
        assert ("cross_ids" in names) == (graph.role != "encoder_attention")


def test_the_fused_engine_gives_its_reason(bundle: Path) -> None:
    manifest = Manifest.load(bundle)
    choice = choose(manifest, "cpu")
    assert choice.engine == "ort"
    assert choice.reason.count("the fused engine has no copy mechanism") == 1
    with pytest.raises(BundleError, match="the fused engine has no copy mechanism, which this model needs: leave out"):
        choose(manifest, "cpu", "fused")


def test_float16_has_the_mixture_in_float32(checkpoint: Path) -> None:
    output = checkpoint.with_name("float16")
    options = ExportOptions(float16=True, attention=True, sentences=24, singles=2, **LIMITS)
    report = export_bundle(checkpoint, output, options)
    assert report is not None and report.passed and report.attention is not None
    islands = Manifest.load(output).precision.islands
    for graph in (*(f"decoder_step.{name}" for name in LOWERINGS), "decoder"):
        (island,) = [each for each in islands if each.graph == graph and each.reason == "mixture"]
        model = onnx.load(output / "onnx" / f"{graph}.onnx", load_external_data=False)
        kinds = Counter(node.op_type for node in model.graph.node if node.name in island.nodes)
        assert kinds["Softmax"] == len(HEADS) and kinds["Exp"] == 3 and kinds["ScatterElements"] == 1
        # Keys and bias are read as they are, and what is chosen of them is converted.
        read = {name for node in model.graph.node if node.name.startswith("copying") for name in node.input}
        assert {"cross_key_1", "cross_bias", "cross_ids"} <= read and not {"cross_key_1.float32"} & read


@pytest.mark.parametrize("lowering", LOWERINGS)
def test_float16_is_near_pytorch(lowering: str) -> None:
    """With every value rounded that is not in the mixture."""
    model = random_model(copy_heads=HEADS, norm="pre")
    source, target = torch.tensor([[5, 9, 5, 3], [7, 3, 0, 0]]), torch.tensor([[2, 8, 30, 5], [2, 11, 20, 6]])
    with torch.inference_mode():
        expected = model(source, torch.tensor([4, 2]), target).numpy()
    graphs = list(graphs_of(model, lowering))
    for graph in graphs:
        to_float16(graph, mixture_nodes(graph))
        round_results(graph)
    runner = NumpyRunner(model, graphs[0], graphs[1])
    cross, caches = runner.encode(source.numpy(), np.array([4, 2])), runner.empty_caches(2, 6)
    for position in range(4):
        found = runner.step(cross, caches, token_ids=target[:, position].numpy(), positions=np.full(2, position))
        error = np.abs(found["logits"].astype(np.float32) - expected[:, position]).max()
        assert 0 < error < 0.02 * np.abs(expected).max()


def test_gates_stay_in_float32_in_int8(int8_bundle: Path) -> None:
    model = onnx.load(int8_bundle / "onnx" / "decoder_step.ort.onnx", load_external_data=False)
    kinds = Counter(node.op_type for node in model.graph.node if node.name.startswith("copying."))
    assert kinds == {"Gemm": 3} or kinds == {"MatMul": 2, "Gemm": 1}


@pytest.mark.skipif("TXPORT_CPP_BUILD" not in os.environ, reason="needs the C++ build: make cpp")
def test_cpp_gives_the_same_bytes(bundle: Path, int8_bundle: Path) -> None:
    tool = Path(os.environ["TXPORT_CPP_BUILD"]) / "txport-translate"
    lines = ["the cat sees a bird", "twenty-one", "", "it is ten past nine", "page 17", "a a a a b"]
    for directory in (bundle, int8_bundle):
        for lowering in Manifest.load(directory).lowerings:
            where = {"lowering": lowering}
            assert by_cpp(tool, directory, lines, where, 2) == by_python(directory, lines, where, 2)


def test_scores_are_of_the_mixture(bundle: Path, checkpoint: Path) -> None:
    """The steps' and the decoder graph's: the logarithm of what PyTorch gives to each id, not its softmax again."""
    manifest, model = Manifest.load(bundle), load_checkpoint(checkpoint).model
    engine = OrtEngine(bundle, manifest, ["scatter"])
    sources = [[9, 9, 40, 3], [100, 30, 3], [7, 8, 9, 10, 11, 12, 3]]
    made = decode_all(engine, [Request(source, 20, scores=True) for source in sources], rows=2)
    readings = dict(TeacherForcing(bundle, manifest, engine, "cpu", 0).read(sources, [each.ids for each in made]))
    for answer in answers(model, sources, 20):
        for row, index in enumerate(answer.batch.indices):
            ids = answer.batch.targets[row]
            expected = answer.logits[row][np.arange(len(ids)), ids]
            assert made[index].ids == ids
            np.testing.assert_allclose(made[index].scores, expected, atol=1e-4)
            np.testing.assert_allclose(readings[index].log_probabilities, expected, atol=1e-4)


@pytest.fixture(scope="module")
def random_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of random weights, whose answers follow their sources closely; two lowerings."""
    directory = tmp_path_factory.mktemp("random")
    model = random_model(copy_heads=((1, 0),), source_vocabulary=16, target_vocabulary=16, max_positions=64)
    with torch.no_grad():
        assert model.copying is not None
        model.copying.state.bias -= 3  # it copies more than it says
    save_checkpoint(directory / "checkpoint", model, None, ["4 5 6"], {})
    options = ExportOptions(lowerings=("ort", "scatter"), verify=False)
    export_bundle(directory / "checkpoint", directory / "bundle", options)
    return directory / "bundle"


WORDS = st.integers(4, 11)
SOURCES = st.lists(st.lists(WORDS, min_size=1, max_size=10).map(lambda ids: [*ids, 3]), min_size=1, max_size=4)
KINDS = ("ort", "scatter", "device")


@pytest.fixture(scope="module")
def engines(random_bundle: Path) -> dict[str, Engine]:
    """On ONNX Runtime in two lowerings, and over a device in host memory."""
    manifest, device = Manifest.load(random_bundle), MemoryDevice(lazy=False)
    program = OrtProgram(random_bundle, manifest, manifest.lowerings, device, provider="cpu")
    on_host = {name: OrtEngine(random_bundle, manifest, [name], threads=1) for name in manifest.lowerings}
    return {**on_host, "device": DeviceEngine(device, manifest, program)}


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=25, deadline=None)
@given(sources=SOURCES, limits=st.lists(st.integers(1, 30), min_size=4, max_size=4), walk=turns(WORDS, 4))
def test_rows_keep_their_source(
    random_bundle: Path,
    engines: dict[str, Engine],
    kind: str,
    sources: list[list[int]],
    limits: list[int],
    walk: list[Turn],
) -> None:
    """Rows that are refilled, moved and repeated go on as PyTorch does with each sentence alone."""
    model = load_checkpoint(random_bundle.with_name("checkpoint")).model

    @cache
    def likely(source: tuple[int, ...], made: tuple[int, ...]) -> int:
        with torch.inference_mode():
            ids = torch.tensor([source]), torch.tensor([len(source)]), torch.tensor([[2, *made]])
            return int(model(*ids)[0, -1].argmax())

    def next_token(source: Sequence[int], made: Sequence[int]) -> int:
        return likely(tuple(source), tuple(made))

    check_moves(engines[kind], sources, limits[: len(sources)], walk, next_token)


def test_answers_do_not_depend_on_their_batch(engines: dict[str, Engine]) -> None:
    """Refilled rows of sources of other lengths, with padding of other widths, as each alone."""
    random = np.random.default_rng(0)
    requests = [Request([*random.integers(4, 12, random.integers(1, 20)).tolist(), 3], 25) for _ in range(40)]
    for engine in engines.values():
        together = [result.ids for result in decode_all(engine, requests, rows=4)]
        alone = [decode_all(engine, [request])[0].ids for request in requests]
        assert together == alone and len({*map(tuple, together)}) > 20
        copied = [
            len({*ids} & {*request.source_ids}) / len({*ids}) for ids, request in zip(together, requests, strict=True)
        ]
        assert np.mean(copied) > 0.5


def test_beginnings_and_least_lengths_are_kept(engines: dict[str, Engine]) -> None:
    """They replace tokens by the logits that the mixture has."""
    engine = engines["ort"]
    request = Request([5, 6, 7, 3], 12, min_length=6, prefix=[9, 9], scores=True)
    (result,) = decode_all(engine, [request])
    assert result.ids[:2] == [9, 9] and 3 not in result.ids[:6]
    (again,) = decode_all(engine, [dataclasses.replace(request, prefix=result.ids[:-1])])
    assert again.ids == result.ids
    np.testing.assert_allclose(again.scores, result.scores, atol=1e-4)
