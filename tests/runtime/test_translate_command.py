"""tx-translate with files, bad bytes and somebody who watches; tests/runtime/test_commands.py has the rest."""

import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path

import commands
import pytest
from click.testing import CliRunner
from toy import BUNDLE
from txport.runtime import entry
from txport.runtime.corpus.command import main as corpus
from txport.runtime.errors import InputError
from txport.runtime.translate_command import main
from txport.runtime.translator import Translator

RUN = "import sys; sys.argv[0] = 'tx-translate'; from txport.runtime.entry import translate; translate()"
COMMAND = [sys.executable, "-c", RUN, str(BUNDLE), "--max-length", "5"]


def run(*arguments: object, stdin: bytes = b"") -> "subprocess.CompletedProcess[str]":
    """In this process."""
    return commands.run(entry, "tx-translate", BUNDLE, "--max-length", "5", *arguments, stdin=stdin)


def lines_of(toy: Translator, *texts: str) -> str:
    return "".join(f"{result.text}\n" for result in toy.translate(texts, max_length=5))


def test_files_one_after_the_other(toy: Translator, tmp_path: Path) -> None:
    (tmp_path / "a").write_text("one\n\ntwo")  # no line end after the last line
    (tmp_path / "b").write_text("")
    done = run(tmp_path / "a", "-", tmp_path / "b", tmp_path / "a", stdin=b"three\n")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == lines_of(toy, "one", "", "two", "three", "one", "", "two")


def test_a_file_of_the_shell(toy: Translator) -> None:
    """As of `<(zcat file.gz)`."""
    reading, writing = os.pipe()
    os.write(writing, b"one\ntwo\n")
    os.close(writing)
    done = subprocess.run([*COMMAND, f"/dev/fd/{reading}"], capture_output=True, pass_fds=[reading])
    os.close(reading)
    assert done.stdout.decode() == lines_of(toy, "one", "two")


def test_an_error_names_file_and_line(toy: Translator, tmp_path: Path) -> None:
    (tmp_path / "a").write_text("one\ntwo\n")
    (tmp_path / "b").write_bytes(b"one\nt\xffo\n")
    done = run(tmp_path / "a", tmp_path / "b")
    assert done.returncode == 2
    assert done.stderr.startswith(f"tx-translate: {tmp_path}/b, line 2 is not UTF-8 (byte 2 is 0xff): ")
    assert done.stdout == lines_of(toy, "one", "two", "one")
    (tmp_path / "b").write_text("one\n" + "one two " * 40)
    assert f"{tmp_path}/b, line 2 has" in run(tmp_path / "b").stderr
    done = run(tmp_path / "a", tmp_path / "none")
    assert done.returncode == 2 and done.stdout == "", "all files are looked at first"


@pytest.mark.parametrize(("errors", "text"), [("replace", "t\ufffdo"), ("skip", "")])
def test_a_line_out_for_each_line_in(toy: Translator, errors: str, text: str) -> None:
    done = run("--errors", errors, stdin=b"one\nt\xffo\nthree\n\xff\xfe")
    last = "" if errors == "skip" else "\ufffd\ufffd"
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == lines_of(toy, "one", text, "three", last)


