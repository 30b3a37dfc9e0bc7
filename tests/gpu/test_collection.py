"""Tests that need a GPU: skipped without one unless there must be one, collected whichever library is missing."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# Named as a plugin of pytest, so that it is imported before anything else.
REFUSE = """
import sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {names}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Refuse())
"""


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    plugins = [word for name in ("cacheprovider", "xdist", "hypothesispytest") for word in ("-p", f"no:{name}")]
    command = [sys.executable, "-m", "pytest", *plugins, *arguments]
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    environment = {**inherited, "CUDA_VISIBLE_DEVICES": "", **environment}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, cwd=ROOT)


def test_without_a_gpu_they_are_skipped_unless_there_must_be_one() -> None:
    one = "tests/gpu/test_device.py::test_any_thread_may_use_a_device"
    skipped = run("-rs", one)
    assert skipped.returncode == 0 and "needs an NVIDIA GPU: there is no NVIDIA" in skipped.stdout, skipped.stdout
    failed = run(one, TXPORT_NEEDS_GPU="1")
    assert failed.returncode == 1 and "needs an NVIDIA GPU: there is no NVIDIA" in failed.stdout, failed.stdout


@pytest.mark.parametrize(
    "missing",
    [
        # CPython 3.10 with TensorRT 8.6 alone; ONNX Runtime alone.
        {"onnxruntime", "sentencepiece", "hypothesis", "torch", "onnx", "onnx_ir", "rich"},
        {"tensorrt", "tensorrt_rtx", "tensorrt_rtx_bindings", "hypothesis", "torch", "onnx", "onnx_ir"},
        {"cuda", "onnxruntime", "tensorrt_rtx_bindings", "torch"},
    ],
)
def test_they_are_collected_without_what_they_do_not_need(missing: set[str], tmp_path: Path) -> None:
    (tmp_path / "refuse.py").write_text(REFUSE.format(names=sorted(missing)))
    done = run("-p", "refuse", "--collect-only", "-q", "-m", "gpu", "tests/gpu", PYTHONPATH=str(tmp_path))
    assert "error" not in done.stdout.lower() and done.returncode == 0, done.stdout + done.stderr
    golden = done.stdout.count("test_golden_cases_in_any_batch_and_after_any_refill")
    assert golden == 3 * (3 * 2 + 1), "three bundles: each lowering, captured and not, and TensorRT"
