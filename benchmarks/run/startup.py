"""Start-up of a service: from the start of a process until its first token, in fresh processes."""

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any

from txport.benchmarks.report.schema import Percentiles
from txport.benchmarks.report.statistics import percentiles
from txport.benchmarks.run.worker_process import ContestantFailed

REPEATS = 5
# A program that prints the time of the first token, with the imports of a service.
_PROCESS = """
import json, sys, time
from txport.runtime import Translator
options, source = json.loads(sys.argv[1])
translator = Translator(**options, batch=1)
translator.translate_ids([source], max_length=1)
print(time.time())
"""


def startup(description: dict[str, Any], source: Sequence[int], repeats: int) -> Percentiles:
    """Return the milliseconds of `repeats` processes in sequence. The files are in the system's cache.

    Args:
        description: keywords of the Translator.
        source: ids of a sentence.
        repeats: number of processes.

    Raises:
        ContestantFailed: a process failed.
    """
    argument = json.dumps([description, source])
    times = []
    for _ in range(repeats):
        started = time.time()
        done = subprocess.run([sys.executable, "-c", _PROCESS, argument], capture_output=True, text=True, timeout=300)
        if done.returncode:
            raise ContestantFailed(done.stderr.strip().splitlines()[-1])
        times.append((float(done.stdout) - started) * 1e3)
    return percentiles(times)
