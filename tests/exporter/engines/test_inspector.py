"""What the engine inspector lists, and what must not be read into it.

The files of tests/data/inspector have layers of ours in the form of real engines: 8.6 as in NVIDIA/TensorRT issues 4020
and 2308 and in Polygraphy's examples (" [profile 1]"), 10 as in issue 4397 and in sampleEditableTimingCache.
"""

from pathlib import Path
from typing import Any

import pytest
from memory_builder import MODULE
from toy import BUNDLE
from txport.exporter.engines.builder import BuildOptions, EngineBuilder
from txport.exporter.engines.inspector import count_types, parse_layers, wrong_products
from txport.runtime.bundle.manifest import Manifest
from txport.runtime.engines.build_record import LibraryVersion
from txport.runtime.engines.tensorrt import TensorRt
from txport.runtime.errors import CheckFailed

DATA = Path(__file__).parents[2] / "data" / "inspector"
INNER, OUTER = "layers.0.feed_forward.inner/Gemm", "layers.0.feed_forward.outer/Gemm"


def layers_of(version: str) -> list[dict[str, Any]]:
    return parse_layers((DATA / f"tensorrt_{version}.json").read_text(), "TensorRT")


@pytest.mark.parametrize(
    ("version", "islands", "wrong"),
    [
        # Of one layer in two profiles each; one-element factors, blocks of Myelin, reductions and islands are right.
        ("8_6", set(), [OUTER, "layers.1.norm/Gemm_3"] * 2),
        ("8_6", {OUTER, "layers.1.norm/Gemm"}, []),
        # Parts of a product, softmax and LayerNorm add up in float32; the product after them is an island or wrong.
        ("10", {INNER}, [f"{OUTER}_myl0_10"]),
        ("10", {INNER, OUTER}, []),
    ],
)
def test_products_that_do_not_read_what_the_graph_says(version: str, islands: set[str], wrong: list[str]) -> None:
    found = wrong_products(layers_of(version), "float16", islands)
    assert found == [f"{name} (float32)" for name in wrong]


def test_a_float32_engine_has_no_products_in_float16() -> None:
    assert "layers.0.self_qkv/Gemm_myl0_1 (float16)" in wrong_products(layers_of("10"), "float32", set())


@pytest.mark.parametrize(("version", "counts"), [("8_6", (4, 6)), ("10", (2, 5))])
def test_layers_are_counted_by_what_they_compute_in(version: str, counts: tuple[int, int]) -> None:
    found = count_types(layers_of(version))
    assert (found["float16"], found["float32"]) == counts


def test_what_8_6_chose_is_a_warning_and_what_10_must_not_choose_an_error(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def check(version: str) -> None:
        library = TensorRt(MODULE, LibraryVersion("tensorrt", version), [], None)
        manifest = Manifest.load(BUNDLE)
        builder = EngineBuilder(library, BUNDLE, manifest, BuildOptions(), tmp_path, b"", lambda file, part: None)
        builder._check_products([f"{OUTER} (float32)"], "step.onnx", "float16")

    check("8.6.0")
    assert f"the engine of step.onnx does not read float16 in 1 products: {OUTER} (float32)" in caplog.text
    with pytest.raises(
        CheckFailed, match=r"engine of step.onnx does not read float16 .*although its graph requires it"
    ):
        check("10.3.0")


def test_an_engine_that_lists_names_only_says_nothing() -> None:
    """As those do that were not built with detailed verbosity."""
    with pytest.raises(CheckFailed, match="TensorRT 8.6.0 lists no layers with their types"):
        parse_layers('{"Layers": ["Conv__25 + Relu", "MaxPool2d"], "Bindings": ["x:0"]}', "TensorRT 8.6.0")
