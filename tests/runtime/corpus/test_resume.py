"""Parts are whole or not there, whoever is killed; what is there already is left, unless something has changed."""

import errno
import json
import random
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from corpora import BUNDLE, all_rows, content, gzipped, parts_of, run, sentences, write
from txport.runtime.bundle.manifest import Manifest
from txport.runtime.corpus.formats import form_of
from txport.runtime.corpus.locations import Store, list_files, open_location
from txport.runtime.errors import CheckFailed, InputError, MissingLibrary, ResourceError
from txport.runtime.system import POSIX

pytest.importorskip("pyarrow", reason="needs Arrow, zstd and fsspec: pip install 'txport[corpus]'")
TEXTS = sentences(50)
PARTS = ["--part-rows", 20, "--window-rows", 8]
CODE = "import sys; sys.argv[0] = 'tx-translate-corpus'; from txport.runtime.entry import translate_corpus as f; f()"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write(tmp_path / "a.jsonl", TEXTS)


@pytest.fixture
def out(source: Path, tmp_path: Path) -> Path:
    run(source, tmp_path / "out", *PARTS)
    return tmp_path / "out"


def test_what_is_missing_or_damaged_is_made_again_and_nothing_else(source: Path, out: Path) -> None:
    whole = content(out)
    first, second, third = parts_of(out)
    times = {path: path.stat().st_mtime_ns for path in out.rglob("*") if path.is_file()}
    assert "0 parts made, 3 there already; 50 rows" in run(source, out, *PARTS, "--resume")
    assert {path: path.stat().st_mtime_ns for path in times} == times
    second.unlink()
    assert "1 part made, 2 there already; 50 rows" in run(source, out, *PARTS, "--resume")
    third.write_bytes(third.read_bytes()[:-1])
    (out / "_parts" / f"{first.name}.json").write_text('{"version": 1,')
    assert "2 parts made, 1 there already" in run(source, out, *PARTS, "--resume")
    (out / "_parts" / f"{first.name}.json").write_text("[" * 100_000)  # deeper than the interpreter's stack
    assert "1 part made, 2 there already" in run(source, out, *PARTS, "--resume")
    assert content(out) == whole
    assert first.stat().st_mtime_ns > times[first] and second.stat().st_mtime_ns > times[second]


def test_manifests_tell_the_truth(source: Path, out: Path) -> None:
    import hashlib

    for number, part in enumerate(parts_of(out)):
        told = json.loads((out / "_parts" / f"{part.name}.json").read_text())
        data = part.read_bytes()
        lines = source.read_bytes().splitlines(keepends=True)[20 * number : 20 * number + 20]
        assert (told["output_sha256"], told["output_bytes"]) == (hashlib.sha256(data).hexdigest(), len(data))
        assert told["input_sha256"] == hashlib.sha256(b"".join(lines)).hexdigest()
        assert (told["first"], told["rows"], told["output_rows"]) == (20 * number, len(lines), len(lines))
        assert told["last"] == (number == 2)


def test_a_run_never_writes_over_another_by_mistake(source: Path, out: Path) -> None:
    before = content(out)
    with pytest.raises(InputError, match=r"a-00000\.jsonl exists: continue with --resume"):
        run(source, out, *PARTS)
    assert content(out) == before


CHANGES = {
    "a row": lambda lines: [*lines[:30], lines[31], lines[30], *lines[32:]],
    "a row less": lambda lines: lines[:-1],
    "a row more": lambda lines: [*lines, lines[0]],
    "a kept column": lambda lines: [lines[0].replace('"n": 0', '"n": 9'), *lines[1:]],
}


@pytest.mark.parametrize("what", CHANGES)
def test_a_changed_input_is_noticed(source: Path, out: Path, what: str) -> None:
    before = content(out)
    lines = source.read_text().splitlines()
    source.write_text("".join(f"{line}\n" for line in CHANGES[what](lines)))
    with pytest.raises(InputError, match=r"a\.jsonl has changed since .*a-0000\d\.jsonl was made of it: choose"):
        run(source, out, *PARTS, "--resume")
    assert content(out) == before


