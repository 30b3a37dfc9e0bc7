"""The shared weights file: each tensor once, aligned, and whole."""

import hashlib
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
from numpy_runner import copied, graphs_of, random_model
from txport.exporter.bundle import write_graphs
from txport.exporter.export import ExportOptions, export_bundle
from txport.exporter.graphs.lowerings import LOWERINGS
from txport.exporter.graphs.weights import ALIGNMENT, INLINE, LARGE, PAGE
from txport.exporter.precision.sessions import session
from txport.models.checkpoint import save_checkpoint
from txport.models.config import preset
from txport.models.transformer import Transformer


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, ir.Model]]:
    """All graphs of a tied model, and what they were before they were written."""
    model = random_model()
    before = {"encoder": graphs_of(model, "ort")[0]}
    before |= {f"decoder_step.{name}": graphs_of(model, name)[1] for name in LOWERINGS}
    directory = tmp_path_factory.mktemp("weights")
    write_graphs(directory, {name: copied(graph) for name, graph in before.items()}, "0")
    return directory, before


def external(directory: Path) -> dict[tuple[str, str], ir.ExternalTensor]:
    found = {}
    for file in sorted(directory.glob("*.onnx")):
        for name, value in ir.load(file).graph.initializers.items():
            if isinstance(value.const_value, ir.ExternalTensor):
                found[file.stem, name] = value.const_value
    return found


def test_nothing_is_lost(written: tuple[Path, dict[str, ir.Model]]) -> None:
    directory, before = written
    for name, model in before.items():
        after = ir.load(directory / f"{name}.onnx").graph.initializers
        assert set(after) == set(model.graph.initializers)
        for key, value in model.graph.initializers.items():
            np.testing.assert_array_equal(after[key].const_value.numpy(), value.const_value.numpy())
        session(directory / f"{name}.onnx")


def test_each_tensor_stands_once(written: tuple[Path, dict[str, ir.Model]]) -> None:
    directory, _ = written
    tensors = external(directory)
    data = (directory / "weights.bin").read_bytes()
    regions = {(tensor.offset, tensor.length) for tensor in tensors.values()}
    contents = [hashlib.sha256(data[offset : offset + length]).digest() for offset, length in regions]
    assert len(set(contents)) == len(contents)
    ends = 0
    for offset, length in sorted(regions):
        assert offset >= ends and offset - ends < PAGE
        assert offset % (PAGE if length >= LARGE else ALIGNMENT) == 0
        ends = offset + length
    assert ends == len(data)
    assert all(tensor.length >= INLINE for tensor in tensors.values())


def test_tied_tensors_and_lowerings_share(written: tuple[Path, dict[str, ir.Model]]) -> None:
    """The embedding serves the encoder, every step's Gather and every step's projection."""
    directory, _ = written
    tensors = external(directory)
    shape = (64, 64)
    tables = {(t.offset, t.length) for (_, name), t in tensors.items() if "embedding" in name or "projection" in name
              if tuple(t.shape) == shape}  # fmt: skip
    assert len(tables) == 1
    packed = {
        t.offset for (graph, name), t in tensors.items() if graph != "encoder" and name == "layers.0.self_qkv.weight"
    }
    assert len(packed) == 1


def test_three_lowerings_cost_kilobytes(tmp_path: Path) -> None:
    """A whole bundle of a real size is at most 1.02 times its weights."""
    sizes = {"source_vocabulary": 16000, "target_vocabulary": 16000, "max_positions": 64}
    model = Transformer(preset("small", **sizes)).eval()
    save_checkpoint(tmp_path / "checkpoint", model, None, [], {})
    options = ExportOptions(verify=False, sentences=8, max_target=16)
    export_bundle(tmp_path / "checkpoint", tmp_path / "bundle", options)
    parameters = 4 * sum(parameter.numel() for parameter in model.parameters())
    total = sum(file.stat().st_size for file in (tmp_path / "bundle").rglob("*") if file.is_file())
    assert total <= 1.02 * parameters
