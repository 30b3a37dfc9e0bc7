"""The study of threads and workers, on the cores that are here."""

from pathlib import Path

import pytest
from click.testing import CliRunner
from txport.benchmarks.studies.cores import main, powers
from txport.runtime.engines.native import missing


def test_threads_are_doubled_up_to_the_most() -> None:
    assert [powers(most) for most in (1, 2, 6, 8)] == [[1], [1, 2], [1, 2, 4, 6], [1, 2, 4, 8]]


@pytest.mark.skipif(missing() is not None, reason=f"needs the fused engine's library: {missing()}")
def test_there_is_a_row_for_each_number_of_threads_and_of_workers(bundle: Path) -> None:
    options = ["--threads", "3", "--batch", "1,4", "--tokens", "4", "--rounds", "2", "--warm-up", "1"]
    done = CliRunner().invoke(main, [str(bundle), *options], catch_exceptions=False)
    threads, workers = (
        [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]
        for table in done.output.strip().split("\n\n")
    )
    assert [row[0] for row in threads] == ["1", "2", "3"]
    assert [row[:2] for row in workers] == [["1", "3"], ["2", "1"], ["3", "1"]]
    assert all(float(cell) > 0 for row in (*threads, *workers) for cell in row)
