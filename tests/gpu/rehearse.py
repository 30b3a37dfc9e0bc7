"""Rehearses every call of the runbook without a GPU, in order: python tests/gpu/rehearse.py PARTS SCRATCH

PARTS is what `make gpu-kit` wrote. Calls run as on the device, over a driver in host memory: ONNX Runtime computes on
the CPU, TensorRT's patterns by TensorRT-RTX's networks, and training takes seconds. The table has the seconds of this
machine beside the budget of the device. The exit code is 1 if a call failed.
"""

import argparse
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

from host_driver import build_driver

# Seconds of the device for each call: estimated, and the limit that calls.sh sets (of `unpack`, estimated too).
BUDGET = {
    "unpack": (130, 130),
    "a": (180, 222),
    "b": (110, 150),
    "c": (60, 200),
    "d": (240, 240),
    "e": (100, 102),
    "f": (90, 108),
}
START = 110  # seconds to get a machine and to reach it, once


def rehearse(parts: Path, scratch: Path, python: str = sys.executable) -> dict[str, tuple[int, float]]:
    """Run all calls in a new directory; return their exit codes and seconds.

    Args:
        parts: the directory of the kit's parts.
        scratch: replaced.
        python: the interpreter of the calls.
    """
    shutil.rmtree(scratch, ignore_errors=True)
    (scratch / "driver").mkdir(parents=True)
    driver = build_driver(scratch / "driver").resolve()
    for part in parts.iterdir():
        (scratch / part.name).symlink_to(part.resolve())
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "TXPORT_"))},
        "DRIVER": str(driver),
        "PYTHON": python,
        "OUT": str((scratch / "out").resolve()),
        "WAIT": "7200",  # seconds in which builds must end; the device's limit would be too short here
    }
    results = {}
    for call in BUDGET:
        start = time.monotonic()
        done = subprocess.run(["bash", "calls.sh", call], cwd=scratch, env=environment)
        results[call] = done.returncode, time.monotonic() - start
    return results


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", type=Path)
    parser.add_argument("scratch", type=Path)
    options = parser.parse_args()
    if not (options.parts / "kit.sha256").exists():
        raise SystemExit(f"rehearse.py: {options.parts} contains no kit: run make gpu-kit")
    results = rehearse(options.parts, options.scratch)
    print("| call | exit code | seconds here | seconds on a GPU |\n| --- | --- | --- | --- |")
    for call, (code, seconds) in results.items():
        print(f"| {call} | {code} | {seconds:.0f} | {BUDGET[call][0]} to {BUDGET[call][1]} |")
    least, most = ((START + sum(each)) / 60 for each in zip(*BUDGET.values(), strict=True))
    print(f"\nOn a GPU: {least:.0f} to {most:.0f} minutes, of which {START} s are the start.")
    for file in sorted((options.scratch / "out").iterdir()):
        print(f"{file.stat().st_size / 1e6:8.1f} MB  {file.name}")
    sys.exit(any(code for code, _ in results.values()))


if __name__ == "__main__":
    main()
