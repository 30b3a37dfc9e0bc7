"""The table of parameters: NumPy rebuilds every tensor of the model from the bytes that the table names."""

import dataclasses
import math
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
import torch
from numpy_runner import FUSED, graphs_of, random_model
from txport.exporter.bundle import write_graphs
from txport.exporter.graphs.float16 import to_float16
from txport.exporter.graphs.int8 import convertible, to_int8
from txport.exporter.graphs.parameters import parameter_table
from txport.exporter.graphs.weights import INLINE
from txport.exporter.graphs.write import write_all
from txport.exporter.verification.weights import compare_weights
from txport.models.config import preset
from txport.models.positions import rotations
from txport.models.transformer import Transformer
from txport.runtime.bundle.parameter_rules import parameter_faults
from txport.runtime.bundle.schema import WEIGHTS, Dimensions, FileEntry, Parameter, Parameters, Range

LENGTH = 32  # of positions; `test_export` has fewer than the model


def float32(graphs: dict[str, ir.Model]) -> None:
    pass


def float16(graphs: dict[str, ir.Model]) -> None:
    for graph in graphs.values():
        to_float16(graph, ())


def float16_with_islands(graphs: dict[str, ir.Model]) -> None:
    for graph in graphs.values():
        to_float16(
            graph, [node.name or "" for node in graph.graph if re.match("layers.0.(feed|self)", node.name or "")]
        )


def int8(graphs: dict[str, ir.Model]) -> None:
    for graph in graphs.values():
        largest = {str(output.name): 5.0 for node in graph.graph for output in node.outputs}
        to_int8(graph, largest)


def int8_with_kept_layers(graphs: dict[str, ir.Model]) -> None:
    for graph in graphs.values():
        largest = {str(output.name): 5.0 for node in graph.graph for output in node.outputs}
        kept = "layers.0.(feed_forward|qkv|cross_output)|projection|embedding"
        to_int8(graph, largest, [node.name or "" for node in convertible(graph) if re.match(kept, node.name or "")])


FORMS: list[Callable[[dict[str, ir.Model]], None]] = [
    float32, float16, float16_with_islands, int8, int8_with_kept_layers,
]  # fmt: skip


def table_of(model: Transformer, form: Callable[[dict[str, ir.Model]], None], directory: Path) -> Parameters:
    encoder, step = graphs_of(model, "ort")
    graphs = {"encoder": encoder, "decoder_step.ort": step}
    form(graphs)
    write_graphs(directory, graphs, "0")
    before = (directory / "weights.bin").stat().st_size
    table = parameter_table(model, graphs, directory / "weights.bin", LENGTH)
    added = (directory / "weights.bin").stat().st_size - before
    assert added <= 2 * INLINE * len(table.tensors), "small tensors and scales are added, and no others"
    return table


def rebuilt(tensor: Parameter, data: bytes) -> np.ndarray:
    """The tensor as float32, by nothing but the table's words."""
    dtype = np.dtype(tensor.dtype)
    strides = [stride * dtype.itemsize for stride in tensor.strides]
    values = np.ndarray(tensor.shape, dtype, data, tensor.offset, strides).astype(np.float32)
    if tensor.scales is None:
        return values
    return values * np.frombuffer(data, np.float32, tensor.shape[0], tensor.scales)[:, None]


def expected(model: Transformer) -> dict[str, np.ndarray]:
    """The state dict with what the format says of it: positions for all, and queries times head_dim^-0.5."""
    values = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
    for side, stack in (("source_embedding", "encoder"), ("target_embedding", "decoder")):
        if model.config.positions == "relative":
            values[f"{stack}_positions.weight"] = getattr(model, f"{stack}_positions").table(LENGTH).detach()
        elif model.config.positions == "rotary":
            tables = rotations(LENGTH, getattr(model.config, stack).head_dim)
            values |= {
                f"{stack}_rotations.{part}": table for part, table in zip(("cosines", "sines"), tables, strict=True)
            }
        else:
            values[f"{side}.positions"] = getattr(model, side).positions.detach()[:LENGTH]
    for name in values:
        if ".query." in name:
            values[name] = values[name] * getattr(model.config, name.split(".")[0]).head_dim ** -0.5
    return {name: value.numpy() for name, value in values.items()}


