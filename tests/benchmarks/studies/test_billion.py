"""The plan for a corpus: its figures agree with each other."""

import pytest
from txport.benchmarks.studies.machines.billion import plan


def test_the_figures_of_a_plan() -> None:
    told = plan(lines=7.2e6, tokens=10, rate=1_000, cores=2, price=0.5, line_bytes=100, efficiency=1.0)
    assert told["core hours"] == "20" and told["cost"] == "10"
    assert told["hours"] == "10.0 on 2 cores"
    assert told["lines a second"] == "200, 100 a core"
    assert told["input"] == "1 GB, 0.02 MB/s" and told["output"] == "1 GB, 0.04 MB/s"
    assert told["parts"].startswith("110 of 65,536 lines, ")
    half = plan(lines=7.2e6, tokens=10, rate=1_000, cores=2, price=0.5, line_bytes=100, efficiency=0.5)
    assert float(half["core hours"]) == pytest.approx(2 * float(told["core hours"]))
