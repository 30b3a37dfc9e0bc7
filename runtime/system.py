"""Functions that depend on the operating system: locks, renames, synchronisation, cores, and memory of a process.

Linux supports all of them, macOS most. On other systems, such as Windows, each function has a documented portable
variant. `TXPORT_SYSTEM=portable` selects the portable variants on any system, for tests.
"""

import contextlib
import ctypes
import errno
import math
import os
import signal
import stat
import sys
from collections.abc import Iterator
from getpass import getuser
from pathlib import Path, PurePosixPath
from typing import Any

try:
    import fcntl
except ImportError:  # Windows
    POSIX = False
else:
    POSIX = os.environ.get("TXPORT_SYSTEM") != "portable"

_PR_SET_PDEATHSIG = 1
_AT_FDCWD = -100
_RENAME_EXCHANGE = 2
_LIBRARIES = {"darwin": "lib{}.dylib", "win32": "{}.dll"}


# Errors of flock where locks are not supported.
_NO_LOCKS = (errno.EBADF, errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS)


class Lock:
    """An exclusive lock of a file or directory, until `close` or the end of the process.

    If the system cannot lock files, such as Windows and some network file systems, the lock is never `is_held`.

    Args:
        path: the file or directory; links are not followed.

    Attributes:
        is_held: whether this process holds the lock.
        held_by_another: whether another process holds the lock.

    Raises:
        OSError: the path does not exist or cannot be opened.
    """

    def __init__(self, path: Path) -> None:
        self.is_held = self.held_by_another = False
        self._descriptor = -1
        if not POSIX:
            path.lstat()
            return
        self._descriptor = _open_to_lock(path)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.held_by_another = True
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                self.close()
                raise
        else:
            self.is_held = True

    def close(self) -> None:
        """Release the lock."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self.is_held = False
        self._descriptor = -1


def _open_to_lock(path: Path) -> int:
    """Return a descriptor, open for writing if possible, because NFSv4 requires this for locks of files (flock(2)).

    Directories cannot be opened for writing; NFS locks them only on this machine.
    """
    flags = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        return os.open(path, os.O_RDWR | flags)
    except OSError as error:
        if error.errno not in (errno.EISDIR, errno.EACCES, errno.EROFS):
            raise
        return os.open(path, os.O_RDONLY | flags)


def exchange(first: Path, second: Path) -> bool:
    """Swap two names in one step (renameat2); return False if the system or the file system does not support it."""
    renameat2 = c_function("renameat2")
    if renameat2 is None:
        return False
    arguments = _AT_FDCWD, os.fsencode(first), _AT_FDCWD, os.fsencode(second), _RENAME_EXCHANGE
    return bool(renameat2(*arguments) == 0)


def copy_mode(path: Path, sibling: Path) -> None:
    """Give `sibling`, which will replace a file or directory, the same access rights, if the system has modes."""
    with contextlib.suppress(FileNotFoundError):
        mode = stat.S_IMODE(path.stat().st_mode)
        if POSIX:
            sibling.chmod(mode | stat.S_IRWXU if sibling.is_dir() else mode)


def is_private(folder: Path) -> bool:
    """Return whether only this user and root can write to a folder, if the system has modes."""
    status = folder.stat()
    return not POSIX or (status.st_uid in (0, os.geteuid()) and not status.st_mode & 0o022)


def synchronise(path: Path) -> None:
    """Wait until a file or, if the system supports it, the names in a directory are on the disk."""
    if not POSIX and path.is_dir():
        return
    descriptor = os.open(path, os.O_RDONLY if POSIX else os.O_RDWR)
    try:
        os.fsync(descriptor)
    except OSError as error:
        # Some network file systems cannot sync a directory. The safety of a rename then depends on them.
        if error.errno != errno.EINVAL:
            raise
    finally:
        os.close(descriptor)


def user() -> str:
    """Return a name of this user, for names of files in folders that all users share."""
    if POSIX:
        return str(os.getuid())
    return getuser()


def affinity() -> int:
    """Return the number of cores of this process or, if unknown, of the machine."""
    if POSIX and hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def cores() -> int:
    """Return the number of cores that this process may use, by its affinity and the quota of its control group."""
    return min(affinity(), quota() or affinity())


def limited() -> int:
    """Return `cores()` if a quota reduces them, since ONNX Runtime ignores quotas; otherwise 0."""
    if cores() < affinity():
        return cores()
    return 0


def quota(root: Path = Path("/")) -> int:
    """Return the processor quota of the control group (such as a container) in cores; 0 if there is no limit.

    A part of a core counts as one core, as in the JVM and Go. With more threads than the quota, all threads are paused
    for a part of each period.

    Args:
        root: folder that contains /proc and /sys.
    """
    return min((math.ceil(time / period) for time, period in _limits(root) if time > 0 < period), default=0)


def _limits(root: Path) -> Iterator[tuple[int, int]]:
    """Yield the allowed microseconds of processor time and their period for each control group of this process.

    They are read from the files of cgroups(7), versions 2 and 1. A container may see its own group as the root.
    """
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:  # not Linux
        return
    for controllers, path in (line.split(":", 2)[1:] for line in lines if line.count(":") >= 2):
        if controllers and "cpu" not in controllers.split(","):
            continue
        group = PurePosixPath(path.lstrip("/"))
        for folder in (root / "sys/fs/cgroup" / controllers / each for each in (group, *group.parents)):
            with contextlib.suppress(OSError, ValueError):  # the file does not exist, or contains "max" for no limit
                if controllers:
                    files = (folder / "cpu.cfs_quota_us", folder / "cpu.cfs_period_us")
                    time, period = (file.read_text() for file in files)
                else:
                    time, period = (folder / "cpu.max").read_text().split()
                yield int(time), int(period)


def end_with_parent() -> None:
    """Let Linux kill this process when its parent ends, even while it is stopped; do nothing on other systems."""
    if prctl := c_function("prctl"):
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def process_memory(field: str) -> int | None:
    """Return the bytes of a field of /proc/self/status, or None if unknown.

    Args:
        field: "VmHWM" for the peak, "VmRSS" for present resident memory, "RssAnon" for its part that is not mapped from
            files. (The peak of `ru_maxrss` would include the peak of the parent process.)
    """
    with contextlib.suppress(OSError), open("/proc/self/status", encoding="ascii", errors="replace") as status:
        for line in status if POSIX else ():
            if line.startswith(f"{field}:"):
                return int(line.split()[1]) * 1024
    return None


def library_name(stem: str) -> str:
    """Return the file name of a shared library."""
    return _LIBRARIES.get(sys.platform, "lib{}.so").format(stem)


def c_function(name: str) -> Any:
    """Return a function of the C library, or None if it does not exist."""
    if POSIX:
        return getattr(ctypes.CDLL(None, use_errno=True), name, None)
    return None