def test_a_full_last_part_knows_that_it_is_the_last(source: Path, tmp_path: Path) -> None:
    run(write(source, TEXTS[:40]), tmp_path / "out", *PARTS)
    write(source, TEXTS[:41])
    with pytest.raises(InputError, match=r"changed since .*a-00001\.jsonl"):
        run(source, tmp_path / "out", *PARTS, "--resume")


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--scores"], "with scores none, now it is True"),
        (["--max-length", 5], "with --max-length 4, now it is 5"),
        (["--part-rows", 10], "with part rows 20, now it is 10"),
        (["--target", "german"], "with target translation, now it is german"),
        (["--errors", "replace"], "with errors skip, now it is replace"),
    ],
)
def test_other_options_are_noticed(source: Path, out: Path, flags: list[object], said: str) -> None:
    with pytest.raises(InputError, match=f"was written {said}: use the same options, or choose another output"):
        run(source, out, *PARTS, "--resume", *flags)


def test_another_bundle_is_noticed(source: Path, out: Path, damaged: Path) -> None:
    manifest = Manifest.load(damaged)
    replace(manifest, made_by=replace(manifest.made_by, version="0.0.1")).write(damaged)
    from click.testing import CliRunner
    from corpora import main

    line = [damaged, source, "-o", out, "--max-length", 4, *PARTS, "--resume"]
    with pytest.raises(InputError, match=r"was written with bundle [0-9a-f]{64}, now it is [0-9a-f]{64}"):
        CliRunner().invoke(main, list(map(str, line)), catch_exceptions=False)


def test_a_check_finds_what_is_not_whole(source: Path, out: Path) -> None:
    assert "0 parts made, 3 there already; 50 rows" in run(source, out, *PARTS, "--check")
    part = parts_of(out)[1]
    data = part.read_bytes()
    part.write_bytes(bytes([data[0] ^ 1]) + data[1:])  # as long as before
    before = content(out)
    with pytest.raises(
        CheckFailed, match=r"out lacks a-00001\.jsonl, or a part is damaged: run it again with --resume"
    ):
        run(source, out, *PARTS, "--check")
    parts_of(out)[2].unlink()
    with pytest.raises(CheckFailed, match=r"a-00001\.jsonl and 1 more"):
        run(source, out, *PARTS, "--check")
    assert content(out).keys() < before.keys()


def test_workers_that_are_killed_at_any_moment_leave_the_same_bytes(tmp_path: Path) -> None:
    """Processes that are killed and restarted."""
    source = write(tmp_path / "a.jsonl.zst", sentences(3_000))
    flags = ["--part-rows", 100, "--window-rows", 50]
    run(source, tmp_path / "undisturbed", *flags)
    line = [BUNDLE, source, "-o", tmp_path / "out", "--max-length", 4, "--threads", 1, "--workers", 1, *flags]
    draw, kills = random.Random(0), 4
    waiting = ["1/2", "2/2"]
    running: dict[str, subprocess.Popen[bytes]] = {}
    while waiting or running:
        for shard in waiting:
            command = [sys.executable, "-c", CODE, *map(str, line), "--shard", shard, "--resume"]
            running[shard] = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        waiting = []
        made = len(list((tmp_path / "out").glob("*.zst")))
        while kills and len(list((tmp_path / "out").glob("*.zst"))) < made + draw.randint(1, 8):
            assert any(each.poll() is None for each in running.values())
            time.sleep(0.002 * draw.random())
        shard = draw.choice(list(running))
        if kills:
            running[shard].kill()
            kills -= 1
        process = running.pop(shard)
        errors = process.communicate()[1]
        assert process.returncode in (0, -signal.SIGKILL), errors
        waiting = [shard] if process.returncode else []
    made = content(tmp_path / "out")
    if not POSIX:  # without locks, what a process that was killed left cannot be told from what another one writes
        made = {name: data for name, data in made.items() if ".txport-" not in name}
    assert made == content(tmp_path / "undisturbed"), "nothing half-written stays, either"


# Its largest memory in KiB; what `wait4` says includes that of the process that started it.
PEAK = """
import atexit, re
atexit.register(lambda: print(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1]))
"""


