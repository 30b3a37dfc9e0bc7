"""Memory of the host for the buffers of batches, kept from one batch to the next."""

import mmap
import threading
import weakref
from contextlib import suppress
from typing import Any

import numpy as np
import numpy.typing as npt

# Bytes from which memory is taken from the system directly, and kept.
LARGE = 4 << 20
# Bytes of a large page; whole ones are asked for, since the system aligns and joins only those.
_PAGE = 2 << 20


class HostMemory:
    """Pieces of memory that come back when no array uses them any more.

    The system clears a page at its first write, and a virtual machine may have to ask its host for it: for the caches
    of a batch that took as long as several steps. What is kept is never more than what was in use at once. Threads may
    share one.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()  # the garbage collector may give a piece back in the midst of this
        self._idle: list[mmap.mmap] = []  # the one that came back first in front
        self._used = self._most_used = 0  # bytes

    def piece(self, size: int) -> tuple[npt.NDArray[Any], bool]:
        """uint8 `[size]`, and whether it holds zeros, or else what an earlier user has left there.

        Raises:
            MemoryError: there is not that much.
        """
        if size < LARGE or not hasattr(mmap, "MADV_HUGEPAGE"):
            return np.zeros(size, np.uint8), True
        size_of_pages = -(-size // _PAGE) * _PAGE
        kept = self._take(size_of_pages)
        piece = kept or _new(size_of_pages)
        self._count(len(piece))
        array = np.frombuffer(piece, np.uint8)
        # Views of an array refer to the one at their bottom: it lives until the last of them is gone.
        weakref.finalize(array, self._give_back, piece).atexit = False
        return array[:size], kept is None

    def _take(self, size: int) -> mmap.mmap | None:
        """The smallest piece that is large enough, but not twice as large."""
        with self._lock:
            fitting = [piece for piece in self._idle if size <= len(piece) < 2 * size]
            found = min(fitting, key=len, default=None)
            if found is not None:
                self._idle.remove(found)
            return found

    def _count(self, size: int) -> None:
        with self._lock:
            self._used += size
            self._most_used = max(self._most_used, self._used)
            self._drop()

    def _give_back(self, piece: mmap.mmap) -> None:
        with self._lock:
            self._used -= len(piece)
            self._idle.append(piece)
            self._drop()

    def _drop(self) -> None:
        while sum(map(len, self._idle)) + self._used > self._most_used:
            del self._idle[0]


def _new(size: int) -> mmap.mmap:
    try:
        piece = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except (OSError, OverflowError) as error:  # more than there is, or than addresses go
        raise MemoryError(str(error)) from error
    with suppress(OSError):  # a system may be built without large pages
        piece.madvise(mmap.MADV_HUGEPAGE)
    return piece