def assert_one_wrong_number_is_found(model: Transformer, table: Parameters, file: Path) -> None:
    """In each tensor, off by a hundredth of the largest one, or by one step of int8."""
    report = compare_weights(model, table, file, LENGTH)
    assert report.failures == []
    assert report.numbers == sum(math.prod(tensor.shape) for tensor in table.tensors)
    right = file.read_bytes()
    data = bytearray(right)
    places = {}
    for tensor in table.tensors:
        at = [int(index) for index in np.random.default_rng(tensor.offset).integers(tensor.shape)]
        offset = tensor.offset + int(np.dot(at, tensor.strides)) * np.dtype(tensor.dtype).itemsize
        number = np.frombuffer(data, tensor.dtype, 1, offset)
        if data[offset : offset + number.nbytes] != right[offset : offset + number.nbytes]:
            pass  # the positions of both sides are one table
        elif tensor.dtype == "int8":
            number ^= 1
        else:
            number += np.abs(rebuilt(tensor, right)).max() * 0.01
        places[tensor.name] = f"1 of {math.prod(tensor.shape):,} weights of {tensor.name} are not the checkpoint's", at
    file.write_bytes(data)
    failures = compare_weights(model, table, file, LENGTH).failures
    for failure, (begin, at) in zip(failures, places.values(), strict=True):
        assert failure.startswith(begin) and failure.endswith(f"at {at}")


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.__name__)
@pytest.mark.parametrize("options", FUSED)
def test_every_parameter_is_rebuilt(options: str, form: Callable[[dict[str, ir.Model]], None], tmp_path: Path) -> None:
    model = random_model(**{"ffn": 200, **FUSED[options]})
    config = model.config
    table = table_of(model, form, tmp_path)
    data = (tmp_path / "weights.bin").read_bytes()
    tensors = {tensor.name: tensor for tensor in table.tensors}
    wanted = expected(model)
    target = tensors["target_embedding.tokens.weight"]
    ties = {"source_embedding.tokens.weight": config.share_embeddings, "projection.weight": config.tie_projection}
    for name, values in wanted.items():
        assert (name in tensors) != ties.get(name, False)
        tensor = tensors.get(name, target)
        found = rebuilt(tensor, data)
        if tensor.dtype == "int8":
            assert tensor.scales is not None
            scales = np.frombuffer(data, np.float32, tensor.shape[0], tensor.scales)[:, None]
            assert (np.abs(found - values) <= scales * 0.501).all()
        else:
            np.testing.assert_array_equal(found, values.astype(tensor.dtype).astype(np.float32))
    assert set(tensors) <= set(wanted)
    faults = list(parameter_faults(table, config.sizes, dimensions(), {WEIGHTS: FileEntry(len(data), "")}))
    assert faults == []
    assert dataclasses.astuple(table.architecture) == (
        config.norm,
        config.activation,
        config.d_model**0.5 if config.scale_embedding else 1.0,
        config.layer_norm_epsilon,
        config.norm_kind,
    )
    assert_one_wrong_number_is_found(model, table, tmp_path / "weights.bin")


def dimensions() -> Dimensions:
    return Dimensions(Range(1, 8, 64), Range(1, 8, LENGTH), Range(1, 8, LENGTH))


def test_biases_of_zeros(tmp_path: Path) -> None:
    """As those of a model that was not trained yet."""
    model = Transformer(preset("tiny", source_vocabulary=64, target_vocabulary=64, max_positions=LENGTH)).eval()
    graphs = write_all(model, ("ort",), LENGTH, ())
    write_graphs(tmp_path, graphs, "0")
    tensors = {t.name: t for t in parameter_table(model, graphs, tmp_path / "weights.bin", LENGTH).tensors}
    data = (tmp_path / "weights.bin").read_bytes()
    for name, values in expected(model).items():
        if name in tensors:
            np.testing.assert_array_equal(rebuilt(tensors[name], data), values)
    zeros = [name for name in tensors if name.endswith("bias")]
    assert len(zeros) == 2 * (8 + 13) and not rebuilt(tensors[zeros[0]], data).any()


def test_types_are_those_of_the_graphs(tmp_path: Path) -> None:
    """Matrices of products in int8, but for layers that the graphs keep in float32."""
    tensors = {t.name: t.dtype for t in table_of(random_model(), int8_with_kept_layers, tmp_path).tensors}
    assert tensors["encoder.0.attention.query.weight"] == "float32", "its packed product was kept"
    assert tensors["encoder.1.attention.query.weight"] == "int8"
    assert tensors["decoder.0.cross_attention.output.weight"] == "float32"
    assert tensors["decoder.0.cross_attention.key.weight"] == "int8"
    assert tensors["target_embedding.tokens.weight"] == "float32"
    assert {dtype for name, dtype in tensors.items() if "norm" in name or "bias" in name} == {"float32"}


def test_a_tensor_that_no_graph_has_is_our_bug(tmp_path: Path) -> None:
    model = random_model()
    encoder, step = graphs_of(model, "ort")
    graphs = {"encoder": encoder, "decoder_step.ort": step}
    write_graphs(tmp_path, graphs, "0")
    with torch.no_grad():
        model.encoder[1].feed_forward.outer.weight[-1, -1] += 1e-3  # type: ignore[union-attr, operator]
    with pytest.raises(AssertionError, match=r"encoder\.1\.feed_forward\.outer\.weight"):
        parameter_table(model, graphs, tmp_path / "weights.bin", LENGTH)