def test_memory_does_not_grow_with_the_corpus(tmp_path: Path) -> None:
    """Blank rows, which cost no time: the large corpus has 160 MB, packed to nothing."""
    used = []
    for count in (8_000, 40_000):
        source = write(tmp_path / f"{count}.txt.zst", [" " * 4_000] * count)
        line = [sys.executable, "-c", PEAK + CODE, BUNDLE, source, "-o", tmp_path / str(count), "--part-rows", "12000"]
        done = subprocess.run(list(map(str, line)), capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        used.append(int(done.stdout.split()[-1]) / 1024)
    assert len(all_rows(tmp_path / "40000")) == 40_000
    assert used[1] - used[0] < 60, used


# --- places ----------------------------------------------------------------------------------------------------------


def test_directories_patterns_and_urls_name_files(tmp_path: Path) -> None:
    for name in ("b.txt", "a.txt", "_c.txt", ".d.txt", "e.jsonl"):
        (tmp_path / name).write_text("one\n")
    (tmp_path / "_parts").mkdir()
    for prefix in ("", "file://"):
        base = f"{prefix}{tmp_path}"
        assert [file.rsplit("/")[-1] for file in list_files([base])] == ["a.txt", "b.txt", "e.jsonl"]
        assert list_files([f"{base}/*.txt"])[-2:] == [f"{base}/a.txt", f"{base}/b.txt"] or prefix == ""
        assert list_files([f"{base}/b.txt", f"{base}/a.txt"]) == [f"{base}/b.txt", f"{base}/a.txt"]
        with pytest.raises(InputError, match=r"no\.txt does not exist"):
            list_files([f"{base}/no.txt"])
        with pytest.raises(InputError, match="names no file"):
            list_files([f"{base}/*.parquet"])


@pytest.mark.parametrize("name", ["a.txt.gz", "a.jsonl.zst", "a.parquet"])
def test_stores_hold_what_a_disk_holds(tmp_path: Path, name: str) -> None:
    import fsspec

    source = write(tmp_path / name, TEXTS)
    run(source, tmp_path / "out", *PARTS)
    memory = fsspec.filesystem("memory")
    memory.pipe_file("/in/" + name, source.read_bytes())
    url = f"memory://out-{name}"
    run([f"memory://in/{name}"], url, *PARTS, "--shard", "1/2")
    run([f"memory://in/{name}"], url, *PARTS, "--resume")
    found = {path.split("/", 2)[2]: memory.cat_file(path) for path in memory.find(url)}
    expected = content(tmp_path / "out")
    assert found.keys() == expected.keys()
    assert {path: data for path, data in found.items() if path[0] != "_"} == {
        path: data for path, data in expected.items() if path[0] != "_"
    }
    memory.rm_file(f"/out-{name}/{parts_of(tmp_path / 'out')[1].name}")
    assert "1 part made, 2 there already" in run([f"memory://in/{name}"], url, *PARTS, "--resume")
    memory.rm("/", recursive=True)


def test_an_upload_that_breaks_off_does_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a store that shows a part of a file: the manifest, which comes last, is missing."""
    from fsspec.implementations.local import LocalFileSystem

    source, url = write(tmp_path / "a.jsonl", TEXTS), f"file://{tmp_path}/out"
    put, broken = LocalFileSystem.put_file, [2]

    def breaks(self: LocalFileSystem, local: str, there: str, **more: object) -> None:
        broken[0] -= there.endswith(".jsonl")
        if broken[0] == 0:
            Path(there).write_bytes(Path(local).read_bytes()[:100])
            raise OSError("the line is cut")
        put(self, local, there, **more)

    with monkeypatch.context() as patch:
        patch.setattr(LocalFileSystem, "put_file", breaks)
        with pytest.raises(InputError, match=r"out/a-00001\.jsonl cannot be read or written: the line is cut"):
            run(source, url, *PARTS)
    assert [part.name for part in parts_of(tmp_path / "out" / "_parts")] == ["a-00000.jsonl.json"]
    run(source, url, *PARTS, "--resume")
    run(source, tmp_path / "plain", *PARTS)
    assert {part.name: part.read_bytes() for part in parts_of(tmp_path / "out")} == {
        part.name: part.read_bytes() for part in parts_of(tmp_path / "plain")
    }


def test_bad_files_are_one_sentence(tmp_path: Path) -> None:
    whole = gzipped("one two three\n" * 9_000)
    (tmp_path / "cut.txt.gz").write_bytes(whole[:-20])
    (tmp_path / "no.txt.gz").write_bytes(b"no gzip at all")
    packed = write(tmp_path / "whole.txt.zst", ["one two"] * 9_000).read_bytes()
    (tmp_path / "cut.txt.zst").write_bytes(packed[:-3])
    (tmp_path / "no.txt.zst").write_bytes(b"no zstd at all")
    for name in ("cut.txt.gz", "no.txt.gz", "cut.txt.zst", "no.txt.zst"):
        with pytest.raises(InputError, match=f"{name} is damaged, or ends too early .*: take another copy"):
            run(tmp_path / name, tmp_path / f"out-{name}")
    two = tmp_path / "two.txt.zst"
    two.write_bytes(write(tmp_path / "b.txt.zst", ["one"]).read_bytes() * 2)
    with open_location(str(two)) as file:
        assert file.read(4) == b"\x28\xb5\x2f\xfd"
    run(two, tmp_path / "two")
    assert len(all_rows(tmp_path / "two")) == 2, "frames may follow each other"
    (tmp_path / "a.parquet").write_bytes(b"PAR1 and no more")
    with pytest.raises(InputError, match=r"a\.parquet is not a complete Parquet file"):
        run(tmp_path / "a.parquet", tmp_path / "out-parquet")
    with pytest.raises(InputError, match=r"unpack it, Parquet compresses its columns itself"):
        form_of("a.parquet.gz")


def test_bad_columns_and_names_are_one_sentence(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", TEXTS)
    write(tmp_path / "a.txt", TEXTS)
    with pytest.raises(InputError, match=r"a\.parquet has no column 'txt': did you mean text\?"):
        run(tmp_path / "a.parquet", tmp_path / "o1", "--column", "txt")
    with pytest.raises(InputError, match=r"column 'n' of .*a\.parquet is of type int64, not text: choose another"):
        run(tmp_path / "a.parquet", tmp_path / "o2", "--column", "n")
    with pytest.raises(InputError, match=r"a\.parquet has a column 'text' already: leave it out by --keep, or name"):
        run(tmp_path / "a.parquet", tmp_path / "o3", "--target", "text")
    with pytest.raises(InputError, match=r"two input files are called a: rename one"):
        run([tmp_path / "a.parquet", tmp_path / "a.txt"], tmp_path / "o4")
    with pytest.raises(InputError, match=r"lines of text have no place for scores: write --to jsonl or parquet"):
        run(tmp_path / "a.txt", tmp_path / "o5", "--scores")
    with pytest.raises(InputError, match="error is the column of errors"):
        run(tmp_path / "a.txt", tmp_path / "o6", "--target", "error", "--to", "jsonl")
    with pytest.raises(InputError, match="attention is not available as a column"):
        run(tmp_path / "a.txt", tmp_path / "o7", "--attention", "--to", "jsonl")
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="exists and is not a directory"):
        run(tmp_path / "a.txt", tmp_path / "file")
    with pytest.raises(AssertionError, match="is not I/N, for example 3/8"):
        run(tmp_path / "a.txt", tmp_path / "o8", "--shard", "9/8")


def test_what_a_store_needs_is_said(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="nowhere://a cannot be opened"):
        list_files(["nowhere://a"])
    code = (
        "import sys; sys.modules['fsspec'] = None; from txport.runtime.corpus.locations import Store; Store('s3://a')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert f"{MissingLibrary.__name__}: s3://a is a URL, and fsspec is not installed: pip install 'txport[corpus]'" in (
        done.stderr
    )
    assert Store(str(tmp_path / "new")).size("none") is None


def test_a_full_disk_leaves_no_part(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_self: object, _data: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("txport.runtime.corpus.locations.Hashed.write", full)
    with pytest.raises(ResourceError, match=r"the disk is full: .*a-00000\.jsonl was not written"):
        run(source, tmp_path / "out")
    assert content(tmp_path / "out") == {}
