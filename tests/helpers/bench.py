"""tx-bench as a user runs it, in a process of its own."""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

# The probe reads two small arrays instead of five, up to a gigabyte.
_RUN = """
import sys
from txport.benchmarks.entry import bench
from txport.benchmarks.machine import probe
probe.SIZES = (1 << 20, 8 << 20)
sys.argv[0] = "tx-bench"
bench()
"""
# Seconds in all: two batch sizes, few tokens, one thread, a few calls.
SMALL = ("--threads", 1, "--target", 6, "--source", 7, "--seconds", 0.3, "--calls", 2, "--peer-seconds", 0.1)


def command(*arguments: str | Path | float) -> list[str]:
    """What to run."""
    return [sys.executable, "-c", _RUN, *map(str, arguments)]


def tx_bench(*arguments: str | Path | float, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run it to its end."""
    return subprocess.run(command(*arguments), capture_output=True, text=True, timeout=300, cwd=cwd)


def assert_refused(done: subprocess.CompletedProcess[str], code: int, words: Sequence[str]) -> None:
    """It ended with this code and one sentence that holds all of these words."""
    assert done.returncode == code, (done.stdout, done.stderr)
    assert "Traceback" not in done.stderr
    last = done.stderr.strip().splitlines()[-1]
    for word in words:
        assert word in last, last
