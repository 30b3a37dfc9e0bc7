"""The differences between operating systems: locks, renames, synchronisation, cores, and what is known of a process.

Linux has all of it, macOS most. Elsewhere, as on Windows, each function uses what all systems support, as documented;
`TXPORT_SYSTEM=portable` chooses that anywhere, for tests.
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
    """A file or directory that one process has for itself until `close`, or until it ends.

    Where files cannot be locked, as on Windows and some network file systems, it is never `held`.

    Args:
        path: what to lock; links are not followed.

    Attributes:
        held: whether this process has it now.
        elsewhere: whether another process has it.

    Raises:
        OSError: it is gone, or cannot be opened.
    """

    def __init__(self, path: Path) -> None:
        self.held = self.elsewhere = False
        self._descriptor = -1
        if not POSIX:
            path.lstat()
            return
        self._descriptor = _open_to_lock(path)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.elsewhere = True
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                self.close()
                raise
        else:
            self.held = True

    def close(self) -> None:
        """Let go of it."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self.held = False
        self._descriptor = -1


def _open_to_lock(path: Path) -> int:
    """A descriptor for writing, without which NFSv4 locks no file (flock(2)); directories are locked locally there."""
    flags = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        return os.open(path, os.O_RDWR | flags)
    except OSError as error:
        if error.errno not in (errno.EISDIR, errno.EACCES, errno.EROFS):
            raise
        return os.open(path, os.O_RDONLY | flags)


def exchange(first: Path, second: Path) -> bool:
    """Swap two names in one step (renameat2); False where the system, the kernel or the file system cannot."""
    renameat2 = c_function("renameat2")
    if renameat2 is None:
        return False
    arguments = _AT_FDCWD, os.fsencode(first), _AT_FDCWD, os.fsencode(second), _RENAME_EXCHANGE
    return bool(renameat2(*arguments) == 0)


def copy_mode(path: Path, sibling: Path) -> None:
    """Let the successor of a file or directory be readable by the same users, where the system has modes."""
    with contextlib.suppress(FileNotFoundError):
        mode = stat.S_IMODE(path.stat().st_mode)
        if POSIX:
            sibling.chmod(mode | stat.S_IRWXU if sibling.is_dir() else mode)


def is_private(folder: Path) -> bool:
    """Return whether only this user and root can write to a folder, if the system has modes."""
    status = folder.stat()
    return not POSIX or (status.st_uid in (0, os.geteuid()) and not status.st_mode & 0o022)


def synchronise(path: Path) -> None:
    """Wait until a file or, where the system can, the names in a directory are on the disk."""
    if not POSIX and path.is_dir():
        return
    descriptor = os.open(path, os.O_RDONLY if POSIX else os.O_RDWR)
    try:
        os.fsync(descriptor)
    except OSError as error:
        # Some network file systems cannot sync a directory; their rename is as safe as they make it.
        if error.errno != errno.EINVAL:
            raise
    finally:
        os.close(descriptor)


def user() -> str:
    """Identify this user, in the names of files that lie where all users write."""
    if POSIX:
        return str(os.getuid())
    return getuser()


def affinity() -> int:
    """Return the number of cores of this process or, if unknown, of the machine."""
    if POSIX and hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def cores() -> int:
    """Cores that this process may use: by its affinity, and by the quota of its control group."""
    return min(affinity(), quota() or affinity())


def limited() -> int:
    """Return `cores()` if a quota reduces them, which ONNX Runtime ignores, else 0."""
    if cores() < affinity():
        return cores()
    return 0


def quota(root: Path = Path("/")) -> int:
    """Cores whose time the control group of this process may take, as of a container: 0 if nothing limits it.

    A part of a core counts as one, as in the JVM and Go; more threads than that stand still for parts of each period.

    Args:
        root: where /proc and /sys are.
    """
    return min((math.ceil(time / period) for time, period in _limits(root) if time > 0 < period), default=0)


def _limits(root: Path) -> Iterator[tuple[int, int]]:
    """Microseconds of processor time, and the period in which they may be taken, of this process's groups.

    In the files of cgroups(7), of version 2 and 1. A container may see its own group as the root.
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
            with contextlib.suppress(OSError, ValueError):  # it is not there, or has no limit: "max"
                if controllers:
                    files = (folder / "cpu.cfs_quota_us", folder / "cpu.cfs_period_us")
                    time, period = (file.read_text() for file in files)
                else:
                    time, period = (folder / "cpu.max").read_text().split()
                yield int(time), int(period)


def end_with_parent() -> None:
    """Have the system kill this process when its parent ends, even while it is stopped; elsewhere do nothing."""
    if prctl := c_function("prctl"):
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def process_memory(field: str) -> int | None:
    """Return the bytes of a field of /proc/self/status, or None if unknown.

    Args:
        field: "VmHWM": the peak (not `ru_maxrss`, which begins with the peak of the process that started this one);
            "VmRSS": resident now; "RssAnon": of these, not mapped from files.
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
    """Return a function of the C library; None where it has no such function."""
    if POSIX:
        return getattr(ctypes.CDLL(None, use_errno=True), name, None)
    return None
