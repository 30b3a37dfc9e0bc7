"""Files and directories appear whole or not at all."""

import errno
import hashlib
import os
import shutil
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from txport.runtime import files, system
from txport.runtime.errors import InputError, ResourceError
from txport.runtime.files import (
    make_directory,
    new_directory,
    new_file,
    scratch_directory,
    sha256,
    write_atomically,
)
from txport.runtime.system import POSIX


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


@pytest.mark.parametrize("size", [0, 1, (1 << 20) - 1, 1 << 20, (1 << 20) + 1])
def test_sha256(tmp_path: Path, size: int) -> None:
    data = os.urandom(size)
    (tmp_path / "x").write_bytes(data)
    assert sha256(tmp_path / "x") == hashlib.sha256(data).hexdigest()


def test_a_new_directory_appears_when_the_block_ends(tmp_path: Path) -> None:
    with new_directory(tmp_path / "parent" / "new") as directory:
        (directory / "deep").mkdir()
        (directory / "deep" / "file").write_text("x")
        assert not (tmp_path / "parent" / "new").exists()
    assert (tmp_path / "parent" / "new" / "deep" / "file").read_text() == "x"
    assert names(tmp_path / "parent") == ["new"]


def test_a_relative_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with new_directory(Path("new")):
        pass
    assert names(tmp_path) == ["new"]


def test_an_error_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="mine"), new_directory(tmp_path / "new") as directory:
        (directory / "file").write_text("x")
        raise ValueError("mine")
    assert names(tmp_path) == []


@pytest.mark.parametrize(("maker", "new"), [("touch", new_file), ("mkdir", new_directory)])
def test_an_interruption_at_the_first_moment_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, maker: str, new: Callable[[Path], AbstractContextManager[object]]
) -> None:
    make = getattr(Path, maker)

    def interrupted(path: Path, *arguments: object, **named: object) -> None:
        make(path, *arguments, **named)
        if path != tmp_path:
            raise KeyboardInterrupt

    monkeypatch.setattr(Path, maker, interrupted)
    with pytest.raises(KeyboardInterrupt), new(tmp_path / "new"):
        pass
    assert names(tmp_path) == []


def test_an_existing_directory_stays(tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    with pytest.raises(InputError, match="exists already.*--force"), new_directory(tmp_path / "old"):
        pass
    assert names(tmp_path) == ["old"]


def test_a_directory_that_appears_meanwhile_stays(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="exists already"), new_directory(tmp_path / "new"):
        (tmp_path / "new").mkdir()
    assert names(tmp_path) == ["new"]


@pytest.mark.parametrize("swap", [True, False])
def test_replace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, swap: bool) -> None:
    if not swap:
        monkeypatch.setattr(files, "exchange", lambda first, second: False)
    target = tmp_path / "old"
    target.mkdir()
    (target / "file").write_text("old")
    with new_directory(target, replace=True) as directory:
        (directory / "file").write_text("new")
        assert (target / "file").read_text() == "old"
    assert (target / "file").read_text() == "new"
    assert names(tmp_path) == ["old"]


def test_an_error_keeps_the_old_directory(tmp_path: Path) -> None:
    target = tmp_path / "old"
    target.mkdir()
    (target / "file").write_text("old")
    with pytest.raises(KeyboardInterrupt), new_directory(target, replace=True):
        raise KeyboardInterrupt
    assert (target / "file").read_text() == "old"
    assert names(tmp_path) == ["old"]


def test_exchange_works_here(tmp_path: Path) -> None:
    if sys.platform != "linux":
        pytest.skip("needs Linux")
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / name).touch()
    if not system.exchange(tmp_path / "a", tmp_path / "b"):
        pytest.skip("needs a file system that can exchange names")
    assert names(tmp_path / "a") == ["b"]
    assert names(tmp_path / "b") == ["a"]


def test_replace_wants_the_marker(tmp_path: Path) -> None:
    (tmp_path / "precious").mkdir()
    with new_directory(tmp_path / "precious", replace=True, marker="manifest.json"):
        pass  # an empty directory is no loss
    (tmp_path / "precious" / "thesis.tex").touch()
    with pytest.raises(InputError, match="is not replaced"):
        with new_directory(tmp_path / "precious", replace=True, marker="manifest.json"):
            pass
    (tmp_path / "precious" / "manifest.json").touch()
    with new_directory(tmp_path / "precious", replace=True, marker="manifest.json"):
        pass
    assert names(tmp_path / "precious") == []


