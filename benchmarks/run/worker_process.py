"""The parent's side of the process of a contestant: requests with a timeout, and suspension while others run."""

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from txport.benchmarks.run import worker

_CHUNK = 1 << 16


class ContestantFailed(Exception):
    """A contestant that cannot continue; the message is a sentence for the report."""


class WorkerProcess:
    """The process of one contestant. Between requests it is stopped (SIGSTOP), as its threads would slow down others.

    Args:
        python: another interpreter, which need not have txport installed; None for this one.
        environment: variables that are added to the environment of this process.
    """

    def __init__(self, python: str | None, environment: Mapping[str, str]) -> None:
        self._scratch = tempfile.TemporaryDirectory(prefix="txport-bench-")
        self._log = Path(self._scratch.name, "stderr")
        path = os.pathsep.join(filter(None, [package_path(Path(self._scratch.name)), os.environ.get("PYTHONPATH")]))
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [python or sys.executable, "-m", worker.__name__],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env={**os.environ, **environment, "PYTHONPATH": path},
                start_new_session=True,  # Ctrl-C reaches only the parent
            )
        self._buffer = b""
        self._out_of_step = False  # its next reply would answer a request that timed out

    @property
    def pid(self) -> int:
        return self._process.pid

    def alive(self) -> bool:
        """Return whether it can answer another request."""
        return not self._out_of_step and self._process.poll() is None

    def ask(self, within: float, /, **request: Any) -> dict[str, Any]:
        """Send a request and wait for its reply.

        Raises:
            ContestantFailed: the process ended, did not answer in time, or answered with an error.
        """
        assert self._process.stdin is not None
        with self._running():
            try:
                self._process.stdin.write(json.dumps(request).encode() + b"\n")
                self._process.stdin.flush()
            except BrokenPipeError:
                raise ContestantFailed(self._ending()) from None
            line = self._read_line(time.monotonic() + within, within)
        reply: dict[str, Any] = json.loads(line)
        if "error" in reply:
            raise ContestantFailed(_one_line(reply["error"]))
        return dict(reply["ok"])

    @contextmanager
    def _running(self) -> Iterator[None]:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGCONT)
        try:
            yield
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGSTOP)

    def _read_line(self, deadline: float, seconds: float) -> bytes:
        assert self._process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            # Not `readline`, which has no timeout.
            while b"\n" not in self._buffer:
                if not selector.select(max(0.0, deadline - time.monotonic())):
                    self._out_of_step = True
                    raise ContestantFailed(f"it did not answer within {seconds:.0f} s and was ended")
                chunk = os.read(self._process.stdout.fileno(), _CHUNK)
                if not chunk:
                    raise ContestantFailed(self._ending())
                self._buffer += chunk
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line

    def _ending(self) -> str:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(5)  # its output may end a moment before the process does
        code = self._process.returncode
        if code is not None and code < 0:
            cause = f"by signal {-code}"
        else:
            cause = f"with exit code {code}"
        lines = self._log.read_bytes().decode(errors="replace").strip().splitlines()
        return _one_line(f"its process ended {cause}" + (f": {lines[-1]}" if lines else ""))

    def close(self) -> None:
        """End the process and all processes that it started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            with contextlib.suppress(BrokenPipeError):
                stream.close()
        self._scratch.cleanup()


def package_path(scratch: Path) -> str:
    """Return a folder with a link to this installation of `txport`, for interpreters without it."""
    link = scratch / "path" / "txport"
    link.parent.mkdir(exist_ok=True)
    if not link.is_symlink():
        link.symlink_to(Path(worker.__file__).resolve().parents[2])
    return str(link.parent)


def prepare(command: list[str], python: str | None, seconds: float) -> None:
    """Run a module that a contestant needs before it is loaded.

    Raises:
        ContestantFailed: the module failed; the message ends with the last line of its standard error.
    """
    with tempfile.TemporaryDirectory(prefix="txport-bench-") as scratch:
        environment = {**os.environ, "PYTHONPATH": package_path(Path(scratch))}
        try:
            command = [python or sys.executable, "-m", *command]
            done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=seconds)
        except subprocess.TimeoutExpired:
            raise ContestantFailed(f"its weights were not converted within {seconds:.0f} s") from None
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise ContestantFailed(_one_line(f"its weights were not converted: {reason}"))


def _one_line(text: str) -> str:
    return " ".join(text.split())[:300]  # messages of compilers may have thousands of lines
