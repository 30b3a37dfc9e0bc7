"""Whose fault an error is: a fault that is injected, and the class that a service acts on."""

import errno
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from memory_device import HashProgram, MemoryDevice
from toy import BUNDLE
from txport.runtime.bundle.manifest import Manifest
from txport.runtime.device.engine import DeviceEngine
from txport.runtime.engines.choice import choose
from txport.runtime.engines.ort import OrtEngine
from txport.runtime.engines.ort_session import providers_of, run
from txport.runtime.errors import (
    BundleError,
    EngineError,
    InputError,
    MissingLibrary,
    ResourceError,
    TxportError,
    failure,
)
from txport.runtime.files import new_directory, write_atomically
from txport.runtime.libraries import needs
from txport.runtime.search.decoding import decode_all
from txport.runtime.search.requests import Request
from txport.runtime.text.lines import open_lines, write_all

MANIFEST = Manifest.load(BUNDLE)
Patch = pytest.MonkeyPatch


def refuse(code: int) -> Callable[..., Any]:
    """A system call that fails."""

    def call(*_: object, **__: object) -> None:
        raise OSError(code, os.strerror(code))

    return call


def full_disk(patch: Patch, path: Path) -> None:
    with new_directory(path / "new"):
        refuse(errno.ENOSPC)()


def quota(patch: Patch, path: Path) -> None:
    patch.setattr(os, "fsync", refuse(errno.EDQUOT))
    write_atomically(path / "file", b"x")


def failing_disk(patch: Patch, path: Path) -> None:
    patch.setattr(os, "replace", refuse(errno.EIO))
    write_atomically(path / "file", b"x")


def too_many_files(patch: Patch, path: Path) -> None:
    patch.setattr(os, "open", refuse(errno.EMFILE))
    with open_lines(path):
        pass


def full_output(patch: Patch, path: Path) -> None:
    with open("/dev/full", "wb") as full:
        write_all(full.fileno(), b"x")


def no_such_place(patch: Patch, path: Path) -> None:
    write_atomically(path / "nowhere" / "file", b"x")


def no_such_text(patch: Patch, path: Path) -> None:
    with open_lines(path / "nowhere"):
        pass


def no_bundle(patch: Patch, path: Path) -> None:
    Manifest.load(path)


def unknown_device(patch: Patch, path: Path) -> None:
    choose(MANIFEST, "gpu")


def long_source(patch: Patch, path: Path) -> None:
    decode_all(OrtEngine(BUNDLE, MANIFEST, threads=1), [Request([5] * 1000)])


def no_host_memory(patch: Patch, path: Path) -> None:
    OrtEngine(BUNDLE, MANIFEST, threads=1).allocate(1 << 50, 5, 32)


class Session:
    """An ONNX Runtime session whose runs fail."""

    def __init__(self, reason: str) -> None:
        self.reason = reason

    def run_with_iobinding(self, *_: object) -> None:
        raise RuntimeError(self.reason)


def failing_run(patch: Patch, path: Path) -> None:
    run(Session("[ONNXRuntimeError] : 1 : FAIL : Non-zero status code returned while running Gather node."), None)


def no_arena(patch: Patch, path: Path) -> None:
    run(Session("/x/bfc_arena.cc:359 void* Alloc(size_t) Failed to allocate memory for requested buffer"), None)


def no_cuda_memory(patch: Patch, path: Path) -> None:
    run(Session("CUDA failure 2: out of memory ; GPU=0"), None)


def damaged_graph(patch: Patch, path: Path) -> None:
    (path / "onnx").mkdir()
    (path / "onnx" / "encoder.onnx").write_bytes(b"no graph")
    OrtEngine(path, MANIFEST, threads=1)


def device_engine(device: MemoryDevice) -> DeviceEngine:
    return DeviceEngine(device, MANIFEST, HashProgram(device, MANIFEST, MANIFEST.step("scatter"), (4,), (100,)))


def no_gpu_memory(patch: Patch, path: Path) -> None:
    decode_all(device_engine(MemoryDevice(room=1 << 12)), [Request([5, 3])])


