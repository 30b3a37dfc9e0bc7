"""ONNX Runtime's CUDA provider: each bundle and lowering, captured and launched one by one."""

import tempfile
import time
from pathlib import Path
from typing import Any

import pytest
from gpu_engines import (
    WHERE,
    Rows,
    check_beams,
    check_captures,
    check_encoder,
    check_golden,
    check_nodes,
    check_threads,
    on_onnxruntime,
    wrong_cases,
)
from txport.exporter.graphs.capturable import not_capturable
from txport.runtime.bundle.manifest import Manifest
from txport.runtime.bundle.schema import LOWERINGS, Lowering
from txport.runtime.device.engine import DeviceEngine
from txport.runtime.engines.choice import choose
from txport.runtime.errors import BundleError, InputError
from txport.runtime.search.decoding import stream
from txport.runtime.search.requests import Request

pytestmark = pytest.mark.gpu


@pytest.fixture(params=LOWERINGS)
def lowering(request: pytest.FixtureRequest, plain: Path) -> Lowering:
    """Each that the bundle has and ONNX Runtime runs on a GPU."""
    manifest, name = Manifest.load(plain), request.param
    if name not in manifest.lowerings:
        pytest.skip(f"the bundle has no lowering {name}")
    if name == "ort" and manifest.precision.type == "float32":
        pytest.skip("refused, as another test sees")
    return name


def opened(bundle: Path, lowering: Lowering | None = None, *, captured: bool = True) -> DeviceEngine:
    try:
        return on_onnxruntime(bundle, lowering, captured=captured)
    except BundleError as error:  # an opset that this version lacks
        pytest.skip(str(error))


@pytest.mark.parametrize("captured", [True, False], ids=["captured", "plain"])
def test_golden_cases_in_any_batch_and_after_any_refill(plain: Path, lowering: Lowering, captured: bool) -> None:
    engine = opened(plain, lowering, captured=captured)
    check_golden(engine, plain)
    assert engine.captured == (captured and WHERE == "cuda"), "steps are CUDA graphs"


def test_no_captured_node_depends_on_the_host(plain: Path, lowering: Lowering, record_property: Rows) -> None:
    check_nodes(opened(plain, lowering), record_property, bundle=plain.name, lowering=lowering)


def test_the_encoder_is_captured(plain: Path, record_property: Rows) -> None:
    check_encoder(opened(plain), record_property, bundle=plain.name)


def test_operators_may_be_captured(plain: Path, lowering: Lowering) -> None:
    """As ONNX Runtime's own optimisations for this device leave them."""
    onnx = pytest.importorskip("onnx", reason="needs onnx to read the graph")
    opened(plain, lowering)
    from txport.runtime.engines.ort_session import open_session, providers_of

    with tempfile.TemporaryDirectory(prefix="txport-gpu-") as scratch:
        saved, graph = Path(scratch, "step.onnx"), Manifest.load(plain).step(lowering)
        open_session(plain, graph, threads=1, providers=providers_of(WHERE), saved=saved)
        found = {node.op_type for node in onnx.load(saved, load_external_data=False).graph.node}
    assert not_capturable(found, on_cpu=WHERE == "cpu") == []


def test_beams_are_captured_and_find_what_rows_find(with_beams: Path, record_property: Rows) -> None:
    engine = opened(with_beams)
    if engine._program.graph_of(4) is None:
        pytest.skip("needs ONNX Runtime 1.25 for opset 24")
    check_beams(engine, with_beams, record_property)


def test_threads_get_the_same(small: Path) -> None:
    check_threads(lambda: opened(small), small)


def test_engines_that_open_and_close_spoil_no_capture(small: Path) -> None:
    def open_and_close() -> None:
        assert wrong_cases(opened(small), small, 1) == []

    engine = opened(small)
    assert check_captures(engine, small, open_and_close) == []
    assert engine.captured == (WHERE == "cuda")


def test_who_waits_for_the_device_spoils_captures_and_nothing_else(small: Path, device: Any) -> None:
    """Another library of the process may, as PyTorch."""
    from cuda.bindings import driver

    def wait_for_it() -> None:
        for _ in range(50):
            device.free_memory()  # makes the context current
            driver.cuCtxSynchronize()
            time.sleep(0.002)

    faults = check_captures(opened(small), small, wait_for_it)
    assert bool(faults) == (WHERE == "cuda"), "a capture was under way now and then"


def test_a_stream_of_tokens_is_the_same(small: Path) -> None:
    engine = opened(small)
    assert wrong_cases(engine, small) == []
    assert [token.id for token in stream(engine, Request([4, 5, engine.tokens.eos], 4))]


def test_ort_in_float32_is_refused_by_name(plain: Path) -> None:
    """GroupQueryAttention has no kernel for it: caches would go to the CPU and back in each step."""
    manifest = Manifest.load(plain)
    if manifest.precision.type != "float32" or "ort" not in manifest.lowerings:
        pytest.skip("needs a bundle in float32 with the lowering ort")
    with pytest.raises(InputError, match="lowering ort has no float32 kernels on a GPU"):
        choose(manifest, "cuda", lowering="ort")
