"""tx-verify --layers: errors by the formula, a layer that overflows by its name, and what cannot be compared."""

import dataclasses
import json
import math
import shutil
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
import torch
from commands import run
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy_runner import OPTIONS, random_model
from tensorrt_graphs import CAPABILITY, TOY, write_bundle
from txport.exporter import entry
from txport.exporter.bundle import write_graphs
from txport.exporter.graphs.float16 import widened
from txport.exporter.verification.layer_errors import LayerError, _Sums, layer_errors, worst
from txport.exporter.verification.layer_runners import network_with_config
from txport.runtime.bundle.manifest import Manifest, list_files
from txport.runtime.bundle.schema import Precision
from txport.runtime.engines.tensorrt import find_tensorrt
from txport.runtime.errors import InputError

CASES = [([5, 7, 9, 3], [11, 4, 3]), ([6, 3], [8, 3]), ([12, 5, 5, 8, 9, 3], [9, 9, 4, 3])]
OVERFLOWS = "layers.1.feed_forward.inner"


def bundle_of(directory: Path, precision: str) -> Manifest:
    manifest = write_bundle(directory, OPTIONS["pre"], precision)
    cases = [{"source": "", "source_ids": source, "target_ids": target} for source, target in CASES]
    (directory / "golden.json").write_text(json.dumps({"format_version": 1, "cases": cases}))
    return manifest


def by_value(errors: list[LayerError], graph: str) -> dict[str, LayerError]:
    return {each.value: each for each in errors if each.graph == graph}


@pytest.mark.parametrize("lowering", ["scatter", "tensorscatter"])
def test_float16_is_as_far_away_as_its_roundings(lowering: str, tmp_path: Path) -> None:
    manifest = bundle_of(tmp_path, "float16")
    errors = layer_errors(tmp_path, manifest, ("cpu", "ort"), lowering, tmp_path / "scratch")
    assert {each.graph for each in errors} == {"encoder", f"decoder_step.{lowering}"}
    assert all(each.finite for each in errors)
    step = by_value(errors, f"decoder_step.{lowering}")
    layers = manifest.model.decoder_layers
    assert {"logits", *(f"next_self_key_{layer}" for layer in range(layers))} <= set(step)
    assert 2**-13 < step["logits"].relative < 2**-6, "more than one rounding, and not another answer"
    assert max(each.relative for each in errors) < 2**-6
    chosen = worst(errors, 5)
    assert len(chosen) == 5 and min(each.relative for each in chosen) >= step["logits"].relative / 2
    assert [errors.index(each) for each in chosen] == sorted(errors.index(each) for each in chosen)


def test_float32_is_its_own_reference(tmp_path: Path) -> None:
    manifest = bundle_of(tmp_path, "float32")
    errors = layer_errors(tmp_path, manifest, ("cpu", "ort"), "scatter", tmp_path / "scratch")
    assert len(errors) > 50 and max(each.relative for each in errors) < 1e-5
    model = onnx.load(tmp_path / "onnx/encoder.onnx", load_external_data=False)
    made = [value for node in model.graph.node for value in node.output]
    compared = [each.value for each in errors if each.graph == "encoder"]
    assert compared == [value for value in made if value in set(compared)], "in the order of the nodes"


def test_the_first_value_that_is_not_finite_is_named(tmp_path: Path) -> None:
    manifest = bundle_of(tmp_path, "float16")
    models = {graph.name: ir.load(tmp_path / graph.file) for graph in manifest.graphs}
    step = models["decoder_step.scatter"]
    node = next(node for node in step.graph if (node.name or "").startswith(OVERFLOWS) and node.op_type == "Gemm")
    weight = node.inputs[1]
    assert weight is not None and weight.const_value is not None
    huge = np.full(weight.const_value.shape, 6e4, np.float16)
    weight.const_value = ir.tensor(huge, name=weight.name)
    changed = tmp_path / "changed"
    write_graphs(changed / "onnx", models, "0")
    shutil.copy(tmp_path / "golden.json", changed)
    errors = layer_errors(changed, manifest, ("cpu", "ort"), "scatter", tmp_path / "scratch")
    broken = [each for each in errors if not each.finite]
    assert broken and broken[0].node == node.name and math.isnan(broken[0].error)
    assert broken[0] in worst(errors, 3)
    assert all(each.finite for each in errors if each.graph == "encoder")


def test_the_reference_is_as_near_to_pytorch_as_the_rounding_of_its_weights_allows(tmp_path: Path) -> None:
    manifest = write_bundle(tmp_path, OPTIONS["pre"], "float16")
    models = {graph.name: ir.load(tmp_path / graph.file) for graph in manifest.graphs}
    for model in models.values():
        widened(model)
        assert ir.DataType.FLOAT16 not in {value.dtype for node in model.graph for value in node.outputs}
    files = write_graphs(tmp_path / "wide", models, "0")
    session = onnxruntime.InferenceSession(files["encoder"], providers=["CPUExecutionProvider"])
    ids, lengths = np.array([CASES[0][0]]), np.array([len(CASES[0][0])])
    found = session.run(["cross_key_0", "cross_value_1"], {"input_ids": ids, "source_lengths": lengths})
    model = random_model(**OPTIONS["pre"])
    with torch.no_grad():
        cross = model.cross_key_values(model.encode(torch.from_numpy(ids), torch.from_numpy(lengths)))
    for array, expected in zip(found, (cross[0][0].numpy(), cross[1][1].numpy()), strict=True):
        assert 0 < np.linalg.norm(array - expected) / np.linalg.norm(expected) < 2e-3


