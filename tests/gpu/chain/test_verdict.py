"""The decision on the chain of kernels, and the bundles that it can compute."""

import dataclasses
from pathlib import Path

import pytest
from chain_bundle import constants_of, model_of_bundle, refusal
from txport.runtime.bundle.manifest import Manifest

chain_gpu = pytest.importorskip("chain_gpu", reason="needs cuda-python: pip install 'txport[trt]'")


@pytest.mark.parametrize(
    ("at_1", "at_8", "decision"),
    [(200.0, 300.0, "build"), (205.0, 200.0, "build"), (206.0, 200.0, "drop"), (100.0, 400.0, "drop")],
)
def test_the_stop_rule(at_1: float, at_8: float, decision: str) -> None:
    """At batch 1 at least 1.6 times as fast, at batch 8 faster."""
    words = chain_gpu.verdict({1: at_1, 8: at_8}, {1: 328.0, 8: 349.0, 32: 403.0})
    assert words.startswith(f"{decision} the chain of kernels: ") and "times ONNX Runtime at batch 8" in words


def test_equally_fast_at_batch_8_is_too_slow() -> None:
    words = chain_gpu.verdict({1: 100.0, 8: 400.0}, {1: 160.0, 8: 400.0})
    assert words == (
        "drop the chain of kernels: 1.60 times ONNX Runtime at batch 1, 1.00 times ONNX Runtime at batch 8; "
        "at least 1.6 and more than 1 are required"
    )


def test_other_bundles_are_refused(bundle: Path, float16_bundle: Path, island_bundle: Path) -> None:
    with pytest.raises(ValueError, match="needs a bundle in float16"):
        model_of_bundle(bundle)
    with pytest.raises(ValueError, match="needs a bundle without float32 islands"):
        model_of_bundle(island_bundle)
    manifest = Manifest.load(float16_bundle)
    copying = dataclasses.replace(manifest.model, copies=True)
    reason = refusal(dataclasses.replace(manifest, model=copying, parameters=None))
    assert reason is not None and reason.startswith("needs a bundle without a copy mechanism")
    assert [constants["ROWS"] for constants in constants_of(float16_bundle)] == [8, 16, 32]
