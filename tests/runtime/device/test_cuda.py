"""The device layer over a driver in host memory, in processes of their own."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from host_driver import build_driver

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_driver(tmp_path_factory.mktemp("driver"))


@pytest.mark.parametrize("kind", ["lazy", "eager"])
def test_over_a_driver_in_host_memory(kind: str, driver: Path, bundle: Path) -> None:
    pytest.importorskip("cuda.bindings", reason="needs cuda-python: pip install 'txport[trt]'")
    environment = {
        **os.environ,
        "LD_LIBRARY_PATH": str(driver),
        "TXPORT_TEST_CUDA": kind,
        "TXPORT_TEST_BUNDLE": str(bundle),
    }
    checks = str(Path(__file__).with_name("cuda_checks.py"))
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", checks]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed and int(passed[1]) >= (8 if kind == "lazy" else 4), done.stdout
