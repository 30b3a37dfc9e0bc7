"""Figures of a run find their place in the README."""

import dataclasses
import subprocess
import sys
from pathlib import Path

from bench_reports import CONTESTANT, measurement, report
from txport.benchmarks.report.readme_figures import markers
from txport.benchmarks.report.report import write_report
from txport.benchmarks.report.schema import Agreement

BEGIN, END = markers(beams=False)


def run(directory: Path, *more: str) -> subprocess.CompletedProcess[str]:
    module = [sys.executable, "-m", "txport.benchmarks.report.readme_figures"]
    command = [*module, "demo=bench", *more, "--readme", "README.md"]
    return subprocess.run(command, cwd=directory, capture_output=True, text=True)


def test_the_table_between_the_markers_is_replaced_and_the_plot_copied(tmp_path: Path) -> None:
    peer = dataclasses.replace(CONTESTANT, name="other", kind="pytorch")
    theirs = dataclasses.replace(measurement([8.0]), contestant="other", agreement=Agreement(0, 1))
    given = report(measurement([2.0]), theirs, measurement([3.0], "8 x 8 -> 4"))
    (tmp_path / "bench").mkdir()
    write_report(tmp_path / "bench/bench.json", dataclasses.replace(given, contestants=(CONTESTANT, peer)))
    (tmp_path / "bench/peers.svg").write_text("<svg/>")
    (tmp_path / "README.md").write_text(f"before\n{BEGIN}old\n{END}after\n")
    for _ in range(2):
        assert run(tmp_path).returncode == 0
    text = (tmp_path / "README.md").read_text()
    assert text.startswith("before\n") and text.endswith("after\n") and "old" not in text
    table = text.partition(BEGIN)[2].partition(END)[0].strip().splitlines()
    # What only one did is no comparison.
    assert table[:4] == [
        "| demo, ms per token | batch 1 |",
        "|---|---|",
        "| txport | 0.5 |",
        "| other | 2 (0 of 1 identical) |",
    ]
    assert (tmp_path / "figures/peers.svg").read_text() == "<svg/>"


def test_each_model_has_a_table(tmp_path: Path) -> None:
    """Each contestant has one row of it."""
    peer = dataclasses.replace(CONTESTANT, name="other", kind="pytorch")
    both = (CONTESTANT, peer)
    for name, fast in (("bench", 8.0), ("base", 16.0)):
        theirs = dataclasses.replace(measurement([fast]), contestant="other")
        more = [measurement([3.0], "8 x 8 -> 4")] if name == "base" else []
        more += [dataclasses.replace(each, contestant="other") for each in more]
        (tmp_path / name).mkdir()
        given = report(measurement([2.0]), theirs, *more)
        write_report(tmp_path / name / "bench.json", dataclasses.replace(given, contestants=both))
    (tmp_path / "bench/peers.svg").write_text("<svg/>")
    (tmp_path / "README.md").write_text(f"{BEGIN}{END}.\n")
    assert run(tmp_path, "base=base").returncode == 0
    table = (tmp_path / "README.md").read_text().partition(BEGIN)[2].strip().splitlines()
    assert table[0] == "| demo, ms per token | batch 1 |" and table[2:4] == ["| txport | 0.5 |", "| other | 2 |"]
    assert table[5] == "| base, ms per token | batch 1 | batch 8 |"
    assert table[7:9] == ["| txport | 0.5 | 0.75 |", "| other | 4 | 0.75 |"]
    assert run(tmp_path, "base").returncode == 2


def test_beams_have_a_table_of_their_own(tmp_path: Path) -> None:
    peer = dataclasses.replace(CONTESTANT, name="other", kind="huggingface")
    theirs = dataclasses.replace(measurement([8.0]), contestant="other")
    given = report(measurement([2.0]), theirs)
    works = tuple(dataclasses.replace(work, beam=4) for work in given.workloads)
    (tmp_path / "bench").mkdir()
    given = dataclasses.replace(given, contestants=(CONTESTANT, peer), workloads=works)
    write_report(tmp_path / "bench/bench.json", given)
    begin, end = markers(beams=True)
    (tmp_path / "README.md").write_text(f"{BEGIN}greedy\n{END}{begin}old\n{end}after\n")
    assert run(tmp_path).returncode == 0
    text = (tmp_path / "README.md").read_text()
    assert text.startswith(f"{BEGIN}greedy\n{END}{begin}| demo, ms per token | batch 1 |\n") and "old" not in text
    assert "8 source tokens, 4 new ones, beam 4." in text and text.endswith("after\n")
    mixed = dataclasses.replace(given, workloads=(works[0], dataclasses.replace(works[1], beam=1)))
    write_report(tmp_path / "bench/bench.json", mixed)
    assert run(tmp_path).returncode == 2


def test_a_readme_without_markers_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "bench").mkdir()
    write_report(tmp_path / "bench/bench.json", report(measurement([2.0])))
    (tmp_path / "README.md").write_text("nothing here\n")
    done = run(tmp_path)
    assert done.returncode == 2 and "markers" in done.stderr
    assert (tmp_path / "README.md").read_text() == "nothing here\n"
