"""A process that runs one contestant: it reads requests and writes replies, one JSON object per line.

In a separate process, a contestant cannot crash the whole run, its memory can be measured, and it can use another
Python or other settings of its libraries. `txport.benchmarks.run.worker_process` contains the side of the parent.
"""

import contextlib
import importlib
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

from txport.benchmarks.contestants.backend import BACKENDS, Backend, SelfTimed, Task
from txport.benchmarks.report.statistics import warm_up
from txport.runtime.system import end_with_parent, process_memory

FAST = 0.2  # share of a turn. If a call is shorter, a turn begins with one untimed call.

Json = dict[str, Any]


class Worker:
    """Handlers of the requests. Each public method handles one kind, and its result is the reply."""

    def __init__(self) -> None:
        self._backend: Backend | None = None
        self._task: Task | None = None
        self._last_call = 0.0  # seconds

    def load(self, kind: str, description: Json) -> Json:
        """Load the contestant. The reply contains the times of its start if the backend measures them itself."""
        module, name = BACKENDS[kind]
        self._backend = getattr(importlib.import_module(module), name)(**description)
        if isinstance(self._backend, SelfTimed):
            startups = self._backend.startup_ms
        else:
            startups = []
        return {"engine": self._backend.engine, "device": self._backend.device, "startup_ms": startups}

    def task(self, task: Json) -> Json:
        """Receive a task. The peak of memory is measured from this request on."""
        self._task = Task(**task)
        with contextlib.suppress(OSError):  # some containers do not allow it
            Path("/proc/self/clear_refs").write_text("5")
        return {}

    def warm(self, setting: dict[str, str], seconds: float, best: float | None) -> Json:
        """Prepare the task with a setting and warm up for at most `seconds`.

        The reply contains the milliseconds of each call, and the ids. `best` is the median call with another setting. A
        much slower setting is abandoned early.
        """
        backend, task = self._ready()
        backend.prepare(task, setting)
        if isinstance(backend, SelfTimed):
            return {"times": backend.turn(3, seconds)["call"], "ids": []}
        times = warm_up(lambda: _timed(backend.call), seconds, best)
        for part in backend.parts().values():
            part()
        return {"times": times, "ids": backend.ids()}

    def turn(self, calls: int, seconds: float) -> Json:
        """Call for `seconds` or `calls` times, at least once; return the milliseconds of each call and its parts."""
        backend, _ = self._ready()
        if isinstance(backend, SelfTimed):
            return {"times": backend.turn(calls, seconds)}
        times: dict[str, list[float]] = {"call": []}
        parts = backend.parts()
        if self._last_call < FAST * seconds:
            backend.call()
        end = time.perf_counter() + seconds
        while not times["call"] or (len(times["call"]) < calls and time.perf_counter() < end):
            for name, part in parts.items():
                times.setdefault(name, []).append(_timed(part))
            times["call"].append(_timed(backend.call))
        self._last_call = times["call"][-1] / 1e3
        return {"times": times}

    def memory(self) -> Json:
        """Return the peak of resident bytes since the task was received."""
        backend = self._backend
        if isinstance(backend, SelfTimed):
            peak = backend.peak_resident_bytes
        else:
            peak = process_memory("VmHWM")
        return {"peak_resident_bytes": peak}

    def _ready(self) -> tuple[Backend, Task]:
        assert self._backend is not None and self._task is not None  # the parent sends requests in this order
        return self._backend, self._task


def _timed(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return (time.perf_counter() - start) * 1e3


def serve(requests: TextIO, replies: TextIO) -> None:
    """Answer requests until their end. Errors are sent as replies and handled by the parent."""
    worker = Worker()
    for line in requests:
        request = json.loads(line)
        try:
            reply = {"ok": getattr(worker, request.pop("do"))(**request)}
        except Exception as error:
            reply = {"error": f"{type(error).__name__}: {str(error).strip() or 'no message'}"}
        replies.write(json.dumps(reply) + "\n")
        replies.flush()


def main() -> None:
    """Run the command."""
    end_with_parent()
    # Libraries may print to standard output (descriptor 1), so replies have another descriptor.
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    serve(sys.stdin, replies)


if __name__ == "__main__":
    main()
