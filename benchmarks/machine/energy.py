"""Energy as the machine reports it, idle power included: NVML's counter of a GPU, or tegrastats on a Jetson."""

import contextlib
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from txport.benchmarks.machine.nvml import Nvml
from txport.benchmarks.machine.tegrastats import EnergyCounter

INTERVAL_MS = 100

# Joules consumed so far; only differences mean something.
Meter = Callable[[], float]


@contextmanager
def open_meter(gpu: Nvml | None) -> Iterator[Meter | None]:
    """The meter of this machine: tegrastats if there is one, else that of the GPU; None if neither exists.

    Args:
        gpu: the GPU that does the work, None if the processor does: a GPU's counter does not include it.
    """
    tool = shutil.which("tegrastats")
    if tool is not None:
        with _tegrastats(tool) as meter:
            yield meter
    elif gpu is not None and gpu.joules() is not None:
        yield lambda: gpu.joules() or 0.0
    else:
        yield None


@contextmanager
def _tegrastats(tool: str) -> Iterator[Meter]:
    """Energy of the module, or of the board where only that is measured."""
    counter = EnergyCounter()
    command = [tool, "--interval", str(INTERVAL_MS)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)

    def read() -> None:
        assert process.stdout is not None
        for line in process.stdout:
            counter.add(line, time.monotonic())

    threading.Thread(target=read, daemon=True).start()
    try:
        yield lambda: counter.joules(time.monotonic())
    finally:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(5)
