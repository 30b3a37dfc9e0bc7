"""Protocol of a device: memory, copies in the order of one stream, capture and waiting.

`txport.runtime.device.cuda` implements it. Addresses are plain numbers, as libraries need them.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy.typing as npt


@dataclass(frozen=True)
class Buffer:
    """Strided region of device memory: planes of rows of bytes.

    Attributes:
        address: address of the first row of the first plane.
        row: bytes from one row to the next.
        plane: bytes from one plane to the next; a multiple of `row`.
    """

    address: int
    row: int = 0
    plane: int = 0


class Event(Protocol):
    """Event in a stream's order of work. Its methods raise `EngineError`, as those of `Device`."""

    def record(self) -> None:
        """Record the event after all work enqueued so far."""

    def synchronize(self) -> None:
        """Wait for the work before the event. Other threads may use the device meanwhile."""


class Device(Protocol):
    """Memory and one stream of a GPU. All methods except `allocate`, `free` and `synchronize` may return early.

    Every method raises `EngineError` for failures of this or earlier work, and `ResourceError` for exhausted memory.
    """

    stream: int  # handle for libraries

    def activate(self) -> None:
        """Make this the device of the calling thread, for libraries."""

    def allocate(self, size: int) -> int:
        """Return the address of `size` new bytes, aligned to 256."""

    def free(self, address: int) -> None:
        """Free an allocation."""

    def free_memory(self) -> int:
        """Return bytes that could still be allocated."""

    def create_event(self) -> Event:
        """Return a new event, with no work before it."""

    def host_buffer(self, size: int, used: Event) -> npt.NDArray[Any]:
        """Return uint8 `[size]` of page-locked host memory, which the device can access.

        It is freed when nothing refers to it and the work before `used` is done.
        """

    def upload(self, address: int, array: npt.NDArray[Any]) -> None:
        """Copy a contiguous array to the device. Until the copy is complete, host buffers must not change.

        Other arrays may change at once.
        """

    def download(self, array: npt.NDArray[Any], address: int) -> None:
        """Copy from the device to a contiguous array, which is complete after `synchronize`."""

    def copy(self, target: Buffer, source: Buffer, width: int, rows: int = 1, planes: int = 1) -> None:
        """Copy `planes` of `rows` of `width` bytes within the device."""

    def fill(self, target: Buffer, value: int, width: int, rows: int = 1) -> None:
        """Set each byte of `rows` of `width` bytes to `value`."""

    def synchronize(self) -> None:
        """Wait for all enqueued work."""

    def capture(self, enqueue: Callable[[], None]) -> Callable[[], None]:
        """Capture the work that `enqueue` enqueues, without running it; calling the result replays it.

        The result keeps `enqueue` alive, and with it the library's temporary memory that was captured.
        """
