"""The picture of a terminal session shows what the commands print."""

import subprocess
import xml.etree.ElementTree as ElementTree

import pytest
from txport.benchmarks.pictures.terminal import COLUMNS, draw, session


def texts(svg: str) -> list[str]:
    return [element.text or "" for element in ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")]


def test_commands_and_their_output_are_drawn_line_by_line() -> None:
    svg = draw(session(["printf '<a> & b\\n\\nlast\\n'", "echo error >&2"]))
    assert texts(svg) == ["$ printf '<a> & b\\n\\nlast\\n'", "<a> & b", "", "last", "$ echo error >&2", "error"]


def test_long_lines_are_wrapped_without_loss() -> None:
    line = " ".join(f"word{i}" for i in range(60))
    drawn = texts(draw(session([f"echo {line}"])))[1:]
    assert max(map(len, drawn)) <= COLUMNS and "".join(drawn).split()[-1] == "word59"
    assert " ".join(" ".join(drawn).split()).count("word") >= 60


def test_a_command_that_fails_makes_no_picture() -> None:
    with pytest.raises(subprocess.CalledProcessError):
        session(["exit 3"])