def test_an_output_file_is_whole_or_not_there(toy: Translator, tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = run("-o", out, stdin=b"one\n\xff\n")
    assert done.returncode == 2 and done.stdout == "" and not list(tmp_path.iterdir())
    done = run("-o", out, stdin=b"one\ntwo\n")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert out.read_text() == lines_of(toy, "one", "two")
    done = run(out, "-o", out)
    assert out.read_text() == lines_of(toy, *lines_of(toy, "one", "two").splitlines()), "a file onto itself"


def listen() -> None:
    """Jobs in the background of a shell ignore Ctrl-C, and so would what they start."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_beams_that_are_interrupted_leave_the_old_file(number: signal.Signals, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "file").write_text("old")
    (tmp_path / "lines").write_text("one\ntwo three\n" * 100_000)
    command = [*COMMAND, "--beam", "4", "-o", str(out / "file"), str(tmp_path / "lines")]
    with subprocess.Popen(command, stderr=subprocess.PIPE, preexec_fn=listen) as process:
        assert process.stderr is not None
        while not any(path.stat().st_size > 3 for path in out.iterdir()):  # the first windows are written
            assert process.poll() is None
            time.sleep(0.01)
        process.send_signal(number)
        message = process.stderr.read()
    assert (out / "file").read_text() == "old"
    if number == signal.SIGINT:
        assert (process.returncode, message) == (130, b"tx-translate: interrupted\n")
        assert [path.name for path in out.iterdir()] == ["file"]
    else:
        assert process.returncode == -number


def test_an_interrupted_output_leaves_the_old_file(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("old")
    command = [*COMMAND, "-o", str(tmp_path / "out")]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stderr=pipe, preexec_fn=listen) as process:
        assert process.stderr is not None
        while len(list(tmp_path.iterdir())) < 2:
            assert process.poll() is None
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        assert process.stderr.read() == b"tx-translate: interrupted\n"
    assert process.returncode == 130
    assert [path.name for path in tmp_path.iterdir()] == ["out"] and (tmp_path / "out").read_text() == "old"


def test_lines_come_while_the_input_is_open(toy: Translator) -> None:
    """They come while the input is still open; `| head` ends it."""
    with subprocess.Popen(COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(b"one\n" * 60)
        process.stdin.flush()
        first = [process.stdout.readline() for _ in range(60)]
        assert len(set(first)) == 1
        process.stdout.close()
        process.stdin.write(b"one\n")
        process.stdin.close()
    assert process.returncode == 141


def watched(tmp_path: Path, *arguments: str, terminal_output: bool = False) -> str:
    """What is on the terminal that is standard error, as it arrives."""
    (tmp_path / "in").write_text("one\n" * 40 + "one two " * 40)
    ours, theirs = pty.openpty()
    with open(tmp_path / "stdout", "wb") as stdout:
        command = [*COMMAND, str(tmp_path / "in"), *arguments]
        done = subprocess.run(command, stdout=theirs if terminal_output else stdout, stderr=theirs)
    os.close(theirs)
    said = os.read(ours, 1 << 16).decode()
    os.close(ours)
    assert done.returncode == 0, said
    return said


def test_progress_on_a_terminal(tmp_path: Path) -> None:
    said = watched(tmp_path)
    shown = [part for part in said.split("\r\x1b[K") if part]
    assert shown[0].startswith("32 lines, ") and shown[0].endswith(" per second")
    # Broken between words, where the terminal's width wants it.
    assert " ".join(shown[1].split()).startswith(f"tx-translate: {tmp_path}/in, line 41 has")
    assert shown[2].startswith("41 lines, ") and said.endswith("\n")
    assert (tmp_path / "stdout").read_bytes().count(b"\n") == 41


def test_no_progress_among_lines_that_are_seen(tmp_path: Path) -> None:
    assert "per second" not in watched(tmp_path, terminal_output=True)
    assert "per second" in watched(tmp_path, "-o", str(tmp_path / "out"), terminal_output=True)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--strict"], "shorten it, or leave out --strict to truncate it"),
        (["--n-best", "3", "--json"], "--n-best 3 is more than the beam of 1: raise --beam, or lower --n-best"),
        (["--beam", "9"], "--beam 9 is too large: this bundle supports at most 8 rows"),
        (["--temperature", "0"], "--temperature 0.0 is not a number above 0"),
        (["--beam", "2", "--sample"], "--beam excludes --sample: leave out one of them"),
        (["--sample", "--alternatives", "2", "--json"], "--sample excludes --alternatives: leave out one of them"),
        (["--beam", "2", "--patience", "2"], "--patience has no effect without --early-stopping true"),
        (["--seed", "2"], "--seed has no effect without --sample"),
        (["--max-length", "5", "--full-length"], "--full-length has no effect with --max-length"),
        ([f"--suppress={id}" for id in range(96)], "--suppress contains all 96 ids"),
        (["--top-p", "0.9"], "--top-p has no effect without --sample"),
        (["--length-penalty", "0.6"], "--length-penalty has no effect without a beam of 2 or more"),
        (["--shortlist"], "make one with tx-shortlist, or leave out --shortlist"),
    ],
)
def test_options_are_named_by_their_flags(tmp_path: Path, flags: list[str], words: str) -> None:
    (tmp_path / "a.txt").write_text("one two " * 40)
    files = [str(BUNDLE), str(tmp_path / "a.txt"), "-o", str(tmp_path / "out")]
    for command in (main, corpus):
        if command is corpus and "--strict" in flags:
            continue  # a row that is too long is an error of this row
        whole = " ".join([*files, *flags])
        if command is corpus:
            whole = f"{whole.replace('--json', '')} --to jsonl"
        done = CliRunner().invoke(command, whole.split())
        assert isinstance(done.exception, InputError) and words in str(done.exception)
        assert "_" not in str(done.exception).replace(str(tmp_path), "")
