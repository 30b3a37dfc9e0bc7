"""The study of guided attention: which alignments it takes for certain, and that it runs."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from txport.benchmarks.studies.guided_attention import certain_links, main, spaced_digits
from txport.training.spoken import verbalise


@pytest.mark.parametrize(
    ("source", "target", "links"),
    [
        ("Call 555-01", "call five five five oh one", [(1, 1), (2, 2), (3, 3), (5, 4), (6, 5)]),
        ("At 3.", "at three", [(1, 1)]),
        ("At 3/14.", "on march fourteenth", []),
        ("One of 2", "one of two", []),  # "one" may be the word or the digit
        ("12 and 2", "twelve and two", []),
        ("none", "none", []),
    ],
)
def test_digits_are_certain_where_all_are_spoken_alone_and_in_order(
    source: str, target: str, links: list[tuple[int, int]]
) -> None:
    assert certain_links(spaced_digits(source), target) == links


def test_what_is_read_digit_by_digit_is_certain() -> None:
    for number in np.random.default_rng(1).integers(0, 100_000, 200):
        links = certain_links(spaced_digits(f"{number:05}"), verbalise.digits(f"{number:05}"))
        assert links == [(digit, digit) for digit in range(5)]


def test_the_study_runs(tmp_path: Path) -> None:
    """One step of each model: nothing is learned, but all is measured."""
    command = ["-o", str(tmp_path / "study"), "--steps", "1", "--pairs", "400", "--test", "60"]
    result = CliRunner().invoke(main, command)
    assert result.exit_code == 0, result.output
    rows = [line.split("|") for line in result.stdout.splitlines() if line.startswith("| ")][2:]
    assert [row[1].partition(":")[0].strip() for row in rows] == ["none", "none", "diagonal", "alignments"]
    assert all(0 <= float(row[2].strip(" %")) <= 100 for row in rows)
    shutil.rmtree(tmp_path / "study")
