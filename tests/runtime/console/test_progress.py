"""Progress: a line now and then in a pipe, a bar on a terminal, nothing from a library."""

import contextlib
import io
import re
import sys
import time
from collections.abc import Iterator

import pytest
from txport.runtime.console.progress import ProgressLine, Stages


class Terminal(io.StringIO):
    """A terminal of 80 columns."""

    def isatty(self) -> bool:
        return True

    @property
    def rows(self) -> list[str]:
        """The rows that are there at the end."""
        shown = [re.split(r"\r\x1b\[K", row)[-1] for row in self.getvalue().split("\n")]
        return [row for row in shown if row]


@contextlib.contextmanager
def on_a_terminal(monkeypatch: pytest.MonkeyPatch, encoding: str = "utf-8") -> Iterator[Terminal]:
    monkeypatch.setattr(Terminal, "encoding", encoding)
    monkeypatch.setattr(sys, "argv", ["/bin/tx-export"])
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("NO_COLOR", "1")
    with contextlib.redirect_stderr(Terminal()) as terminal:
        yield terminal
        assert sys.stderr is terminal


def test_a_line_now_and_then(capfd: pytest.CaptureFixture[str]) -> None:
    with Stages(every=0.02) as stages:
        stages.stage("graphs")
        time.sleep(0.2)
        stages.stage("verify", 100)
        stages.advance(25)
        time.sleep(0.2)
    out, err = capfd.readouterr()
    lines = [line.partition(": ")[2] for line in err.splitlines()]
    assert out == "" and "graphs" in lines
    assert any(re.fullmatch(r"verify, 25 of 100, about 0:0\d min left", line) for line in lines), lines


def test_the_time_left_is_that_of_the_speed_so_far() -> None:
    stages = Stages(enabled=False)
    stages.stage("verify", 100)
    assert stages.left == ""
    stages._started -= 60  # a minute ago
    stages.advance(10)
    assert stages.left == "9:00"
    stages.advance(90)
    assert stages.left == ""


def test_a_sentence_is_said_once(capfd: pytest.CaptureFixture[str]) -> None:
    with Stages(every=600) as stages:
        for _ in range(2):
            stages.say("most answers of [model] do not end")
    assert capfd.readouterr().err.count("most answers of [model] do not end") == 1
    with Stages(enabled=False) as silent:
        silent.say("nothing")
    assert capfd.readouterr() == ("", "")


def test_bars_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """One for each stage, which stays; what is said is above the one that is not yet full."""
    with on_a_terminal(monkeypatch) as terminal, Stages() as stages:
        stages.stage("graphs")
        stages.reach("verify", 10, 100)
        stages.reach("verify", 25, 100)
        stages.draw()
        assert terminal.rows[-1] == "━━━             25/100   0:00 verify, 0:00 left"
        stages.say("a note")
        print("a warning", file=sys.stderr)
    assert terminal.rows == [
        "━━━━━━━━━━━━       1/1   0:00 graphs",
        "tx-export: a note",
        "a warning",
        "━━━━━━━━━━━━   100/100   0:00 verify",
    ]


def test_an_error_leaves_the_bar_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    with on_a_terminal(monkeypatch) as terminal, contextlib.suppress(ValueError), Stages() as stages:
        stages.stage("verify", 4)
        raise ValueError
    assert terminal.rows == ["                   0/4   0:00 verify"] and terminal.getvalue().endswith("\n")


def test_a_line_is_cut_to_the_terminal_and_erased_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    with on_a_terminal(monkeypatch) as terminal, ProgressLine(lambda: "x" * 100, refresh=0.01, transient=True):
        time.sleep(0.2)
        assert terminal.rows == ["x" * 79]
        sys.stderr.write("half of ")
        time.sleep(0.2)
        assert terminal.rows == ["half of "], "the line waits for the end of the other one"
        print("it, and " + "words " * 20 + "/a/path" * 20, file=sys.stderr)
        time.sleep(0.2)
        words = ["half of it, and" + " words" * 12, " ".join(["words"] * 8), "/a/path" * 20]
        assert terminal.rows == [*words, "x" * 79]
    assert terminal.rows == words


def test_letters_for_terminals_without_unicode(monkeypatch: pytest.MonkeyPatch) -> None:
    with on_a_terminal(monkeypatch, "ascii") as terminal, Stages() as stages:
        stages.stage("graphs")
    assert terminal.rows == ["============       1/1   0:00 graphs"]


def test_bars_are_green_unless_the_user_wants_no_colours(monkeypatch: pytest.MonkeyPatch) -> None:
    with on_a_terminal(monkeypatch) as terminal, Stages() as stages:
        monkeypatch.delenv("NO_COLOR")
        stages.stage("graphs")
    assert terminal.rows == ["\x1b[32m━━━━━━━━━━━━\x1b[0m       1/1   0:00 graphs"]
