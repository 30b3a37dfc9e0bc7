"""A contestant's process: what it answers, and what becomes of one that crashes or hangs."""

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from txport.benchmarks.run.worker_process import ContestantFailed, WorkerProcess, prepare

DESCRIPTION = {"device": "cpu", "engine": "auto", "lowering": None, "threads": 1}
TASK = {"sources": [[4, 5, 3], [6, 7, 3]], "target": 5, "fixed": True, "prefix": [], "absent": 0}


@pytest.fixture
def process() -> Iterator[WorkerProcess]:
    made = WorkerProcess(None, {})
    yield made
    made.close()


def test_a_bundle_in_its_own_process(process: WorkerProcess, bundle: Path) -> None:
    description = {"bundle": str(bundle), **DESCRIPTION, "lowering": "ort"}
    loaded = process.ask(60, do="load", kind="bundle", description=description)
    assert "ONNX Runtime" in loaded["engine"]
    process.ask(60, do="task", task=TASK)
    warm = process.ask(60, do="warm", setting={}, seconds=0.1, best=None)
    assert [len(row) for row in warm["ids"]] == [5, 5]
    turn = process.ask(60, do="turn", calls=3, seconds=0.5)
    assert set(turn["times"]) == {"call", "encoder", "first_token"}
    calls = turn["times"]["call"]
    assert 1 <= len(calls) <= 3 and all(time > 0 for time in calls)
    peak = process.ask(60, do="memory")["peak_resident_bytes"]
    assert peak > 20e6, "Python and ONNX Runtime alone are more"


def test_an_error_is_one_sentence_and_leaves_the_process_alive(process: WorkerProcess, tmp_path: Path) -> None:
    for _ in range(2):
        with pytest.raises(ContestantFailed, match="BundleError: .*does not exist") as failure:
            process.ask(60, do="load", kind="bundle", description={"bundle": str(tmp_path / "none"), **DESCRIPTION})
        assert "\n" not in str(failure.value)
    assert process.alive()


def test_a_crash_is_reported_with_its_signal(process: WorkerProcess) -> None:
    os.kill(process.pid, signal.SIGSEGV)
    with pytest.raises(ContestantFailed, match="its process ended by signal 11"):
        process.ask(60, do="memory")
    assert not process.alive()


def test_one_that_hangs_is_not_waited_for(process: WorkerProcess, bundle: Path) -> None:
    with pytest.raises(ContestantFailed, match="did not answer within 0 s"):
        process.ask(0.001, do="load", kind="bundle", description={"bundle": str(bundle), **DESCRIPTION})
    assert not process.alive(), "its answer would be taken for that of the next question"


def test_it_is_stopped_between_questions(process: WorkerProcess) -> None:
    process.ask(60, do="memory")
    end = time.monotonic() + 10
    while (state := Path(f"/proc/{process.pid}/stat").read_text().split()[2]) != "T" and time.monotonic() < end:
        time.sleep(0.01)
    assert state == "T"


def test_a_conversion_that_fails_is_reported_by_its_last_line(tmp_path: Path) -> None:
    with pytest.raises(ContestantFailed, match="its weights were not converted: .*No such file or directory"):
        prepare(["json.tool", str(tmp_path / "none")], None, 120)
