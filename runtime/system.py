"""The differences between operating systems: locks, renames, synchronisation, cores, and what is known of a process.

Linux has all of it, macOS most. Elsewhere, as on Windows, each function does what every system can, and says so;
`TXPORT_SYSTEM=portable` chooses that anywhere, for tests.
"""

import contextlib
import ctypes
import errno
import os
import signal
import sys
from getpass import getuser
from pathlib import Path
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


class Lock:
    """A file or directory that one process has for itself until `close`, or until it ends.

    Where directories cannot be locked, as on Windows, it is never `held`.

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
        self._descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.elsewhere = True
        except OSError:
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


def exchange(first: Path, second: Path) -> bool:
    """Swap two names in one step (renameat2); False where the system, the kernel or the file system cannot."""
    renameat2 = c_function("renameat2")
    if renameat2 is None:
        return False
    arguments = _AT_FDCWD, os.fsencode(first), _AT_FDCWD, os.fsencode(second), _RENAME_EXCHANGE
    return bool(renameat2(*arguments) == 0)


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
    return str(os.getuid()) if POSIX else getuser()


def affinity() -> int:
    """Cores that this process may run on or, where the system does not say, those of the machine."""
    return len(os.sched_getaffinity(0)) if POSIX and hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def end_with_parent() -> None:
    """Have the system kill this process when its parent ends, even while it is stopped; elsewhere do nothing."""
    if prctl := c_function("prctl"):
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def process_memory(field: str) -> int | None:
    """Bytes of a field of /proc/self/status; None where the system does not say.

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
    """The file name of a shared library."""
    return _LIBRARIES.get(sys.platform, "lib{}.so").format(stem)


def c_function(name: str) -> Any:
    """A function of the C library; None where it has no such function."""
    return getattr(ctypes.CDLL(None, use_errno=True), name, None) if POSIX else None
