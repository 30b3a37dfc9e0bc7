"""Files that are either complete or absent: hashes, atomic writes, and directories that appear by one rename."""

import errno
import glob
import hashlib
import os
import secrets
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from txport.runtime.errors import InputError, ResourceError, TxportError
from txport.runtime.system import Lock, copy_mode, exchange, synchronise, user

_CHUNK = 1 << 20
_TEMPORARY = ".txport-"  # part of the names of unfinished files and directories
_EXHAUSTED = (errno.ENOSPC, errno.EDQUOT, errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.EIO)


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file in lower-case hexadecimal digits. The file is read in blocks."""
    digest = hashlib.sha256()
    buffer = bytearray(_CHUNK)
    view = memoryview(buffer)
    with path.open("rb", buffering=0) as file:
        while count := file.readinto(buffer):
            digest.update(view[:count])
    return digest.hexdigest()


def write_atomically(path: Path, data: bytes) -> None:
    """Write a file atomically: readers see the old or the new content, never a part, even after a crash.

    Raises:
        InputError: the file cannot be written.
        ResourceError: the disk is full or fails.
    """
    with new_file(path) as file:
        file.write(data)


@contextmanager
def new_file(path: Path) -> Iterator[BinaryIO]:
    """Yield a temporary file to write. It is renamed to `path` when the block ends, and removed if the block raises.

    A process that is killed leaves a hidden sibling of `path`, which the next call removes.

    Raises:
        InputError: `path` is not a regular file, or the directory is not writable.
        ResourceError: the disk is full or fails.
    """
    path = path.resolve()
    if path.exists() and not path.is_file():
        raise InputError(f"{path} exists and is not a file: choose another path")
    with file_errors(path, ours=True):
        remove_leftovers(path.parent, path.name)
    with _locked_sibling(path, lambda sibling: sibling.touch(exist_ok=False)) as sibling:
        with file_errors(path, ours=True):
            file = sibling.open("wb")
            copy_mode(path, sibling)
        with file_errors(path, ours=False), file:
            yield file
            # Without it, a crash after the rename could leave an empty file of the right name.
            file.flush()
            os.fsync(file.fileno())
        with file_errors(path, ours=True):
            os.replace(sibling, path)
            synchronise(path.parent)


@contextmanager
def scratch_directory() -> Iterator[Path]:
    """Yield an empty private directory in the system's folder of temporary files. It is removed at the end.

    The next call removes directories that killed processes have left.
    """
    target = Path(tempfile.gettempdir(), f"txport-{user()}")
    remove_leftovers(target.parent, target.name)
    with _locked_sibling(target, lambda sibling: sibling.mkdir(0o700)) as directory:
        yield directory


@contextmanager
def new_directory(target: Path, replace: bool = False, *, marker: str | None = None) -> Iterator[Path]:
    """Yield a temporary directory to fill. It is renamed to `target` when the block ends.

    If the block raises, nothing is left behind. A process that is killed leaves a hidden sibling of `target`. The next
    call removes it, because its lock is free.

    Args:
        target: the directory to make, with its missing parents.
        replace: exchange an existing directory for the new one, in one step if the kernel supports it, and then delete
            the old one.
        marker: name of a file that an existing, non-empty directory must contain to be replaced, so that `--force` with
            a mistyped path does not delete a home directory.

    Raises:
        InputError: `target` exists and `replace` is false, or `target` must not be replaced or cannot be written.
        ResourceError: the disk is full or fails.
    """
    target = Path(os.path.abspath(target)).resolve()
    check_target(target, replace, marker)
    with file_errors(target, ours=True):
        target.parent.mkdir(parents=True, exist_ok=True)
        remove_leftovers(target.parent, target.name)
    with _locked_sibling(target, Path.mkdir) as directory:
        with file_errors(target, ours=True):
            copy_mode(target, directory)
        with file_errors(target, ours=False):
            yield directory
        with file_errors(target, ours=True):
            _sync_tree(directory)
            check_target(target, replace, marker)  # again, since another process may have made it meanwhile
            _publish(directory, target, replace)


def check_regular(directory: Path, error: type[TxportError] = InputError, depth: int = 3) -> None:
    """Refuse a directory that contains a named pipe, a device or a socket: to open one may take forever.

    Args:
        directory: of a model. Hidden folders are not examined, since tools such as Git have sockets there.
        error: type of the error.
        depth: maximum number of nested folders.

    Raises:
        TxportError: of the type `error`.
    """
    for entry in _entries(directory):
        if entry.is_dir():
            if depth and not entry.name.startswith("."):
                check_regular(Path(entry.path), error, depth - 1)
        elif not entry.is_file() and os.path.exists(entry.path):
            raise error(f"{entry.path} is a named pipe, a device or a socket: remove it, or copy the model again")


def _entries(directory: Path) -> list[os.DirEntry[str]]:
    """Return the entries of a directory in name order; none if it cannot be read."""
    try:
        with os.scandir(directory) as entries:
            return sorted(entries, key=lambda entry: entry.name)
    except OSError:
        return []


def make_directory(path: Path) -> None:
    """Make a directory and its parents, if they do not exist, for files that are written one by one.

    Raises:
        InputError: the path is a file, or the directory cannot be made or is not writable.
        ResourceError: the disk is full or fails.
    """
    if os.path.lexists(path) and not path.is_dir():
        raise InputError(f"{path} exists and is not a directory: choose another path")
    with file_errors(path, ours=True):
        path.mkdir(parents=True, exist_ok=True)
        if not os.access(path, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


def check_target(target: Path, replace: bool, marker: str | None) -> None:
    """Check that a target may be made or replaced; see `new_directory`."""
    if not os.path.lexists(target):
        return
    if not target.is_dir():
        raise InputError(f"{target} exists and is not a directory: choose another path")
    if not replace:
        raise InputError(f"{target} exists already: choose another path, or replace it with --force")
    if marker is not None and any(target.iterdir()) and not (target / marker).exists():
        raise InputError(f"{target} is not replaced, because it holds other files and no {marker}: choose another path")


def check_writable(target: Path) -> None:
    """Check that a file or directory can be made, by making an empty directory in its nearest existing parent.

    Raises:
        InputError: it cannot be made.
        ResourceError: the disk is full or fails.
    """
    above = next(parent for parent in target.absolute().parents if os.path.lexists(parent))
    with file_errors(target, ours=True):
        os.rmdir(tempfile.mkdtemp(prefix=f".{target.name[:64]}{_TEMPORARY}", dir=above))


@contextmanager
def file_errors(target: Path, *, ours: bool) -> Iterator[None]:
    """Turn an error of the file system into a `TxportError` of one sentence.

    Native writers wrap ENOSPC in other exceptions, so the message of ENOSPC is recognised as well.

    Args:
        target: the file or directory that could not be written.
        ours: whether the block contains only code of this module, so that every error concerns `target`.
    """
    try:
        yield
    except TxportError:
        raise
    except Exception as error:
        if isinstance(error, OSError):
            code = error.errno
        else:
            code = None
        # safetensors and PyTorch raise their own exceptions, which contain only the text of the error.
        if code in (errno.ENOSPC, errno.EDQUOT) or "No space left on device" in str(error):
            message = f"the disk is full: {target} was not written; free some space or choose another disk"
            raise ResourceError(message) from error
        if ours and code in (errno.EEXIST, errno.ENOTEMPTY) and target.exists():
            raise InputError(f"{target} exists already: choose another path, or replace it with --force") from error
        if ours and isinstance(error, OSError):
            raise io_failure(error, f"{target} cannot be written ({error.strerror}): choose another path") from error
        raise


def io_failure(error: OSError, message: str) -> InputError | ResourceError:
    """Return the error for a failed read or write: `ResourceError` for faults such as a full disk."""
    if error.errno in _EXHAUSTED:
        return ResourceError(message)
    return InputError(message)


@contextmanager
def _locked_sibling(target: Path, make: Callable[[Path], None]) -> Iterator[Path]:
    """Yield a file or directory that `make` creates beside `target`, locked as long as this process lives.

    At the end, the file or directory of this name is removed: an unfinished one after a failure, or the old directory
    after an exchange. The block may be interrupted at any time.
    """
    while True:
        sibling = target.with_name(f".{target.name}{_TEMPORARY}{secrets.token_hex(8)}")
        lock = None
        try:
            with file_errors(target, ours=True):
                make(sibling)
                # Before the sibling is locked, another process may remove it as a leftover: then try another name.
                with suppress(FileNotFoundError):
                    lock = Lock(sibling)
            if lock is not None and not lock.held_by_another and sibling.exists():
                yield sibling
                return
        finally:
            _remove(sibling)
            if lock is not None:
                lock.close()


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(FileNotFoundError, NotADirectoryError):
            path.unlink()


def remove_leftovers(folder: Path, name: str | None = None) -> None:
    """Remove temporary files and directories in `folder` that no process has locked.

    Nothing is removed on systems without such locks.

    Args:
        folder: the directory to clean.
        name: name of the file or directory that was being written; None for any.
    """
    if name is None:
        pattern = "*"
    else:
        pattern = glob.escape(name)
    for leftover in folder.glob(f".{pattern}{_TEMPORARY}*"):
        try:
            lock = Lock(leftover)
        except OSError:
            continue
        try:
            if lock.is_held:
                _remove(leftover)
        finally:
            lock.close()


def _publish(directory: Path, target: Path, replace: bool) -> None:
    """Rename `directory` to `target`; an existing target gets the name `directory`."""
    if not replace or not target.exists():
        os.rename(directory, target)
    elif not exchange(directory, target):
        # Two renames: for a moment there is no target. The old directory comes back if the second one fails.
        aside = directory.with_name(directory.name + "-old")
        os.rename(target, aside)
        try:
            os.rename(directory, target)
        except OSError:
            os.rename(aside, target)
            raise
        os.rename(aside, directory)
    synchronise(target.parent)


def _sync_tree(directory: Path) -> None:
    for folder, _, names in os.walk(directory):
        for name in names:
            synchronise(Path(folder, name))
        synchronise(Path(folder))
