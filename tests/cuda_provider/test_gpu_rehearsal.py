"""What needs a GPU, rehearsed on ONNX Runtime's own CUDA provider: all of tests/gpu but what ids come out."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from page import findings

RUN = Path(__file__).parents[1] / "gpu" / "run.py"
STUBS = os.environ.get("TXPORT_CUDA_STUBS", "")
pytestmark = pytest.mark.skipif(not STUBS, reason="needs onnxruntime-gpu over stand-ins: make test-cuda-provider")


def test_every_step(tmp_path: Path, bundle: Path, float16_bundle: Path, island_bundle: Path) -> None:
    for each in (bundle, float16_bundle, island_bundle):
        (tmp_path / each.name).symlink_to(each)
    command = [sys.executable, RUN, tmp_path / "out", "--bundles", tmp_path, "--driver", Path(STUBS, "cudnn")]
    # The C++ tools find ONNX Runtime by other means: test_cpp.py has them.
    environment = {name: value for name, value in os.environ.items() if name != "TXPORT_CPP_BUILD"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
    found = findings(tmp_path / "out/results")
    assert done.returncode == 0, [each for each in found.values() if each["outcome"] not in ("passed", "skipped")]
    passed = {name.partition("::")[2].partition("[")[0] for name, each in found.items() if each["outcome"] == "passed"}
    assert passed >= {
        "test_the_cuda_provider_loads",
        "test_golden_cases_in_any_batch_and_after_any_refill",
        "test_no_captured_node_depends_on_the_host",
        "test_operators_may_be_captured",
        "test_ort_in_float32_is_refused_by_name",
        "test_memory_that_is_exhausted_is_said_and_the_engine_goes_on",
    }
    assert "## nodes of a captured step" in (tmp_path / "out/results/report.md").read_text()
