"""Graphs of a bundle in one file: only the place of their weights is another one."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from toy import BUNDLE
from txport.runtime.engines.external_data import moved

onnx = pytest.importorskip("onnx", reason="needs onnx, which parses what was written: pip install 'txport[export]'")
GRAPHS = sorted((BUNDLE / "onnx").glob("*.onnx"))


def _places(model: bytes) -> list[tuple[str, dict[str, str]]]:
    """External data of the initializers, which it is taken from."""
    parsed = onnx.load_model_from_string(model)
    found = [
        (tensor.name, {entry.key: entry.value for entry in tensor.external_data}) for tensor in parsed.graph.initializer
    ]
    for tensor in parsed.graph.initializer:
        del tensor.external_data[:]
    return [*found, ("rest", {"model": parsed.SerializeToString(deterministic=True).hex()})]


@pytest.mark.parametrize("graph", GRAPHS, ids=lambda path: path.name)
def test_only_file_and_offset_change(graph: Path) -> None:
    model = graph.read_bytes()
    expected = _places(model)
    external = [place for _, place in expected[:-1] if place]
    assert bool(external) == graph.name.startswith("decoder_step")  # the toy encoder's weights are too small
    for place in external:
        place |= {"location": "modell é.txb", "offset": str(int(place["offset"]) + 8192)}
    assert _places(moved(model, "modell é.txb", 8192)) == expected


def test_data_without_an_offset_begins_at_the_start() -> None:
    tensor = onnx.TensorProto(name="w", dims=[300], data_type=onnx.TensorProto.FLOAT, data_location="EXTERNAL")
    tensor.external_data.add(key="location", value="weights.bin")
    model = onnx.helper.make_model(onnx.helper.make_graph([], "g", [], [], [tensor]))
    found = _places(moved(model.SerializeToString(), "model.txb", 4096))
    assert found[0] == ("w", {"location": "model.txb", "offset": "4096"})


@given(st.binary(max_size=64))
def test_what_is_no_model_is_a_value_error(data: bytes) -> None:
    try:
        moved(data, "x", 1)
    except ValueError:
        pass
