"""The C++ runtime on ONNX Runtime's own CUDA provider: opened, captured and refused as in Python."""

import os
import subprocess
from pathlib import Path

import onnxruntime
import pytest

IS_1_23 = onnxruntime.__version__.startswith("1.23.")
pytestmark = [
    pytest.mark.cuda_provider,
    pytest.mark.skipif("TXPORT_CPP_BUILD" not in os.environ, reason="needs the C++ runtime: make cpp-build"),
    pytest.mark.skipif(
        onnxruntime.__version__.startswith("1.23."),
        reason="is older than the headers that the C++ runtime is built with",
    ),
]
STUBS = Path(os.environ.get("TXPORT_CUDA_STUBS", ""))
LINES = "it cost $12.50\nroom 7\n"


def translate(
    bundle: Path, *options: str, folder: str = "cudnn", **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run txport-translate with the library of the Python package."""
    (library,) = Path(onnxruntime.__file__).with_name("capi").glob("libonnxruntime.so.*")
    named = {"TXPORT_ONNXRUNTIME": str(library), "LD_LIBRARY_PATH": str(STUBS / folder)}
    command = [Path(os.environ["TXPORT_CPP_BUILD"]) / "txport-translate", bundle, *options]
    return subprocess.run(
        command, input=LINES, env={**os.environ, **named, **environment}, capture_output=True, text=True, timeout=500
    )


@pytest.mark.parametrize("lowering", ["ort", "scatter", "tensorscatter"])
def test_steps_are_captured(float16_bundle: Path, lowering: str) -> None:
    """A warning would say if they were launched one by one."""
    done = translate(float16_bundle, "--device", "cuda", "--lowering", lowering)
    assert (done.returncode, done.stderr, done.stdout.count("\n")) == (0, "", LINES.count("\n"))


@pytest.mark.parametrize(
    ("folder", "driver", "reason"),
    [
        (
            "no-cudnn",
            "13000",
            "libcudnn.so.9 is missing, install it in a folder of the loader, for example of LD_LIBRARY_PATH",
        ),
        (
            "cudnn",
            "12040",
            f"ONNX Runtime {onnxruntime.__version__} is built for CUDA 13 and the NVIDIA driver supports CUDA 12.4 at "
            "most: update the driver to 580 or newer, or install an onnxruntime-gpu for CUDA 12",
        ),
    ],
)
def test_what_is_missing_is_said_when_it_is_opened(float16_bundle: Path, folder: str, driver: str, reason: str) -> None:
    def run(device: str) -> subprocess.CompletedProcess[str]:
        return translate(float16_bundle, "--device", device, folder=folder, TXPORT_TEST_CUDA_VERSION=driver)

    said = f"txport-translate: ONNX Runtime cannot start its CUDA provider: {reason}; or use device cpu"
    refused, automatic = run("cuda"), run("auto")
    assert (refused.returncode, refused.stdout, refused.stderr) == (2, "", said + "\n")
    assert automatic.stderr == said + "; the CPU is used instead\n"
    assert (automatic.returncode, automatic.stdout) == (0, run("cpu").stdout)
