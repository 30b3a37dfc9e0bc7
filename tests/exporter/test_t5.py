"""Bundles of T5's family, and of rotary positions: gates and sides of their own, in every lowering and precision."""

import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
from bundles import recorded_checkpoint
from parity import by_cpp, by_python
from txport.exporter.export import ExportOptions, export_bundle
from txport.exporter.graphs.lowerings import LOWERINGS
from txport.models.checkpoint import load_checkpoint, save_checkpoint
from txport.models.config import preset
from txport.models.description import write_description
from txport.models.transformer import Transformer
from txport.runtime.bundle.manifest import Manifest
from txport.runtime.bundle.tokenizer_schema import TokenizerDescription
from txport.runtime.translator import Translator

MODELS = ("t5", "umt5", "sides")
# Beyond the longest distance between relative positions, which is 40.
LIMITS: dict[str, Any] = {"max_source": 48, "max_target": 48}


@pytest.fixture(scope="module", params=[*MODELS, "rotary"])
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("t5") / str(request.param)
    recorded_checkpoint(request.param, directory)
    return directory


@pytest.fixture(scope="module")
def bundle(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Verified in float32, with every lowering and the optional graphs."""
    output = tmp_path_factory.mktemp("t5") / "bundle"
    sentences = 8 if checkpoint.name == "rotary" else 24
    report = export_bundle(checkpoint, output, ExportOptions(attention=True, sentences=sentences, singles=2, **LIMITS))
    assert report is not None and report.passed
    return output


def operators(bundle: Path, graph: str) -> Counter[str]:
    model = onnx.load(bundle / "onnx" / f"{graph}.onnx", load_external_data=False)
    return Counter(node.op_type for node in model.graph.node)


def test_every_lowering_says_the_same(bundle: Path) -> None:
    translators = [Translator(bundle, "cpu", lowering=each, workers=0) for each in (None, *LOWERINGS)]
    lines = ["a cat sees it", "", "page 17 of twenty", "it is ten past nine, and the train is late again"]
    found = [translator.translate(lines) for translator in translators]
    assert all(other == found[0] for other in found)


def test_no_graph_has_a_logarithm_for_positions(checkpoint: Path, bundle: Path) -> None:
    """A step looks the biases of all layers up once, or cosines and sines; there is a lookup of the token besides.

    Rotary positions exchange the two of each pair by one more in each layer. A range of positions looks up its length.
    """
    config = Manifest.load(bundle).model
    layers = {"encoder": config.encoder_layers, "decoder": config.decoder_layers}
    for graph in ("encoder", "encoder_attention", *(f"decoder_step.{lowering}" for lowering in LOWERINGS)):
        found = operators(bundle, graph)
        lookups = 3 + layers[graph[:7]] if checkpoint.name == "rotary" else 2
        assert found["Log"] == 0 and found["Gather"] - found["Range"] == lookups


@pytest.mark.skipif("TXPORT_CPP_BUILD" not in os.environ, reason="needs the C++ build: make cpp")
def test_cpp_gives_the_same_bytes(bundle: Path) -> None:
    tool = Path(os.environ["TXPORT_CPP_BUILD"]) / "txport-translate"
    lines = ["the cat sees a bird", "twenty-one", "", "it is ten past nine", "page 17"]
    for lowering in Manifest.load(bundle).lowerings:
        where = {"lowering": lowering}
        assert by_cpp(tool, bundle, lines, where, 2) == by_python(bundle, lines, where, 2)


SCRIPTS = ["a cat", "naïve", "Ελληνικά", "русский текст", "עברית", "العربية", "हिन्दी", "ไทย", "한국어", "漢字 🙂"]


@pytest.mark.skipif("TXPORT_CPP_BUILD" not in os.environ, reason="needs the C++ build: make cpp")
def test_cpp_reads_and_writes_bytes_as_python_does(tmp_path: Path) -> None:
    """A model that says any bytes, most of them of no character."""
    torch.manual_seed(0)
    sizes = {"source_vocabulary": 384, "target_vocabulary": 384, "max_positions": 64}
    special = {"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": 0}
    small = {"d_model": 32, "heads": 2, "head_dim": 12, "ffn": 40, "encoder_layers": 1, "decoder_layers": 1}
    model = Transformer(preset("t5_small", **sizes, **special, **small, tie_projection=False)).eval()
    (tmp_path / "tokenizer").mkdir()
    write_description(tmp_path / "tokenizer", TokenizerDescription("bytes", None, None, (), (1,), (), None))
    save_checkpoint(tmp_path / "byt5", model, tmp_path / "tokenizer", SCRIPTS, {})
    export_bundle(tmp_path / "byt5", tmp_path / "bundle", ExportOptions(verify=False, lowerings=("ort",)))
    tool = Path(os.environ["TXPORT_CPP_BUILD"]) / "txport-translate"
    where = {"lowering": "ort"}
    expected = by_python(tmp_path / "bundle", SCRIPTS, where, 4)
    assert by_cpp(tool, tmp_path / "bundle", SCRIPTS, where, 4) == expected
    assert len({token for line in expected for token in json.loads(line)["ids"]}) > 10


@pytest.mark.parametrize("checkpoint", MODELS, indirect=True)
def test_int8_is_verified(checkpoint: Path, tmp_path: Path) -> None:
    options = ExportOptions(int8=True, lowerings=("ort",), sentences=64, singles=2, **LIMITS)
    report = export_bundle(checkpoint, tmp_path / "int8", options)
    assert report is not None and report.passed


@pytest.mark.parametrize("checkpoint", MODELS, indirect=True)
def test_float16_is_verified(checkpoint: Path, tmp_path: Path) -> None:
    report = export_bundle(
        checkpoint, tmp_path / "half", ExportOptions(float16=True, sentences=24, singles=2, **LIMITS)
    )
    assert report is not None and report.passed


@pytest.mark.parametrize("checkpoint", ["t5", "umt5"], indirect=True)
def test_float16_of_activations_beyond_its_range(checkpoint: Path, tmp_path: Path) -> None:
    """What the feed-forward layers add is far beyond 65,504, as in large T5s: those layers and sums become islands."""
    loaded, huge = load_checkpoint(checkpoint), 2.0**17
    with torch.no_grad():
        for name, parameter in loaded.model.named_parameters():
            if name.endswith(("outer.weight", "output.weight")):
                parameter *= huge
    save_checkpoint(tmp_path / "huge", loaded.model, checkpoint / "tokenizer", loaded.sentences[:60], {})
    report = export_bundle(
        tmp_path / "huge", tmp_path / "half", ExportOptions(float16=True, sentences=24, singles=2, **LIMITS)
    )
    assert report is not None and report.passed
    islands = [island for island in Manifest.load(tmp_path / "half").precision.islands if island.reason == "overflow"]
    assert {island.graph for island in islands} >= {"encoder", *(f"decoder_step.{each}" for each in LOWERINGS)}
    assert any("feed_forward.outer" in node for island in islands for node in island.nodes)
