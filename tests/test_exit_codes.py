"""How commands end when they are interrupted, and when their output cannot be written: in real processes."""

import ast
import errno
import importlib.metadata
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("runtime", "models", "training", "exporter", "benchmarks")
DATA = ROOT / "tests" / "data"
BUNDLE = str(DATA / "toy_bundle")
# The entry of a command of each kind, and arguments with which it reads the named pipe: without a heavy library, in a
# package that needs PyTorch, and in a process that starts others. `run_command` handles signals and pipes for all.
COMMANDS = {
    "tx-translate": ("runtime", "translate", [BUNDLE, "{pipe}"]),
    "tx-export": ("exporter", "export", [str(DATA / "checkpoints" / "tiny"), "-o", "{out}", "--text", "{pipe}"]),
    "tx-bench": ("benchmarks", "bench", [BUNDLE, "-o", "{out}", "--text", "{pipe}"]),
}
RUN = "import sys; sys.argv[0] = '{0}'; from txport.{1}.entry import {2}; {2}()"


def start(name: str, *arguments: object) -> "subprocess.Popen[bytes]":
    package, function, *_ = COMMANDS[name]
    if package != "runtime":
        pytest.importorskip("torch", reason="needs PyTorch: pip install 'txport[dev]'")

    def listen() -> None:
        """Jobs in the background of a shell ignore Ctrl-C, and so would what they start."""
        signal.signal(signal.SIGINT, signal.SIG_DFL)

    code = RUN.format(name, package, function)
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, preexec_fn=listen)


def open_when_read(pipe: Path, process: "subprocess.Popen[bytes]") -> int:
    """The writing end of a named pipe, as soon as the process reads it."""
    while process.poll() is None:
        try:
            return os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
        except OSError as error:
            assert error.errno == errno.ENXIO, error
            time.sleep(0.01)
    assert process.stderr is not None
    raise AssertionError(process.stderr.read().decode())


@pytest.mark.parametrize("name", COMMANDS)
def test_control_c_is_one_line_and_130(tmp_path: Path, name: str) -> None:
    pipe = tmp_path / "in"
    os.mkfifo(pipe)
    arguments = [argument.format(pipe=pipe, out=tmp_path / "out") for argument in COMMANDS[name][2]]
    with start(name, *arguments) as process:
        writing = open_when_read(pipe, process)
        process.send_signal(signal.SIGINT)
        os.close(writing)  # what is not read yet when the signal comes ends here
        assert process.stdout is not None and process.stderr is not None
        assert process.stderr.read().decode() == f"{name}: interrupted\n"
    assert process.returncode == 130
    assert not list(tmp_path.glob("out*"))


@pytest.mark.parametrize("name", COMMANDS)
def test_a_closed_pipe_is_silent_and_141(name: str) -> None:
    with start(name, "--help") as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 141


@pytest.mark.parametrize("name", COMMANDS)
def test_a_full_disk_is_one_sentence_and_2(name: str) -> None:
    """As where standard output goes to one."""
    if not Path("/dev/full").exists():
        pytest.skip("needs /dev/full")
    package, function, *_ = COMMANDS[name]
    if package != "runtime":
        pytest.importorskip("torch", reason="needs PyTorch: pip install 'txport[dev]'")
    command = [sys.executable, "-c", RUN.format(name, package, function), "--help"]
    with open("/dev/full", "wb") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True)
    words = "the output cannot be read or written: No space left on device"
    assert (done.returncode, done.stderr) == (2, f"{name}: {words}\n")


def test_every_command_ends_by_the_same_function() -> None:
    """The last statement of each console script's function is a call of `run_command`, with nothing around it."""
    scripts = {
        entry.value for entry in importlib.metadata.entry_points(group="console_scripts") if "txport" in entry.value
    }
    functions = {}
    for package in PACKAGES:
        module = ast.parse((ROOT / package / "entry.py").read_text())
        for function in (each for each in module.body if isinstance(each, ast.FunctionDef)):
            functions[f"txport.{package}.entry:{function.name}"] = function.body[-1]
    assert len(scripts) == 18 and scripts <= functions.keys()
    for name in scripts:
        match functions[name]:
            case ast.Expr(ast.Call(ast.Name("run_command"))):
                pass
            case other:
                raise AssertionError(f"{name} ends with {ast.dump(other)}")


def test_tables_in_a_closed_pipe(tmp_path: Path) -> None:
    """rich ends a process by itself then, with 1."""
    pytest.importorskip("rich", reason="needs rich: pip install 'txport[dev]'")
    (tmp_path / "tables.py").write_text(
        "import click\nfrom rich.console import Console\n\n\n"
        "@click.command()\ndef main():\n    input()\n    Console().print('a table')\n"
    )
    code = "from txport.runtime.entry import run_command; run_command('tables', 'x')"
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        stdin=pipe,
        stdout=pipe,
        stderr=pipe,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
    ) as process:
        assert process.stdin is not None and process.stdout is not None and process.stderr is not None
        process.stdout.close()
        process.stdin.write(b"go on\n")
        process.stdin.close()
        assert process.stderr.read() == b""
    assert process.returncode == 141
