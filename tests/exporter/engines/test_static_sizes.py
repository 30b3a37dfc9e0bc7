"""Sizes of a graph that become fixed, compared with the protobuf library of onnx."""

from pathlib import Path

import onnx
import pytest
from numpy_runner import OPTIONS, graphs_of, random_model
from txport.exporter.bundle import write_graphs
from txport.exporter.engines.static_sizes import with_size


@pytest.mark.parametrize("lowering", ["scatter", "tensorscatter"])
@pytest.mark.parametrize("size", [1, 127, 128, 2**31 - 1])
def test_a_dimension_becomes_a_number_and_nothing_else_changes(lowering: str, size: int, tmp_path: Path) -> None:
    write_graphs(tmp_path, {"step": graphs_of(random_model(**OPTIONS["post"]), lowering)[1]}, "0")
    data = (tmp_path / "step.onnx").read_bytes()
    expected = onnx.load_from_string(data)
    named = 0
    for values in (expected.graph.input, expected.graph.output, expected.graph.value_info):
        for dim in (dim for value in values for dim in value.type.tensor_type.shape.dim if dim.dim_param == "target"):
            dim.dim_value, named = size, named + 1
    assert named >= 9
    assert onnx.load_from_string(with_size(data, "target", size)) == expected
    assert with_size(data, "no such name", size) == data
