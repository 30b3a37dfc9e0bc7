"""Divides the machine's cores among batches that run side by side."""

import os

# More workers read the weights more often than caches and memory bandwidth allow.
MOST_WORKERS = 4


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def shares(workers: int, threads: int, cores: int) -> tuple[int, int]:
    """The number of workers and of threads of each; 0 means as many as the cores allow."""
    if workers == 0:
        workers = max(1, min(MOST_WORKERS, cores // max(1, threads)))
    return workers, threads if threads or workers == 1 else max(1, cores // workers)
