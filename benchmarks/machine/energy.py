"""Energy meters: what the machine reports of itself, idle power included, as joules since the meter was opened."""

import contextlib
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from txport.benchmarks.machine.nvml import Nvml
from txport.benchmarks.machine.tegrastats import Integral

INTERVAL_MS = 100


class Meter(Protocol):
    """Something that counts joules."""

    source: str

    def joules(self) -> float:
        """Since the meter was opened."""


class NvmlMeter:
    """The first GPU's own counter."""

    source = "NVML's energy counter of the GPU"

    def __init__(self, nvml: Nvml) -> None:
        self._nvml = nvml

    def joules(self) -> float:
        """Of the GPU alone."""
        return self._nvml.joules() or 0.0


class TegrastatsMeter:
    """The power rails of a Jetson, by a tegrastats that runs as long as the meter."""

    source = f"tegrastats, every {INTERVAL_MS} ms, the module's input"

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process, self._total, self._lock = process, Integral(), threading.Lock()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with self._lock:
                self._total.add(line, time.monotonic())

    def joules(self) -> float:
        """Of the module, or of the board where only that is measured."""
        with self._lock:
            return self._total.joules(time.monotonic())


@contextmanager
def open_meter(nvml: Nvml | None) -> Iterator[Meter | None]:
    """The meter of this machine, None if it has none; a GPU's own says nothing of the processor."""
    tool = shutil.which("tegrastats")
    if tool is not None:
        process = subprocess.Popen(
            [tool, "--interval", str(INTERVAL_MS)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        try:
            yield TegrastatsMeter(process)
        finally:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(5)
    elif nvml is not None and nvml.joules() is not None:
        yield NvmlMeter(nvml)
    else:
        yield None
