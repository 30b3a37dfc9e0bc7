"""What the choice of an engine says where there is no GPU."""

import pytest
from toy import BUNDLE
from txport.runtime.bundle.manifest import Manifest
from txport.runtime.device.gpu import find_gpu
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
