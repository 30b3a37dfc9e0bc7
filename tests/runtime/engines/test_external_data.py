"""Graphs of a bundle in one file: only the place of their weights is another one."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from toy import BUNDLE
from txport.runtime.engines.external_data import with_location

onnx = pytest.importorskip("onnx", reason="needs onnx, which parses what was written: pip install 'txport[export]'")
message = pytest.importorskip("google.protobuf.message", reason="comes with onnx: pip install 'txport[export]'")
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


def _expected(model: bytes, location: str, start: int) -> list[tuple[str, dict[str, str]]]:
    """The places of a model that was moved, by onnx."""
    places = _places(model)
    for _, place in places[:-1]:
        if place:
            place |= {"location": location, "offset": str(int(place["offset"]) + start)}
    return places


@pytest.mark.parametrize("graph", GRAPHS, ids=lambda path: path.name)
def test_only_file_and_offset_change(graph: Path) -> None:
    model = graph.read_bytes()
    external = any(place for _, place in _places(model)[:-1])
    assert external == graph.name.startswith("decoder_step")  # the toy encoder's weights are too small
    assert _places(with_location(model, "modell é.txb", 8192)) == _expected(model, "modell é.txb", 8192)


def test_data_without_an_offset_begins_at_the_start() -> None:
    tensor = onnx.TensorProto(name="w", dims=[300], data_type=onnx.TensorProto.FLOAT, data_location="EXTERNAL")
    tensor.external_data.add(key="location", value="weights.bin")
    model = onnx.helper.make_model(onnx.helper.make_graph([], "g", [], [], [tensor]))
    found = _places(with_location(model.SerializeToString(), "model.txb", 4096))
    assert found[0] == ("w", {"location": "model.txb", "offset": "4096"})


@given(graph=st.sampled_from(GRAPHS), share=st.floats(0, 1))
def test_a_model_that_was_cut_is_refused_where_protobuf_refuses_it(graph: Path, share: float) -> None:
    model = graph.read_bytes()
    cut = model[: int(share * len(model))]
    try:
        onnx.ModelProto.FromString(cut)
    except message.DecodeError:
        with pytest.raises(ValueError, match="longer than its message|no end"):
            with_location(cut, "x", 1)
    else:
        assert _places(with_location(cut, "x", 1)) == _expected(cut, "x", 1)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"\x0b", "wire type 3"),
        (b"\x0f", "wire type 7"),
        (b"\x80" * 11, "no end"),
        (b"\x08", "no end"),
        (b"\x09abc", "longer than its message"),
        (b"\x3a\x02\x2a\x05", "longer than its message"),  # an initializer beyond the graph that it is of
    ],
)
def test_what_is_no_model_is_a_value_error(data: bytes, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        with_location(data, "x", 1)
