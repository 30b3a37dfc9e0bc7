"""The study of busy neighbours: it measures beside them, and leaves none behind."""

import multiprocessing
from pathlib import Path

import pytest
from click.testing import CliRunner
from make_fused_bundle import write_fused_bundle
from numpy_runner import random_model
from txport.benchmarks.studies.busy_cores import main
from txport.runtime.engines.native import missing

pytestmark = pytest.mark.skipif(missing() is not None, reason=f"needs the fused engine's library: {missing()}")


def test_each_number_of_neighbours_is_measured(tmp_path: Path) -> None:
    write_fused_bundle(tmp_path / "bundle", random_model(), "int8")
    options = ["--neighbours", "0,1", "--batch", "1,3", "--tokens", "8", "--rounds", "3", "--warm-up", "1"]
    result = CliRunner().invoke(main, [str(tmp_path / "bundle"), *options], catch_exceptions=False)
    assert result.exit_code == 0
    rows = [line.split() for line in result.output.splitlines()[1:]]
    assert [row[:2] for row in rows] == [["0", "1"], ["0", "3"], ["1", "1"], ["1", "3"]]
    assert all(float(number) > 0 for row in rows for number in row[2:7])
    assert not multiprocessing.active_children()
