"""What the choice of an engine says where there is no GPU."""

import dataclasses
import json
from pathlib import Path

import pytest
from patches import DATA, Value
from toy import BUNDLE
from txport.runtime.bundle.manifest import Manifest
from txport.runtime.bundle.schema import Architecture, Parameters, Verification
from txport.runtime.device.gpu import Gpu, find_gpu
from txport.runtime.engines.choice import choose, open_engine
from txport.runtime.errors import MissingLibrary, TxportError

MODULE = "txport.runtime.engines.choice"
VECTORS = DATA / "feature_bundle"
CASES = json.loads((DATA / "engines" / "choices.json").read_bytes())["devices"]
NO_PARAMETERS = Parameters(Architecture("post", "relu", 1.0, 1e-5), ())
no_gpu = pytest.mark.skipif(not isinstance(find_gpu(), str), reason="needs a machine without an NVIDIA GPU")


@no_gpu
def test_without_a_gpu_auto_is_the_cpu_and_the_rest_says_why() -> None:
    manifest = Manifest.load(BUNDLE)
    choice = choose(manifest, bundle=BUNDLE)
    assert (choice.engine, choice.device, choice.directory) == ("ort", "cpu", None)
    assert choice.reason.startswith("auto chose the CPU: there is no NVIDIA")
    assert "on cpu" in open_engine(BUNDLE, manifest, choice).name
    with pytest.raises(MissingLibrary, match="engine trt cannot be used here: there is no NVIDIA.*; use --engine auto"):
        choose(manifest, engine="trt", bundle=BUNDLE)
    with pytest.raises(MissingLibrary, match="CUDA"):
        open_engine(BUNDLE, manifest, choose(manifest, "cuda", bundle=BUNDLE))


def test_a_gpu_is_chosen_for_vectors_as_for_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    manifest = Manifest.load(VECTORS)
    assert choose(manifest, "cuda", bundle=VECTORS).lowerings == ("scatter",)
    monkeypatch.setattr(MODULE + ".find_gpu", lambda: Gpu("NVIDIA H200", "9.0", 132, "13.0"))
    monkeypatch.setattr(MODULE + ".cuda_provider", lambda: Path("a file"))
    choice = choose(manifest, bundle=VECTORS)
    assert (choice.engine, choice.device) == ("ort", "cuda")


@no_gpu
def test_the_cuda_device_says_why_it_cannot_be_used() -> None:
    cuda = pytest.importorskip("txport.runtime.device.cuda", reason="needs cuda-python: pip install 'txport[trt]'")
    with pytest.raises(MissingLibrary, match="CUDA cannot be used here: .*; use --device cpu"):
        cuda.CudaDevice()


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_the_choice_of_an_engine_and_a_device(monkeypatch: pytest.MonkeyPatch, case: Value) -> None:
    """On cuda GroupQueryAttention in float32 would run on the CPU, with copies of all caches in each step."""
    manifest = Manifest.load(BUNDLE)
    kind = case.get("precision", "float32")
    precision = dataclasses.replace(manifest.precision, type=kind, weights=case.get("weights", kind))
    lowerings = case.get("exported", manifest.lowerings)
    verified = case.get("verified")
    manifest = dataclasses.replace(
        manifest,
        precision=precision,
        graphs=tuple(each for each in manifest.graphs if each.lowering in ("standard", *lowerings)),
        parameters=NO_PARAMETERS if case.get("parameters") else None,
        verification=None if verified is None else Verification(True, 1, 1, 1, 0.0, ("ort", "fused")[: 1 + verified]),
    )
    gpu, provider = case.get("gpu"), Path("a file") if case.get("cuda_provider") else None
    if isinstance(gpu, dict):
        gpu = Gpu(**{each.name: gpu.get(each.name, "13.0") for each in dataclasses.fields(Gpu)})
    monkeypatch.setattr(MODULE + ".find_gpu", lambda: gpu)
    monkeypatch.setattr(MODULE + ".cuda_provider", lambda: provider)
    monkeypatch.setattr(MODULE + ".native.missing", lambda: case.get("against_fused"))
    asked = manifest, case["device"], case.get("asked", "auto"), case.get("lowering"), BUNDLE
    if "refused" in case:
        with pytest.raises(TxportError) as caught:
            choose(*asked)
        assert str(caught.value) == case["refused"]
        return
    choice = choose(*asked)
    assert (choice.engine, choice.device) == (case.get("engine", "ort"), case.get("chosen", case["device"]))
    assert [*choice.lowerings] == case["lowerings"] and choice.reason == case["reason"]
    fallback, expected = choice.fallback, case.get("fallback")
    assert (fallback is None) == (expected is None)
    if fallback is not None:
        assert fallback.device == "cpu"
        found = {"engine": fallback.engine, "lowerings": [*fallback.lowerings], "reason": fallback.reason}
        assert found == {"engine": "ort", **expected}
