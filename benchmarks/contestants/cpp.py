"""The C++ runtime through txport-bench, which times its calls itself. A turn is one run of this program."""

import json
import os
import subprocess
import time
from typing import Any

from txport.benchmarks.contestants.backend import DEFAULT, Backend, Setting, Task

CPP_FORMAT = "txport-bench"
CPP_FORMAT_VERSION = 1
CPP_NAME = "txport, C++"
STARTS = 5  # the page cache makes later starts faster, so one start is not representative


class CppBackend(Backend):
    """A bundle with txport-bench, which generates its own random ids and ends a sentence at eos.

    Args:
        tool: the program.
        bundle, device, engine, lowering, threads: as for `txport.runtime.translator.Translator`.
    """

    def __init__(self, tool: str, bundle: str, device: str, engine: str, lowering: str | None, threads: int) -> None:
        self._command = [tool, bundle, "--device", device, "--engine", engine]
        self._threads = str(threads)
        if lowering is not None:
            self._command += ["--lowering", lowering]
        self._task: Task | None = None
        self.peak_resident_bytes: int | None = None
        starts = [self._start() for _ in range(STARTS)]
        self.startup_ms = [milliseconds for milliseconds, _ in starts]
        report = starts[-1][1]
        if device == "auto":
            self.device = "cpu"
        else:
            self.device = device
        version = report["made_by"]["version"]
        self.engine = f"txport-bench {version}, {report['engine']}; each round is the median of its calls"

    def prepare(self, task: Task, setting: Setting) -> None:
        """Store the sizes, and `setting["threads"]` if it exists."""
        task.greedy_only()
        if not task.fixed:
            raise ValueError("txport-bench measures fixed workloads only")
        self._task = task
        self._threads = setting.get("threads", self._threads).replace(DEFAULT, "0")

    def call(self) -> None:
        """Do nothing; see `turn`."""

    def turn(self, calls: int, seconds: float) -> dict[str, list[float]]:
        """Run the program once; return the milliseconds of the median call and its parts.

        The time of a call is that of a token times the tokens of the task, because sentences may end early at eos.
        """
        assert self._task is not None
        task = self._task
        figures = self._run(len(task.sources), len(task.sources[0]), task.target, calls, seconds)["figures"]
        self.peak_resident_bytes = figures["peak_resident_bytes"]
        return {
            "call": [figures["ms_per_token"]["p50"] * task.target],
            "encoder": [figures["encoder_ms"]["p50"]],
            "first_token": [figures["first_token_ms"]["p50"]],
        }

    def _start(self) -> tuple[float, dict[str, Any]]:
        """Return the milliseconds of a new process until its first token, and its JSON output.

        The clock of the program starts in `main`. The time to load its libraries is measured by a second process that
        only prints the version.
        """
        started = time.perf_counter()
        subprocess.run([self._command[0], "--version"], check=True, capture_output=True)
        loading = (time.perf_counter() - started) * 1e3
        report = self._run(1, 1, 1, 1, 1.0)
        return loading + report["figures"]["startup_ms"], report

    def _run(self, batch: int, source: int, target: int, calls: int, seconds: float) -> dict[str, Any]:
        sizes = {"batch": batch, "source": source, "target": target, "calls": calls, "seconds": seconds}
        sizes["threads"] = int(self._threads)
        options = [word for name, value in sizes.items() for word in (f"--{name}", str(value))]
        done = subprocess.run([*self._command, *options], capture_output=True, text=True, env=os.environ)
        if done.returncode:
            raise RuntimeError(done.stderr.strip() or f"txport-bench ended with exit code {done.returncode}")
        report: dict[str, Any] = json.loads(done.stdout)
        if report.get("format") != CPP_FORMAT or report.get("format_version") != CPP_FORMAT_VERSION:
            raise RuntimeError("the program is another version of txport-bench, with another JSON format")
        return report

    def ids(self) -> list[list[int]]:
        """Return an empty list, because txport-bench does not print ids."""
        return []
