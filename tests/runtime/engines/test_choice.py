"""What the choice of an engine says where there is no GPU."""

import dataclasses
from pathlib import Path

import pytest
from toy import BUNDLE
from txport.runtime.bundle.manifest import Manifest
from txport.runtime.bundle.schema import Lowering
from txport.runtime.device.gpu import Gpu, find_gpu
from txport.runtime.engines.choice import choose, open_engine
from txport.runtime.errors import MissingLibrary

no_gpu = pytest.mark.skipif(not isinstance(find_gpu(), str), reason="needs a machine without an NVIDIA GPU")


@no_gpu
def test_without_a_gpu_auto_is_the_cpu_and_the_rest_says_why() -> None:
    manifest = Manifest.load(BUNDLE)
    choice = choose(manifest, bundle=BUNDLE)
    assert (choice.engine, choice.device, choice.directory) == ("ort", "cpu", None)
    assert choice.reason.startswith("auto is the CPU: there is no NVIDIA")
    assert "on cpu" in open_engine(BUNDLE, manifest, choice).name
    with pytest.raises(MissingLibrary, match="device trt cannot be used here: there is no NVIDIA"):
        choose(manifest, "trt", bundle=BUNDLE)
    with pytest.raises(MissingLibrary, match="CUDA"):
        open_engine(BUNDLE, manifest, choose(manifest, "cuda", bundle=BUNDLE))


@no_gpu
def test_the_cuda_device_says_why_it_cannot_be_used() -> None:
    cuda = pytest.importorskip("txport.runtime.device.cuda", reason="needs cuda-python: pip install 'txport[trt]'")
    with pytest.raises(MissingLibrary, match="CUDA cannot be used here: .*; use --device cpu"):
        cuda.CudaDevice()


@pytest.mark.parametrize(
    ("precision", "order"),
    [("float32", ("scatter", "tensorscatter", "ort")), ("float16", ("ort", "scatter", "tensorscatter"))],
)
def test_on_cuda_float32_does_without_attention_that_has_no_kernel_for_it(
    monkeypatch: pytest.MonkeyPatch, precision: str, order: tuple[Lowering, ...]
) -> None:
    """GroupQueryAttention would run on the CPU, with copies of all caches in each step."""
    manifest = Manifest.load(BUNDLE)
    manifest = dataclasses.replace(manifest, precision=dataclasses.replace(manifest.precision, type=precision))
    assert choose(manifest, "cuda").lowerings == order
    assert choose(manifest, "cuda", "ort").lowerings == ("ort",)
    monkeypatch.setattr("txport.runtime.engines.choice.find_gpu", lambda: Gpu("H100", "9.0", "13.0", 132))
    monkeypatch.setattr("txport.runtime.engines.choice.cuda_provider", lambda: Path("a file"))
    choice = choose(manifest)
    assert choice.device == "cuda" and choice.lowerings == order
    assert choice.fallback is not None
    assert (choice.fallback.device, choice.fallback.lowerings[0]) == ("cpu", "ort")
    monkeypatch.setattr("txport.runtime.engines.choice.cuda_provider", lambda: None)
    assert choose(manifest).reason.startswith(
        "auto is the CPU: the bundle has no TensorRT engines, and onnxruntime-gpu"
    )
