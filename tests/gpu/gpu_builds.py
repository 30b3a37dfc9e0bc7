"""Builds TensorRT engines for the tests in tests/gpu, within the time that is left, and keeps what is said of them."""

import gzip
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from txport.exporter.engines.inspector import engine_layers
from txport.runtime.bundle.manifest import WEIGHTS, Manifest
from txport.runtime.engines.directories import directories, user_engines
from txport.runtime.engines.tensorrt import TensorRt

COMMAND = "import sys; sys.argv[0] = 'tx-build'; from txport.exporter.entry import build; build()"
LARGE = 50_000_000  # bytes of weights above which one cache length is all there is time for
RESERVE = 20.0  # seconds to write down what was found


def sizes(manifest: Manifest) -> list[str]:
    """Options of tx-build."""
    rows = [str(size) for size in (1, 8, 32) if size <= manifest.limits.batch]
    lengths = (64,) if manifest.files[WEIGHTS].bytes > LARGE else (32, 128)
    targets = [str(length) for length in lengths if length <= manifest.limits.target] or [str(manifest.limits.target)]
    return ["--batch-buckets", ",".join(rows), "--max-batch", rows[-1], "--target-buckets", ",".join(targets)]


def engines_of(bundle: Path) -> list[Path]:
    """Directories of the engines that tx-build made of a bundle for this user."""
    return directories(user_engines(Manifest.load(bundle)))


def tx_build(bundle: Path, *more: str) -> dict[str, Any]:
    """Build until the time of the run is over, which tests/gpu/run.py sets; returns the record that tx-build prints."""
    left = float(os.environ.get("TXPORT_GPU_END", time.time() + 900)) - time.time() - RESERVE
    if left <= 0:
        pytest.fail(f"no time was left to build engines of {bundle.name}: give more with --minutes", pytrace=False)
    options = [*sizes(Manifest.load(bundle)), "--json", "--timeout", f"{left:.1f}", *more]
    try:
        command = [sys.executable, "-c", COMMAND, str(bundle), *options]
        done = subprocess.run(command, capture_output=True, text=True, timeout=left + RESERVE / 2)
    except subprocess.TimeoutExpired:
        pytest.fail(f"tx-build {bundle.name} did not end within {left:.0f} s", pytrace=False)
    print(done.stderr)
    assert done.returncode == 0, (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
    assert "have not been tried" not in done.stderr, "they answered the golden cases"
    record: dict[str, Any] = json.loads(done.stdout)
    return record


def keep_inspector(tensorrt: TensorRt, bundle: Path, kept: Path) -> list[Path]:
    """What the inspector says of each engine of a bundle: names, types and tactics of its layers, as JSON in gzip."""
    files = []
    for plan in (plan for directory in engines_of(bundle) for plan in sorted(directory.glob("*.plan"))):
        held = tensorrt.open_engine(plan.read_bytes(), False)
        files.append(kept / f"{bundle.name}.{plan.stem}.json.gz")
        with gzip.open(files[-1], "wt") as file:
            json.dump(engine_layers(tensorrt, held[1]), file)
    return files