def broken_gpu(patch: Patch, path: Path) -> None:
    device = MemoryDevice()
    device.broken = "an illegal memory access was encountered"
    decode_all(device_engine(device), [Request([5, 3])])


def no_driver(patch: Patch, path: Path) -> None:
    patch.setattr("ctypes.CDLL", refuse(errno.ENOENT))
    choose(MANIFEST, engine="trt", bundle=BUNDLE)


def no_provider(patch: Patch, path: Path) -> None:
    patch.setattr("onnxruntime.get_available_providers", lambda: ["CPUExecutionProvider"])
    providers_of("cuda")


def no_package(patch: Patch, path: Path) -> None:
    with needs("ort"):
        raise ModuleNotFoundError("No module named 'sentencepiece'", name="sentencepiece")


def torn_package(patch: Patch, path: Path) -> None:
    with needs("ort"):
        raise ImportError("libgomp.so.1: cannot open shared object file", name="onnxruntime.capi")


FAULTS: dict[Callable[[Patch, Path], None], type[TxportError]] = {
    full_disk: ResourceError,
    quota: ResourceError,
    failing_disk: ResourceError,
    too_many_files: ResourceError,
    full_output: ResourceError,
    no_such_place: InputError,
    no_such_text: InputError,
    no_bundle: BundleError,
    unknown_device: InputError,
    long_source: InputError,
    no_host_memory: ResourceError,
    failing_run: EngineError,
    no_arena: ResourceError,
    no_cuda_memory: ResourceError,
    damaged_graph: BundleError,
    no_gpu_memory: ResourceError,
    broken_gpu: EngineError,
    no_driver: MissingLibrary,
    no_provider: MissingLibrary,
    no_package: MissingLibrary,
    torn_package: MissingLibrary,
}


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_the_class_says_whose_fault_it_is(
    fault: Callable[[Patch, Path], None], monkeypatch: Patch, tmp_path: Path
) -> None:
    with pytest.raises(TxportError) as caught:
        fault(monkeypatch, tmp_path)
    assert type(caught.value) is FAULTS[fault]
    assert "\n" not in str(caught.value) and not str(caught.value).endswith(".")


@pytest.mark.parametrize(
    ("message", "kind"),
    [
        ("std::bad_alloc", ResourceError),
        ("[virtualMemoryBuffer.cpp] Error Code 2: OutOfMemory (Requested size was 8 bytes.)", ResourceError),
        ("Requested amount of GPU memory (8 bytes) could not be allocated", ResourceError),
        ("Error Code 1: Cuda Runtime (an illegal memory access was encountered)", EngineError),
    ],
)
def test_what_libraries_say_of_memory(message: str, kind: type[TxportError]) -> None:
    assert type(failure(message)) is kind
    assert type(failure(message, BundleError)) is (BundleError if kind is EngineError else kind)


LIMITED = """
import resource
import numpy as np
from toy import BUNDLE
from txport.runtime.bundle.manifest import Manifest
from txport.runtime.engines import ort
engine = ort.OrtEngine(BUNDLE, Manifest.load(BUNDLE), threads=1)
zeros = ort.zeros

def zeros_and_limit(tensors, sizes):
    # Nothing is left for buffers of ONNX Runtime itself.
    buffers = zeros(tensors, sizes)
    used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 20),) * 2)
    return buffers

ort.zeros = zeros_and_limit
rows = 200_000
try:
    engine.encode(np.full((rows, 24), 5), np.full(rows, 24))
except Exception as error:
    print(type(error).__name__, error)
"""


@pytest.mark.native("the limit of the address space is the emulator's, which needs more itself")
def test_memory_that_onnx_runtime_itself_lacks() -> None:
    """Its own words, in a process that may not have more."""
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1] / "helpers")}
    command = [sys.executable, "-c", LIMITED]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=500)
    assert done.stdout.startswith("ResourceError ONNX Runtime failed: "), done.stdout + done.stderr
