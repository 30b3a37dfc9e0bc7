"""A real tx-serve in a separate process, on a free port of the loopback address, and clients for it."""

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import Any

from toy import BUNDLE

RUN = "import sys; sys.argv[0] = 'tx-serve'; from txport.runtime.entry import serve; serve()"
PAIR = f"en-de={BUNDLE}"


class Served:
    """A server.

    Attributes:
        port: port of the server.
        logs: log lines so far, as objects.
    """

    def __init__(self, *arguments: str, code: str = RUN, **environment: str) -> None:
        command = [sys.executable, "-c", code, *(arguments or (PAIR,)), "--port", "0", "--threads", "1"]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=os.environ | environment)
        self.logs: list[dict[str, Any]] = []
        self.raw: list[str] = []
        self._reader = Thread(target=self._read, daemon=True)
        self._reader.start()
        self.port = int(self.wait("listening")["port"])
        self.wait("ready")

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.raw.append(line)
            self.logs.append(json.loads(line) if line.startswith("{") else {"event": "words", "message": line})

    def wait(self, event: str, count: int = 1, seconds: float = 60) -> dict[str, Any]:
        """Wait for an event in the log and return its line."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            found = [line for line in self.logs if line["event"] == event]
            if len(found) >= count:
                return found[count - 1]
            assert self.process.poll() is None or self._reader.is_alive(), "".join(self.raw)
            time.sleep(0.01)
        raise AssertionError(f"no {event} in {seconds} s: {''.join(self.raw)}")

    def end(self, number: int = signal.SIGTERM) -> int:
        """Send a signal, wait for the end, and return the exit code."""
        self.process.send_signal(number)
        code = self.process.wait(60)
        self._reader.join(60)
        return code

    def connection(self) -> http.client.HTTPConnection:
        """Return a new connection."""
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)

    def socket(self, receive_buffer: int = 0) -> socket.socket:
        """Return a raw connection, optionally with a small receive buffer."""
        raw = socket.socket()
        if receive_buffer:
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        raw.settimeout(60)
        raw.connect(("127.0.0.1", self.port))
        return raw

    def get(self, path: str, **headers: str) -> tuple[int, Any]:
        """Return the status and JSON of a path."""
        return self._ask("GET", path, None, headers)[:2]

    def ask(self, **fields: Any) -> tuple[int, Any]:
        """Request a translation; return the status and JSON."""
        return self.post(json.dumps(fields).encode())[:2]

    def post(
        self, body: bytes, content_type: str = "application/json", path: str = "/translate", **headers: str
    ) -> tuple[int, Any, dict[str, str]]:
        """Send a body; return the status, JSON and headers."""
        return self._ask("POST", path, body, {"Content-Type": content_type, **headers})

    def _ask(
        self, method: str, path: str, body: bytes | None, headers: dict[str, str]
    ) -> tuple[int, Any, dict[str, str]]:
        connection = self.connection()
        try:
            connection.request(method, path, body, {name.replace("_", "-"): value for name, value in headers.items()})
            answer = connection.getresponse()
            text = answer.read().decode()
            found = json.loads(text) if "json" in answer.headers["Content-Type"] else text
            return answer.status, found, dict(answer.headers)
        finally:
            connection.close()

    def metric(self, name: str, **labels: str) -> float:
        """Return the value of a metric, parsed by prometheus-client; 0 if it is missing."""
        from prometheus_client.parser import text_string_to_metric_families

        _, text = self.get("/metrics")
        samples = (sample for family in text_string_to_metric_families(text) for sample in family.samples)
        return sum(s.value for s in samples if s.name == name and labels.items() <= s.labels.items())

    def until(self, name: str, value: float, seconds: float = 30, **labels: str) -> None:
        """Wait until a metric has a value."""
        end = time.monotonic() + seconds
        while (now := self.metric(name, **labels)) != value:
            assert time.monotonic() < end, f"{name} is {now}, not {value}, after {seconds} s"
            time.sleep(0.02)


@contextmanager
def serving(*arguments: str, code: str = RUN, **environment: str) -> Iterator[Served]:
    """Start a server, and kill it at the end if it is still running."""
    server = Served(*arguments, code=code, **environment)
    try:
        yield server
    finally:
        server.process.kill()
        server.process.wait()


def status_of(client: socket.socket) -> int:
    """Return the status of the next response of a connection."""
    return int(client.recv(1 << 12).split()[1])


def events(text: str) -> list[tuple[str, dict[str, Any]]]:
    """Return the names and fields of server-sent events."""
    found = []
    for block in text.strip().split("\n\n"):
        name, data = block.split("\n")
        found.append((name.removeprefix("event: "), json.loads(data.removeprefix("data: "))))
    return found


def slow_engine(seconds: float) -> str:
    """Return the program of a server whose groups of steps take this time, since the toy model is too fast."""
    return f"""
import time
from txport.runtime.engines.ort_state import OrtState
step = OrtState.step
def slow(self, *arguments):
    time.sleep({seconds})
    return step(self, *arguments)
OrtState.step = slow
{RUN}"""


def memory_of(process: int) -> int:
    """Return the resident bytes of a process."""
    pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGESIZE")