def test_a_file_is_never_replaced_by_a_directory(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="is not a directory"), new_directory(tmp_path / "file", replace=True):
        pass
    assert (tmp_path / "file").is_file()


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    with new_directory(tmp_path / "link", replace=True) as directory:
        (directory / "x").touch()
    assert (tmp_path / "link").is_symlink()
    assert names(tmp_path / "real") == ["x"]


def test_a_full_disk_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(ResourceError, match="the disk is full"), new_directory(tmp_path / "new"):
        with open("/dev/full", "wb") as full:
            full.write(b"x")
    assert names(tmp_path) == []


def test_a_full_disk_in_a_library_of_another_language(tmp_path: Path) -> None:
    with pytest.raises(ResourceError, match="the disk is full"), new_directory(tmp_path / "new"):
        raise RuntimeError("I/O error: No space left on device (os error 28)")


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="cannot be written"), new_directory(tmp_path / "file" / "new"):
        pass
    with pytest.raises(InputError, match="cannot be written"), new_directory(Path("/proc/here/new")):
        pass
    with pytest.raises(InputError, match="cannot be written"):
        write_atomically(tmp_path / "nowhere" / "x", b"")


RUN = """
import sys, time
from pathlib import Path
from txport.runtime.files import new_directory
with new_directory(Path(sys.argv[1])) as directory:
    (directory / "half").write_text("x")
    print("written", flush=True)
    time.sleep(600)
"""


@pytest.mark.skipif(not POSIX, reason="needs locks of files and directories, which the system lacks")
def test_what_a_killed_run_leaves_is_removed_but_not_what_a_living_one_has(tmp_path: Path) -> None:
    run = subprocess.Popen([sys.executable, "-c", RUN, str(tmp_path / "new")], stdout=subprocess.PIPE)
    try:
        assert run.stdout is not None and run.stdout.readline() == b"written\n"
        with new_directory(tmp_path / "new", replace=True):
            assert len(names(tmp_path)) == 2  # the living one's and ours
        run.send_signal(signal.SIGKILL)
        run.wait()
    finally:
        run.kill()
        run.stdout and run.stdout.close()
    assert len(names(tmp_path)) == 2
    (tmp_path / ".other.txport-12345678").mkdir()
    with new_directory(tmp_path / "new", replace=True):
        pass
    assert names(tmp_path) == [".other.txport-12345678", "new"]


WRITE = """
import sys, time
from pathlib import Path
from txport.runtime.files import new_file, scratch_directory
with new_file(Path(sys.argv[1])) as file, scratch_directory() as scratch:
    file.write(b"half")
    (scratch / "half").write_text("x")
    print("written", flush=True)
    time.sleep(600)
"""


@pytest.mark.skipif(not POSIX, reason="needs locks of files and directories, which the system lacks")
def test_a_killed_run_leaves_neither_files_nor_scratch_space_for_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    monkeypatch.setattr("tempfile.tempdir", None)  # which Python looks up once
    (tmp_path / "temporary").mkdir()
    run = subprocess.Popen([sys.executable, "-c", WRITE, str(tmp_path / "file")], stdout=subprocess.PIPE)
    try:
        assert run.stdout is not None and run.stdout.readline() == b"written\n"
        write_atomically(tmp_path / "file", b"ours")
        with scratch_directory() as scratch:
            assert len(names(tmp_path / "temporary")) == 2, "the living one's and ours"
            assert scratch.stat().st_mode & 0o777 == 0o700
        assert len(names(tmp_path)) == 3 and len(names(tmp_path / "temporary")) == 1
        run.send_signal(signal.SIGKILL)
        run.wait()
    finally:
        run.kill()
        run.stdout and run.stdout.close()
    assert len(names(tmp_path)) == 3 and len(names(tmp_path / "temporary")) == 1
    (tmp_path / ".other.txport-12345678").write_text("not ours")
    write_atomically(tmp_path / "file", b"again")
    with scratch_directory():
        pass
    assert names(tmp_path / "temporary") == []
    assert names(tmp_path) == [".other.txport-12345678", "file", "temporary"]


