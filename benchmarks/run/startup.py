"""Start-up of a service: from the start of a process until it has made its first token, in fresh processes."""

import json
import subprocess
import sys
import time
from pathlib import Path

from txport.benchmarks.report.schema import Percentiles
from txport.benchmarks.report.statistics import percentiles
from txport.benchmarks.run.worker_process import ContestantFailed

REPEATS = 5
# Prints the moment of the first token. What it imports is what a service imports.
_PROCESS = """
import json, sys, time
from txport.runtime import Translator
bundle, device, lowering, threads, source = json.loads(sys.argv[1])
translator = Translator(bundle, device, lowering, threads, batch=1)
translator.translate_ids([source], max_length=1)
print(time.time())
"""


def startup(
    bundle: Path, device: str, lowering: str | None, threads: int, source: list[int], repeats: int = REPEATS
) -> Percentiles:
    """Milliseconds, of `repeats` processes one after the other; the files are in the system's cache by then.

    Raises:
        ContestantFailed: a process failed.
    """
    given = json.dumps([str(bundle), device, lowering, threads, source])
    times = []
    for _ in range(repeats):
        started = time.time()
        done = subprocess.run([sys.executable, "-c", _PROCESS, given], capture_output=True, text=True, timeout=300)
        if done.returncode:
            raise ContestantFailed(done.stderr.strip().splitlines()[-1])
        times.append((float(done.stdout) - started) * 1e3)
    return percentiles(times)
