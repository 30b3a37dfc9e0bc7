"""What people see of a run, in a pipe and on a terminal of 80 columns."""

import fcntl
import os
import re
import struct
import subprocess
import sys
import termios
from collections.abc import Callable
from pathlib import Path

import pytest
from txport.training.loop import train
from txport.training.recipe import Recipe
from txport.training.run import progress

CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def test_lines_in_a_pipe(
    tiny: Callable[..., Recipe], tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each stage says what it is, how far it is, and the figures of the last step."""
    monkeypatch.setattr(progress, "LINE_SECONDS", 0.0)
    caplog.set_level("INFO", "txport")
    train(tiny("training.max_steps=3", "training.validate_every=2"), tmp_path / "checkpoint", Path())
    for stage in ("reading the corpus", "training the tokenizer", "tokenising", "saving"):
        assert stage in caplog.text
    assert re.search(r"training: step 2, loss \d\.\d{3}, \d+ tokens/s, \d+:\d\d left", caplog.text)
    assert "validating 4/4: step 2, loss" in caplog.text and "testing 12/12: step 3, loss" in caplog.text


def test_a_bar_on_a_terminal(tmp_path: Path) -> None:
    """Nothing is wider than 80 columns, lines do not break words, and the bar is gone at the end."""
    script = "import sys; sys.argv[0] = 'tx-train'\nfrom txport.training import entry; entry.train()"
    small = ("corpus.train=300", "corpus.test=4", "training.validation_sentences=2", "training.validate_every=2")
    sets = [word for value in small for word in ("--set", value)]
    line = [sys.executable, "-c", script, "--recipe", "tiny", "-o", "mine", "--max-steps", "4", *sets]
    master, slave = os.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 80, 0, 0))
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TERM": "xterm", "COLUMNS": "80"}
    with subprocess.Popen(line, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=slave) as process:
        os.close(slave)
        shown = b""
        while True:
            try:
                part = os.read(master, 65536)
            except OSError:  # the other end is closed
                break
            if not part:
                break
            shown += part
        output, _ = process.communicate(timeout=500)
    os.close(master)
    text = shown.decode()
    assert process.returncode == 0 and b"mine: 4 steps in" in output
    rows = [CONTROL.sub("", row) for row in re.split(r"[\r\n]+", text)]
    assert all(len(row) <= 80 for row in rows)
    assert any(re.match(r"tx-train: step 4, \d+ s: loss .* exact \d+\.\d%$", row.strip()) for row in rows)
    assert "training" in text and "tokens/s" in text
    # What is drawn last is erased, and only logged lines stay.
    assert "\r\x1b[K" in text[text.rindex("━") :]
