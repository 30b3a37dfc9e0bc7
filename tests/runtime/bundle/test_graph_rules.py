"""What a graph of a bundle may contain. Hostile graphs are written by onnx, and tests/cpp reads the same ones."""

import json
import re
import shutil
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from toy import BUNDLE
from txport.runtime.bundle.archive import write_archive
from txport.runtime.bundle.graph_rules import LARGEST_GRAPH, OPERATORS, check_graph, checked_graph
from txport.runtime.bundle.manifest import Manifest, list_files
from txport.runtime.engines.ort_session import open_session
from txport.runtime.errors import BundleError

DATA = Path(__file__).parents[2] / "data"
GRAPHS = sorted(DATA.glob("**/onnx/*.onnx"))
HOSTILE = json.loads((DATA / "hostile_graphs.json").read_bytes())
REFUSED = {name: (bytes.fromhex(each["model"]), each["words"]) for name, each in HOSTILE["refused"].items()}


@pytest.mark.parametrize("graph", GRAPHS, ids=lambda path: f"{path.parts[-3]}/{path.name}")
def test_committed_bundles_pass(graph: Path) -> None:
    assert checked_graph(graph.parents[1], f"onnx/{graph.name}") == graph.read_bytes()


def test_bundles_of_this_version_pass(bundle: Path) -> None:
    for graph in Manifest.load(bundle).graphs:
        checked_graph(bundle, graph.file)


@pytest.mark.parametrize("name", REFUSED)
def test_what_no_export_writes_is_refused(name: str) -> None:
    model, words = REFUSED[name]
    with pytest.raises(ValueError, match=re.escape(words)):
        check_graph(model, HOSTILE["weights"])


def test_the_hostile_graphs_are_those_of_onnx() -> None:
    pytest.importorskip("onnx", reason="needs onnx, which writes them: pip install 'txport[export]'")
    import make_hostile_graphs

    assert make_hostile_graphs.cases() == REFUSED


@given(st.sampled_from(GRAPHS), st.data())
@settings(max_examples=300, deadline=None)
def test_changed_graphs_that_pass_name_no_other_file(graph: Path, data: st.DataObject) -> None:
    """By onnx's own parser: whatever bytes are changed, it never sees what the rules did not."""
    onnx = pytest.importorskip("onnx", reason="needs onnx, which parses what passed: pip install 'txport[export]'")
    message = pytest.importorskip("google.protobuf.message", reason="comes with onnx")
    changed = bytearray(graph.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        changed[data.draw(st.integers(0, len(changed) - 1))] = data.draw(st.integers(0, 255))
    try:
        check_graph(bytes(changed), 1 << 20)
    except ValueError:
        return
    try:
        parsed = onnx.ModelProto.FromString(bytes(changed))
    except message.DecodeError:
        return
    assert not parsed.functions and not parsed.graph.sparse_initializer
    for node in parsed.graph.node:
        assert node.op_type in OPERATORS[node.domain]
        kinds = ("t", "g", "tensors", "graphs", "sparse_tensor", "sparse_tensors", "tp", "type_protos")
        assert not any(field.name in kinds for each in node.attribute for field, _ in each.ListFields())
    for tensor in parsed.graph.initializer:
        assert {entry.value for entry in tensor.external_data if entry.key == "location"} <= {"weights.bin"}


@pytest.mark.parametrize("name", ["../encoder.onnx", "encoder.onnx", "onnx/x/encoder.onnx", "onnx/encoder.ort"])
def test_other_places_and_formats_are_refused(name: str, tmp_path: Path) -> None:
    bundle = Path(shutil.copytree(BUNDLE, tmp_path / "bundle"))
    place = bundle / name
    place.parent.mkdir(exist_ok=True)
    shutil.copy(bundle / "onnx/encoder.onnx", place)
    with pytest.raises(BundleError, match=r"does not load .* is not a file onnx/\*\.onnx: export the bundle again"):
        checked_graph(bundle, name)


def test_a_graph_of_any_size_is_not_read(tmp_path: Path) -> None:
    bundle = Path(shutil.copytree(BUNDLE, tmp_path / "bundle"))
    with (bundle / "onnx/encoder.onnx").open("r+b") as file:
        file.truncate(LARGEST_GRAPH + 1)
    with pytest.raises(BundleError, match=f"is larger than {LARGEST_GRAPH} bytes"):
        checked_graph(bundle, "onnx/encoder.onnx")


@pytest.mark.parametrize("packed", [False, True], ids=["directory", "archive"])
def test_no_session_opens_a_hostile_graph(packed: bool, tmp_path: Path) -> None:
    """Though manifest and hashes are right."""
    pytest.importorskip("onnxruntime", reason="needs ONNX Runtime: pip install 'txport[ort]'")
    bundle = Path(shutil.copytree(BUNDLE, tmp_path / "bundle"))
    (bundle / "onnx/encoder.onnx").write_bytes(REFUSED["absolute path"][0])
    manifest = Manifest(**{**vars(Manifest.load(BUNDLE)), "files": list_files(bundle)}).write(bundle)
    manifest.check_files(bundle, hashes=lambda name: True)
    if packed:
        with (tmp_path / "bundle.txb").open("wb") as file:
            write_archive(file, bundle, ["manifest.json", *manifest.files])
        bundle = tmp_path / "bundle.txb"
    with pytest.raises(BundleError, match=r"encoder\.onnx, which contains a weight that is in the file '/etc/passwd'"):
        open_session(bundle, manifest.encoder, threads=1, providers=["CPUExecutionProvider"])


def test_what_was_checked_is_what_is_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that is replaced after the check is not read again."""
    bundle = Path(shutil.copytree(BUNDLE, tmp_path / "bundle"))

    def checked(files: Path, name: str) -> bytes:
        model = checked_graph(files, name)
        (bundle / name).unlink()
        (bundle / name).write_bytes(REFUSED["loop"][0])
        return model

    monkeypatch.setattr("txport.runtime.engines.ort_session.checked_graph", checked)
    open_session(bundle, Manifest.load(bundle).encoder, threads=1, providers=["CPUExecutionProvider"])
    with pytest.raises(BundleError, match="contains the operator 'Loop'"):
        checked_graph(bundle, "onnx/encoder.onnx")
