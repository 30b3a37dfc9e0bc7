"""What a machine with a GPU has, and which of the libraries load."""

import importlib.metadata
import shutil
import subprocess
import sys

import pytest
from gpu_engines import Rows
from txport.benchmarks.machine.description import describe
from txport.benchmarks.machine.nvml import open_nvml
from txport.runtime.device.gpu import find_gpu
from txport.runtime.engines.tensorrt import find_tensorrt
from txport.runtime.errors import TxportError
from txport.runtime.libraries import cuda_provider

pytestmark = pytest.mark.gpu
PACKAGES = ("txport", "numpy", "onnxruntime", "onnxruntime-gpu", "tensorrt", "cuda-bindings", "torch")
# What loads of ONNX Runtime's CUDA provider; PyTorch, imported first, loads CUDA's libraries on the way.
LOAD = """
import ctypes, sys
{first}
from txport.runtime.engines.ort_session import providers_of
providers_of("cuda")
from txport.runtime.libraries import cuda_provider
ctypes.CDLL(str(cuda_provider()))
"""


def test_the_machine_is_described(record_property: Rows) -> None:
    machine = describe(open_nvml())
    gpu = machine.gpu.name if machine.gpu else "none that NVML knows"
    record_property("machine", {"GPU": str(find_gpu()), "NVML": gpu, "processor": machine.processor})
    versions = {"Python": machine.python}
    for name in PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            versions[name] = "none"
    try:
        versions["TensorRT that is used"] = str(find_tensorrt().library)
    except TxportError as error:
        versions["TensorRT that is used"] = str(error)
    record_property("versions", versions)
    if shutil.which("nvidia-smi"):
        print(subprocess.run(["nvidia-smi", "-q"], capture_output=True, text=True, timeout=30).stdout)
    assert not isinstance(find_gpu(), str)


@pytest.mark.parametrize("first", ["", "import torch"], ids=["alone", "after PyTorch"])
def test_the_cuda_provider_loads(first: str) -> None:
    if cuda_provider() is None:
        pytest.skip("needs ONNX Runtime's CUDA provider: pip install 'txport[ort-gpu]'")
    done = subprocess.run([sys.executable, "-c", LOAD.format(first=first)], capture_output=True, text=True)
    if "No module named 'torch'" in done.stderr:
        pytest.skip("needs PyTorch")
    assert done.returncode == 0, done.stderr.strip().splitlines()[-1]
