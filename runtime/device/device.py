"""Protocol of a device: memory, copies in the order of one stream, capture and waiting.

`txport.runtime.device.cuda` is the real one. Addresses are plain numbers, since that is what libraries bind.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy.typing as npt


@dataclass(frozen=True)
class Buffer:
    """A strided region of device memory: planes of rows of bytes.

    Attributes:
        address: of the first row of the first plane.
        row: bytes from one row to the next.
        plane: bytes from one plane to the next; a multiple of `row`.
    """

    address: int
    row: int = 0
    plane: int = 0


class Event(Protocol):
    """A place in the order of a stream's work. Its methods raise `EngineError`, as those of `Device`."""

    def record(self) -> None:
        """Put it behind all work that has been enqueued so far."""

    def synchronize(self) -> None:
        """Wait for the work before it. Another thread may use the device meanwhile."""


class Device(Protocol):
    """Memory and one stream of a GPU. Everything but `allocate`, `free` and `synchronize` may return before it is done.

    Every method raises `EngineError` for what the device reports, from this or from earlier work, and `ResourceError`
    for exhausted memory.
    """

    stream: int  # as libraries take it

    def activate(self) -> None:
        """Make it the device of the calling thread, for the library that computes on it."""

    def allocate(self, size: int) -> int:
        """Return the address of `size` new bytes, aligned to 256."""

    def free(self, address: int) -> None:
        """Free an allocation."""

    def free_memory(self) -> int:
        """Return bytes that could still be allocated."""

    def create_event(self) -> Event:
        """Return a new event, with no work before it."""

    def host_buffer(self, size: int, used: Event) -> npt.NDArray[Any]:
        """uint8 `[size]` of page-locked host memory, which the device reads and writes by itself.

        It is freed when nothing refers to it, and not before the work before `used` is done.
        """

    def upload(self, address: int, array: npt.NDArray[Any]) -> None:
        """Copy a contiguous array to the device. A host buffer must not change until that is done; other arrays may."""

    def download(self, array: npt.NDArray[Any], address: int) -> None:
        """Copy to a contiguous array of the host, which is complete after `synchronize`."""

    def copy(self, target: Buffer, source: Buffer, width: int, rows: int = 1, planes: int = 1) -> None:
        """Copy `planes` of `rows` of `width` bytes within the device."""

    def fill(self, target: Buffer, value: int, width: int, rows: int = 1) -> None:
        """Set each byte of `rows` of `width` bytes to `value`."""

    def synchronize(self) -> None:
        """Wait for all enqueued work."""

    def capture(self, enqueue: Callable[[], None]) -> Callable[[], None]:
        """Capture what `enqueue` enqueues, without running it; each call of the result replays it.

        The result holds `enqueue`, and with it the library's object whose temporary memory was captured.
        """
