"""What a process of ours asks of the operating system: to end with its parent, and how much memory it took (Linux)."""

import contextlib
import ctypes
import signal

_PR_SET_PDEATHSIG = 1


def end_with_parent() -> None:
    """Have the system kill this process when its parent ends, even while it is stopped; elsewhere do nothing."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def process_memory(field: str) -> int | None:
    """Bytes of a field of /proc/self/status; None where the system does not say.

    Args:
        field: "VmHWM": the peak (not `ru_maxrss`, which begins with the peak of the process that started this one);
            "VmRSS": resident now; "RssAnon": of these, not mapped from files.
    """
    with contextlib.suppress(OSError), open("/proc/self/status", encoding="ascii", errors="replace") as status:
        for line in status:
            if line.startswith(f"{field}:"):
                return int(line.split()[1]) * 1024
    return None
