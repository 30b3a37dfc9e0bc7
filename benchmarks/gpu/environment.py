"""Stages "environment" and "device": what is installed and loads, and whether the device layer does what it says."""

import importlib.metadata
import shutil
import subprocess
import sys
from collections import Counter

import numpy as np
from txport.benchmarks.gpu.stage_context import StageContext
from txport.runtime.device.device import Buffer
from txport.runtime.device.gpu import find_gpu
from txport.runtime.engines.tensorrt import find_tensorrt
from txport.runtime.errors import TxportError
from txport.runtime.libraries import cuda_provider

PACKAGES = ("txport", "numpy", "onnxruntime", "onnxruntime-gpu", "tensorrt", "cuda-bindings", "torch", "polygraphy")
# What loads of ONNX Runtime's CUDA provider; PyTorch, imported first, loads CUDA's libraries on the way.
_LOAD = """
import ctypes, sys
{first}
from txport.runtime.engines.ort_session import providers_of
providers_of("cuda")
from txport.runtime.libraries import cuda_provider
ctypes.CDLL(str(cuda_provider()))
"""


def environment(context: StageContext) -> None:
    """The GPU, the versions of libraries, and which of them load."""
    gpu = find_gpu()
    context.check("a GPU", not isinstance(gpu, str), str(gpu))
    for name in PACKAGES:
        try:
            context.row("versions", package=name, version=importlib.metadata.version(name))
        except importlib.metadata.PackageNotFoundError:
            context.row("versions", package=name, version=None)
    context.row("versions", package="Python", version=sys.version.split()[0])
    try:
        tensorrt = find_tensorrt()
        context.row("versions", package="TensorRT that is used", version=str(tensorrt.library))
    except TxportError as error:
        context.row("versions", package="TensorRT that is used", version=str(error))
    if shutil.which("nvidia-smi"):
        print(subprocess.run(["nvidia-smi", "-q"], capture_output=True, text=True, timeout=30).stdout)
    if cuda_provider() is not None and not context.rehearsal:
        for name, first in (("alone", ""), ("after PyTorch", "import torch")):
            done = subprocess.run([sys.executable, "-c", _LOAD.format(first=first)], capture_output=True, text=True)
            said = (done.stderr.strip().splitlines() or [""])[-1]
            if "No module named 'torch'" not in said:
                context.check(f"ONNX Runtime's CUDA provider loads {name}", done.returncode == 0, said)


def device(context: StageContext) -> None:
    """Copies, fills, capture and replay on the driver, by random bytes."""
    from txport.runtime.device.cuda import CudaDevice

    driver, random = CudaDevice(), np.random.default_rng(0)
    rows, width, pitch = 37, 129, 256
    first, second = (driver.allocate(rows * pitch) for _ in range(2))
    sent, found = random.integers(0, 256, (rows, pitch), np.uint8), np.zeros((rows, pitch), np.uint8)
    driver.upload(first, sent)
    driver.fill(Buffer(second), 7, rows * pitch)
    driver.copy(Buffer(second, pitch), Buffer(first, pitch), width, rows)
    driver.download(found, second)
    driver.synchronize()
    expected = np.full_like(sent, 7)
    expected[:, :width] = sent[:, :width]
    context.check("copies and fills", bool((found == expected).all()), f"{rows} rows of {width} bytes")
    driver.graphs = captured = list[Counter[str]]()
    replay = driver.capture(lambda: driver.copy(Buffer(second), Buffer(first), rows * pitch))
    driver.upload(first, sent[::-1].copy())
    replay()
    driver.download(found, second)
    driver.synchronize()
    context.check("capture and replay", bool((found == sent[::-1]).all()))
    (nodes,) = captured
    detail = ", ".join(f"{count} {kind}" for kind, count in nodes.items())
    context.check("nodes of one captured copy", nodes == {"memcpy": 1}, detail)
    context.row("device", gpu=str(driver.gpu), free_bytes=driver.free_memory())
