"""Divides the cores that the process may use among batches that run side by side."""

import math
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path, PurePosixPath

from txport.runtime.system import affinity

# More workers read the weights more often than caches and memory bandwidth allow.
MOST_WORKERS = 4


def cores() -> int:
    """Cores that this process may use: by its affinity, and by the quota of its control group."""
    return min(affinity(), quota() or affinity())


def limited() -> int:
    """`cores()` where a quota makes them fewer, of which ONNX Runtime does not know; else 0."""
    return cores() if cores() < affinity() else 0


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
            with suppress(OSError, ValueError):  # it is not there, or has no limit: "max"
                if controllers:
                    files = (folder / "cpu.cfs_quota_us", folder / "cpu.cfs_period_us")
                    time, period = (file.read_text() for file in files)
                else:
                    time, period = (folder / "cpu.max").read_text().split()
                yield int(time), int(period)


def shares(workers: int, threads: int, cores: int) -> tuple[int, int]:
    """The number of workers and of threads of each; 0 means as many as the cores allow."""
    if workers == 0:
        workers = max(1, min(MOST_WORKERS, cores // max(1, threads)))
    return workers, threads if threads or workers == 1 else max(1, cores // workers)
