"""Ray Data with two actors: what one of them leaves undone, another one does; a driver goes on where one was killed."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from corpora import BUNDLE, LIMIT, sentences
from txport.runtime.corpus.batches import BatchTranslator
from txport.runtime.errors import InputError
from txport.runtime.translator import Translator

pyarrow = pytest.importorskip("pyarrow", reason="needs Arrow: pip install 'txport[corpus]'")

DRIVER = f"""
import sys
import ray
import ray.data
from ray.data.checkpoint import CheckpointConfig
from txport.runtime.corpus.batches import translate_dataset

folder = sys.argv[1]
ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False, _temp_dir=sys.argv[2], object_store_memory=2**27)
context = ray.data.DataContext.get_current()
context.enable_progress_bars = False
context.checkpoint_config = CheckpointConfig(
    "id", f"{{folder}}/checkpoint", delete_checkpoint_on_success=False
)
rows = ray.data.read_parquet(f"{{folder}}/in")
rows = translate_dataset(rows, {str(BUNDLE)!r}, actors=2, block_rows=100, max_length={LIMIT})
rows.write_parquet(f"{{folder}}/out")
"""


def test_a_batch_has_the_columns_of_a_corpus(toy: Translator) -> None:
    texts = sentences(9)
    batch = pyarrow.table({"id": range(9), "text": [*texts[:8], None]})
    table = BatchTranslator(BUNDLE, max_length=LIMIT, scores=True)(batch)
    expected = toy.translate(texts[:8], max_length=LIMIT, scores=True)
    assert table.column("translation").to_pylist() == [*(result.text for result in expected), None]
    assert table.column("error").to_pylist() == [None] * 8 + ["the row is null"]
    assert table.column("scores").to_pylist()[7] == pytest.approx(expected[7].scores, abs=1e-5)
    assert table.select(["id", "text"]) == batch
    with pytest.raises(InputError, match="the batch has no column 'txt'"):
        BatchTranslator(BUNDLE, column="txt")(batch)
    with pytest.raises(InputError, match="the batch has already a column 'id'"):
        BatchTranslator(BUNDLE, target="id")(batch)
    with pytest.raises(InputError, match="column 'id' is of type int64, not text"):
        BatchTranslator(BUNDLE, column="id")(batch)


def descendants(process: int) -> dict[int, str]:
    """The processes below one, and their titles."""
    parents, titles = {}, {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parents[int(folder.name)] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            titles[int(folder.name)] = (folder / "cmdline").read_text()
        except OSError:
            continue
    found = {process}
    while more := {child for child, parent in parents.items() if parent in found} - found:
        found |= more
    return {each: titles[each] for each in found - {process}}


def end(process: "subprocess.Popen[str]") -> None:
    """Kill a driver, and what it has started."""
    others = descendants(process.pid)
    process.kill()
    process.wait()
    for each in others:
        with contextlib.suppress(ProcessLookupError):
            os.kill(each, signal.SIGKILL)


def start(folder: Path, session: Path) -> "subprocess.Popen[str]":
    variables = {
        "RAY_AUTH_MODE": "disabled", "RAY_raylet_start_wait_time_s": "120",
        "RAY_DATA_PARQUET_FOOTER_NUM_ACTORS": "1",  # not the 32 processes that read footers by default
    }  # fmt: skip
    return subprocess.Popen(
        [sys.executable, "-c", DRIVER, str(folder), str(session)],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env={**os.environ, **variables},
    )  # fmt: skip


def written(folder: Path) -> int:
    return len(list((folder / "out").glob("*.parquet")))


def until(done: object, process: "subprocess.Popen[str]") -> None:
    latest = time.monotonic() + 300
    while not done():  # type: ignore[operator]
        assert process.poll() is None and time.monotonic() < latest, process.communicate()[0]
        time.sleep(0.02)


def kill_an_actor(process: "subprocess.Popen[str]", folder: Path, files: int) -> None:
    """Kill one of the actors of a driver once so many files are there."""
    until(lambda: written(folder) >= files, process)
    actors = [each for each, title in descendants(process.pid).items() if "BatchTranslator" in title]
    os.kill(actors[0], signal.SIGKILL)


def test_nothing_is_lost_and_nothing_twice_whoever_is_killed(toy: Translator, tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="needs Ray: pip install 'txport[ray]'")
    import tempfile

    import pyarrow.parquet

    files, size = 24, 100
    texts: list[str | None] = list(sentences(files * size))
    texts[17] = None
    (tmp_path / "in").mkdir()
    for number in range(files):
        rows = range(number * size, number * size + size)
        table = pyarrow.table({"id": rows, "text": [texts[row] for row in rows]})
        pyarrow.parquet.write_table(table, tmp_path / "in" / f"{number:03d}.parquet")
    with tempfile.TemporaryDirectory(prefix="r", ignore_cleanup_errors=True) as session:  # paths of sockets are short
        driver = start(tmp_path, Path(session))
        try:
            kill_an_actor(driver, tmp_path, 2)
            latest = written(tmp_path) + 4
            until(lambda: written(tmp_path) >= latest, driver)
        finally:
            end(driver)
        before = written(tmp_path)
        assert 6 <= before < files - 4
        again = start(tmp_path, Path(session))
        try:
            kill_an_actor(again, tmp_path, before + 2)
            assert written(tmp_path) < files
            said = again.communicate(timeout=500)[0]
        finally:
            end(again)
        assert again.returncode == 0, said
    found = pyarrow.parquet.read_table(tmp_path / "out").sort_by("id").to_pylist()
    assert [row["id"] for row in found] == list(range(files * size))
    expected = toy.translate([text or "" for text in texts], max_length=LIMIT)
    assert [row["translation"] or "" for row in found] == [result.text for result in expected]
    assert [(row["id"], row["error"]) for row in found if row["error"]] == [(17, "the row is null")]