def test_new_files_replace_old_ones_at_once(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    with new_file(path) as file:
        file.write(b"new")
        assert path.read_text() == "old"
    assert path.read_text() == "new"
    with pytest.raises(ValueError, match="mine"), new_file(path) as file:
        file.write(b"half")
        raise ValueError("mine")
    assert path.read_text() == "new"
    assert names(tmp_path) == ["file"]


@pytest.mark.skipif(not POSIX, reason="needs locks and modes of POSIX")
@pytest.mark.parametrize("code", [errno.EBADF, errno.ENOLCK, errno.ENOTSUP])
def test_files_are_written_where_there_are_no_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    """As NFSv4's client refuses an exclusive lock on a file that is open for reading only, or has no lock server."""

    def flock(descriptor: int, operation: int) -> None:
        readable = fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY
        if code != errno.EBADF or (readable and not stat.S_ISDIR(os.fstat(descriptor).st_mode)):
            raise OSError(code, os.strerror(code))
        real(descriptor, operation)

    import fcntl

    real = fcntl.flock
    monkeypatch.setattr(fcntl, "flock", flock)
    for text in (b"one", b"two"):
        write_atomically(tmp_path / "file", text)
        assert (tmp_path / "file").read_bytes() == text
        with new_directory(tmp_path / "directory", replace=True) as directory:
            (directory / "file").write_bytes(text)
    assert names(tmp_path) == ["directory", "file"] and (tmp_path / "directory/file").read_bytes() == b"two"


@pytest.mark.skipif(not POSIX, reason="needs modes of POSIX")
@pytest.mark.parametrize("mode", [0o600, 0o640, 0o444])
def test_what_is_replaced_keeps_its_mode(tmp_path: Path, mode: int) -> None:
    file, directory = tmp_path / "file", tmp_path / "directory"
    file.write_bytes(b"secret")
    file.chmod(mode)
    directory.mkdir(0o700)
    with new_file(file) as written:
        assert os.fstat(written.fileno()).st_mode & 0o777 == mode, "from the first byte on"
        written.write(b"new")
    with new_directory(directory, replace=True):
        pass
    assert (file.stat().st_mode & 0o777, directory.stat().st_mode & 0o777) == (mode, 0o700)
    assert file.read_bytes() == b"new"


def test_special_files_are_not_replaced(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path):
        with pytest.raises(InputError, match="is not a file"):
            write_atomically(path, b"x")


def test_many_runs_at_once(tmp_path: Path) -> None:
    short = RUN.replace("time.sleep(600)", "time.sleep(0.2)")
    started = time.monotonic()
    runs = [
        subprocess.Popen([sys.executable, "-c", short, str(tmp_path / "new")], stderr=subprocess.PIPE) for _ in range(4)
    ]
    errors = [run.communicate()[1].decode() for run in runs]
    assert sum(run.returncode == 0 for run in runs) == 1, errors
    assert sum("exists already" in error for error in errors) == 3, errors
    assert names(tmp_path) == ["new"]
    assert time.monotonic() - started < 60


# Root may write anywhere: it has to give that up.
ORDINARY = ["setpriv", "--bounding-set=-all", "--inh-caps=-all"] if os.geteuid() == 0 else []


@pytest.mark.skipif(bool(ORDINARY) and not shutil.which("setpriv"), reason="needs setpriv, or a user who is not root")
def test_places_that_may_not_be_written(tmp_path: Path) -> None:
    calls = ["make_directory(Path('locked/new'))", "make_directory(Path('locked'))"]
    calls.append("write_atomically(Path('locked/x'), b'')")
    script = "from pathlib import Path\nfrom txport.runtime.files import *\n" + "".join(
        f"try:\n    {call}\nexcept InputError as error:\n    print(error)\n" for call in calls
    )
    (tmp_path / "locked").mkdir(0o555)
    done = subprocess.run([*ORDINARY, sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True)
    said = done.stdout.splitlines()
    assert len(said) == 3, done.stderr
    assert all("cannot be written (Permission denied): choose another path" in line for line in said)
    with pytest.raises(InputError, match="exists and is not a directory"):
        (tmp_path / "file").touch()
        make_directory(tmp_path / "file")
    make_directory(tmp_path / "a" / "b")
    assert (tmp_path / "a" / "b").is_dir()
