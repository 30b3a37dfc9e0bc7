"""Console scripts and `python` that start at once: forks of a process that has imported PyTorch and txport.

`warm_commands()` returns a folder of scripts with the same names. Each is a process with arguments, standard streams,
environment, folder, exit code and signals of its own. Only imports are shared, so use these scripts where imports are
not the subject of a test.

`python warm.py SOCKET` is the process that forks.
"""

import atexit
import contextlib
import functools
import gc
import importlib
import json
import os
import random
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from txport.runtime.system import end_with_parent

SCRIPTS = Path(sys.executable).parent
IMPORTED = (
    "txport.training.train_command",
    "txport.training.loop",
    "txport.training.evaluate_command",
    "txport.exporter.export",
    "txport.exporter.hub.get_command",
    "txport.models.importers.command",
)
# A client: it passes everything on, forwards signals, and ends as the fork does.
CLIENT = """#!{python} -IS
import json, os, signal, socket, sys

server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
server.connect({address!r})
call = {{"arguments": sys.argv, "folder": os.getcwd(), "environment": dict(os.environ)}}
socket.send_fds(server, [json.dumps(call).encode()], [0, 1, 2])
child = int(server.recv(64))
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, lambda number, frame: os.kill(child, number))
code = os.waitstatus_to_exitcode(int(server.recv(64)))
if code < 0:
    signal.signal(-code, signal.SIG_DFL)
    os.kill(os.getpid(), -code)
sys.exit(code)
"""


@functools.cache
def warm_commands() -> Path:
    """Start the process that forks, with one thread, and return the folder of scripts. Both end with this process."""
    folder = Path(tempfile.mkdtemp())
    address = str(folder / "socket")
    command = [sys.executable, __file__, address]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    server = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, env=environment)
    atexit.register(_end, server, folder)
    _SERVERS.append(server.pid)
    assert server.stdout is not None and server.stdout.readline() == b"ready\n"
    client = CLIENT.format(python=sys.executable, address=address)
    for name in ("python", *(file.name for file in SCRIPTS.glob("tx-*"))):
        script = folder / name
        script.write_text(client, encoding="utf-8")
        script.chmod(0o755)
    return folder


_SERVERS: list[int] = []


def processor_seconds() -> float:
    """Return the processor seconds of the process that forks and of all forks that have ended."""
    seconds = 0.0
    for file in (Path(f"/proc/{pid}/stat") for pid in _SERVERS):
        if file.exists():
            fields = file.read_text().rpartition(")")[2].split()
            seconds += sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
    return seconds


def _end(server: "subprocess.Popen[bytes]", folder: Path) -> None:
    server.kill()
    server.wait()
    for file in folder.iterdir():
        file.unlink()
    folder.rmdir()


def _serve(address: str) -> None:
    """Fork once for each client. The fork returns from here, runs the command and ends like any Python program."""
    for name in IMPORTED:
        importlib.import_module(name)
    end_with_parent()
    gc.collect()
    gc.freeze()
    signal.signal(signal.SIGCHLD, _reap)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(address)
        listener.listen(64)
        print("ready", flush=True)
        while True:
            client, _ = listener.accept()
            with client:
                if os.fork() == 0:
                    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                    listener.close()
                    call, streams, _, _ = socket.recv_fds(client, 1 << 20, 3)
                    _follow(client, streams)
                    break
    _run(json.loads(call), streams)


def _reap(*_: object) -> None:
    while True:
        try:
            if os.waitpid(-1, os.WNOHANG)[0] == 0:
                return
        except ChildProcessError:
            return


def _follow(client: socket.socket, streams: list[int]) -> None:
    """Fork again, and return in the fork. Its exit code goes to the client; if the client is killed, so is the fork."""
    child = os.fork()
    if child == 0:
        return
    for stream in streams:
        os.close(stream)
    client.send(str(child).encode())
    ended = os.pidfd_open(child)
    if ended not in select.select([ended, client], [], [])[0]:
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    with contextlib.suppress(OSError):  # if the client was killed
        client.send(str(status).encode())
    os._exit(0)


def _run(call: dict[str, Any], streams: list[int]) -> None:
    """Run a script, or what `python` was called with, as `__main__`."""
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    sys.stdin = open(0, closefd=False)
    lines = 1 if "PYTHONUNBUFFERED" in call["environment"] else -1
    sys.stdout = open(1, "w", buffering=lines, closefd=False)
    sys.stderr = open(2, "w", buffering=1, errors="backslashreplace", closefd=False)
    if any(call["environment"].get(name) != os.environ.get(name) for name in ("HF_HOME", "HF_ENDPOINT")):
        for name in [name for name in sys.modules if name.partition(".")[0] == "huggingface_hub"]:
            del sys.modules[name]  # it reads its variables when it is imported
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.clear()
    os.environ.update(call["environment"])
    tempfile.tempdir = None  # of TMPDIR
    random.seed()
    os.chdir(call["folder"])
    program, *arguments = call["arguments"]
    sys.executable = str(Path(program).with_name("python"))
    if Path(program).name != "python":
        _script(SCRIPTS / Path(program).name, arguments)
        return
    sys.path[0] = ""
    while arguments[0] == "-u":
        del arguments[0]
    if arguments[0] in ("-", "-c"):
        code = sys.stdin.read() if arguments[0] == "-" else arguments.pop(1)
        sys.argv = arguments
        exec(compile(code, "<string>", "exec"), {"__name__": "__main__", "__builtins__": __builtins__})
    elif arguments[0] == "-m":
        sys.argv = arguments[1:]
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    else:
        _script(Path(arguments[0]), arguments[1:])


def _script(file: Path, arguments: list[str]) -> None:
    sys.path[0], sys.argv = str(file.parent), [str(file), *arguments]
    runpy.run_path(str(file), run_name="__main__")


if __name__ == "__main__":
    _serve(sys.argv[1])