def test_int8_has_no_float32_in_it(tmp_path: Path) -> None:
    manifest = dataclasses.replace(Manifest.load(TOY), precision=Precision("float32", "int8", ()))
    with pytest.raises(InputError, match="is int8, and float32 is not in it"):
        layer_errors(tmp_path, manifest, ("cpu", "ort"), "ort", tmp_path)


@given(
    st.lists(
        hnp.arrays(np.float32, (2, 3), elements=st.floats(-8, 8, width=32, allow_subnormal=False)).flatmap(
            lambda wanted: hnp.arrays(np.float32, (2, 3), elements=st.floats(-1, 1, width=32)).map(
                lambda noise: (wanted + noise, wanted)
            )
        ),
        min_size=1,
        max_size=3,
    )
)
def test_figures(pairs: list[tuple[np.ndarray, np.ndarray]]) -> None:
    sums = _Sums()
    for found, wanted in pairs:
        sums.add(found, wanted)
    found, wanted = (np.stack(each).astype(np.float64) for each in zip(*pairs, strict=True))
    assert sums.largest == np.abs(wanted).max()
    assert sums.error == np.abs(found - wanted).max()
    if np.square(wanted).sum() > 0:
        expected = np.linalg.norm((found - wanted).ravel()) / np.linalg.norm(wanted.ravel())
        assert sums.figures[2] == pytest.approx(expected)


def test_what_is_not_finite_stays_so() -> None:
    sums = _Sums()
    for value in (np.nan, 1.0):
        sums.add(np.array([value], np.float32), np.array([1.0], np.float32))
    assert math.isnan(sums.error) and math.isnan(sums.figures[2])


def test_tensorrt_builds_a_graph_whose_values_are_all_outputs(tmp_path: Path) -> None:
    """What TensorRT's runner is made of, but for the run, which needs a GPU."""
    pytest.importorskip("tensorrt_rtx_bindings", reason="needs TensorRT-RTX (x86-64): pip install 'txport[dev]'")
    from txport.exporter.graphs.sessions import with_all_outputs

    manifest = bundle_of(tmp_path, "float16")
    tensorrt = find_tensorrt("tensorrt_rtx")
    for graph in manifest.graphs:
        copy = with_all_outputs(tmp_path / graph.file)
        sizes = {"batch": 1, "target": 4}
        shapes = [
            {t.name: tuple(d if isinstance(d, int) else {**sizes, "source": source}[d] for d in t.shape)
             for t in graph.inputs}
            for source in (6, 2)
        ]  # fmt: skip
        (builder, network, parser), configure = network_with_config(tensorrt, copy, graph, manifest, shapes)
        assert network.num_outputs > 3 * len(graph.outputs)
        config = configure(builder, network)
        tensorrt.set_target(config, (CAPABILITY,), False, False)
        assert builder.build_serialized_network(network, config) is not None, tensorrt.why()
        del parser


def test_the_command(bundle: Path, checkpoint: Path, tmp_path: Path) -> None:
    done = run(entry, "tx-verify", bundle, "--layers")
    assert done.returncode == 0, done.stderr
    head, titles, *rows = done.stdout.splitlines()
    assert "values compared with float32" in head and titles.split() == ["relative", "error", "of", "node"]
    assert len(rows) == 20
    for arguments, words in (
        ((bundle, checkpoint, "--layers"), "leave the checkpoint and texts out"),
        (
            (bundle, "--layers", "--device", "xpu"),
            "choose device cpu with engine ort, device cuda",
        ),
        ((bundle, "--layers", "--device", "cuda"), "cuda"),
    ):
        done = run(entry, "tx-verify", *arguments)
        assert done.returncode == 2 and len(done.stderr.splitlines()) == 1 and words in done.stderr, done.stderr
    broken = Path(shutil.copytree(bundle, tmp_path / "broken"))
    weights = broken / "onnx" / "weights.bin"
    data = np.frombuffer(weights.read_bytes(), np.float32).copy()
    data[data.size // 2 :] = np.nan
    weights.write_bytes(data.tobytes())
    dataclasses.replace(Manifest.load(bundle), files=list_files(broken)).write(broken)
    done = run(entry, "tx-verify", broken, "--layers", "--json")
    assert done.returncode == 1 and "values are not finite, the first is" in done.stderr
    rows = json.loads(done.stdout, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert {"graph", "node", "operator", "value", "largest", "error", "relative"} == set(rows[0])
