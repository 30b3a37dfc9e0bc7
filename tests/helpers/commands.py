"""txport's commands without the time for imports: in this process. `warm.py` has processes that start at once."""

import contextlib
import keyword
import logging
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import TextIO
from unittest.mock import patch

import pytest


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
