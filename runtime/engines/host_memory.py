"""Host memory for the buffers of batches, reused from one batch to the next."""

import mmap
import threading
import weakref
from contextlib import suppress
from typing import Any

import numpy as np
import numpy.typing as npt

# Bytes from which memory is mapped directly, and kept.
LARGE = 4 << 20
# Bytes of a large page; mappings are whole ones, since the system aligns and joins only those.
_PAGE = 2 << 20


class HostMemory:
    """Memory that is idle again as soon as no array uses it.

    The system zeroes a page at its first write, and a virtual machine may have to get it from its host: for the caches
    of a batch that took as long as several steps. Idle and used memory together never exceed the most that was used at
    once. Threads may share one.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()  # the garbage collector may call `_give_back` while it is held
        self._idle: list[mmap.mmap] = []  # the longest idle first
        self._used = self._most_used = 0  # bytes

    def allocate(self, size: int) -> tuple[npt.NDArray[Any], bool]:
        """uint8 `[size]`, and whether it is zeroed; if not, it holds what its last user left.

        Raises:
            MemoryError: there is not enough memory.
        """
        if size < LARGE or not hasattr(mmap, "MADV_HUGEPAGE"):
            return np.zeros(size, np.uint8), True
        size_of_pages = -(-size // _PAGE) * _PAGE
        idle = self._take(size_of_pages)
        mapping = idle or _map(size_of_pages)
        with self._lock:
            self._used += len(mapping)
            self._most_used = max(self._most_used, self._used)
            self._drop()
        array = np.frombuffer(mapping, np.uint8)
        # Views refer to this array as their base, so it lives until the last of them is gone.
        weakref.finalize(array, self._give_back, mapping).atexit = False
        return array[:size], idle is None

    def _take(self, size: int) -> mmap.mmap | None:
        """The smallest idle mapping that is large enough, but not twice as large."""
        with self._lock:
            fitting = [mapping for mapping in self._idle if size <= len(mapping) < 2 * size]
            best = min(fitting, key=len, default=None)
            if best is not None:
                self._idle.remove(best)
            return best

    def _give_back(self, mapping: mmap.mmap) -> None:
        with self._lock:
            self._used -= len(mapping)
            self._idle.append(mapping)
            self._drop()

    def _drop(self) -> None:
        while sum(map(len, self._idle)) + self._used > self._most_used:
            del self._idle[0]


def _map(size: int) -> mmap.mmap:
    try:
        mapping = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except (OSError, OverflowError) as error:  # more memory than is free, or than can be addressed
        raise MemoryError(str(error)) from error
    with suppress(OSError):  # a system may be built without large pages
        mapping.madvise(mmap.MADV_HUGEPAGE)
    return mapping
