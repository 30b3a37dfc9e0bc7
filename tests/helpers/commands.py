"""txport's commands without the time for imports: in this process, or in forks of a process that has imported all."""

import contextlib
import keyword
import logging
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from types import ModuleType
from typing import TextIO
from unittest.mock import patch

import pytest

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["txport.training.train_command", "txport.training.loop"])


def run(
    entry: ModuleType, command: str, *arguments: object, stdin: bytes | str = b""
) -> subprocess.CompletedProcess[str]:
    """Run a command in this process by `run_command`, like its console script.

    Args:
        entry: the module of the command's function.
        command: name of the command, such as `tx-export`.
        arguments: arguments of the command.
        stdin: contents of standard input.
    """
    done = run_bytes(entry, command, *arguments, stdin=stdin)
    return subprocess.CompletedProcess(arguments, done.returncode, done.stdout.decode(), done.stderr.decode())


def run_bytes(
    entry: ModuleType, command: str, *arguments: object, stdin: bytes | str = b""
) -> subprocess.CompletedProcess[bytes]:
    """Run a command like `run`, without decoding its output."""
    function = command.removeprefix("tx-").replace("-", "_")
    with _streams(stdin.encode() if isinstance(stdin, str) else stdin) as (folder, streams):
        replaced = dict(zip(("stdin", "stdout", "stderr"), streams, strict=True), argv=[command, *map(str, arguments)])
        with patch.multiple(sys, **replaced), _new_logging(), pytest.raises(SystemExit) as ended:
            getattr(entry, function + "_" * keyword.iskeyword(function))()
        for stream in streams:
            stream.close()
        out, err = ((folder / name).read_bytes() for name in ("stdout", "stderr"))
    return subprocess.CompletedProcess(arguments, int(ended.value.code or 0), out, err)


@contextlib.contextmanager
def _streams(stdin: bytes) -> Iterator[tuple[Path, list[TextIO]]]:
    """Redirect standard input, output and error to files of a folder, with file descriptors as in a process."""
    with tempfile.TemporaryDirectory() as directory:
        folder = Path(directory)
        (folder / "stdin").write_bytes(stdin)
        modes = {"stdin": "r", "stdout": "a", "stderr": "a"}  # processes that the command starts write there too
        streams = [open(folder / name, mode, encoding="utf-8", newline="\n") for name, mode in modes.items()]
        before = [os.dup(number) for number in range(3)]
        try:
            for number, stream in enumerate(streams):
                os.dup2(stream.fileno(), number)
            yield folder, streams
        finally:
            for number, saved in enumerate(before):
                os.dup2(saved, number)
                os.close(saved)


@contextlib.contextmanager
def _new_logging() -> Iterator[None]:
    """Reset logging as at the start of a process, since a command adds no handlers if those of pytest exist."""
    level = logging.root.level
    with patch.object(logging.root, "handlers", []):
        yield
    logging.root.setLevel(level)


def _train(arguments: Sequence[str], environment: Mapping[str, str], output: Connection, errors: Connection) -> None:
    from txport.training.entry import train

    for stream, connection in enumerate((output, errors), 1):
        os.dup2(connection.fileno(), stream)
        connection.close()
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = ["tx-train", *arguments]
    train()


class WarmTraining:
    """`tx-train` in a separate process with one thread, with the methods of `subprocess.Popen` that tests need.

    Args:
        arguments: arguments of the command.
        environment: the whole environment.
    """

    def __init__(self, arguments: Sequence[str], environment: Mapping[str, str]) -> None:
        pipes = [_CONTEXT.Pipe(duplex=False) for _ in range(2)]
        writers = [writer for _, writer in pipes]
        self._process = _CONTEXT.Process(target=_train, args=(arguments, environment, *writers))
        with patch.dict(os.environ, OMP_NUM_THREADS="1"):  # the first process reads it when it imports PyTorch
            self._process.start()
        for writer in writers:
            writer.close()
        self.stdout, self.stderr = (_text(reader) for reader, _ in pipes)

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def send_signal(self, number: signal.Signals) -> None:
        assert self._process.pid is not None
        os.kill(self._process.pid, number)

    def communicate(self, timeout: float) -> tuple[str, str]:
        """Wait for the end and return the output, which must fit into the buffer of a pipe."""
        self._process.join(timeout)
        assert self._process.exitcode is not None, f"it has not ended in {timeout} s"
        return self.stdout.read(), self.stderr.read()

    def kill(self) -> None:
        self._process.kill()
        self._process.join()
        self.stdout.close()
        self.stderr.close()


def _text(reader: Connection) -> TextIO:
    text = open(os.dup(reader.fileno()), encoding="utf-8")
    reader.close()
    return text
