"""What the decoder's buffers need of a device: memory, copies in the order of one stream, capture and waiting.

`txport.runtime.device.cuda` is the real one. Addresses are plain numbers, since that is what libraries bind.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy.typing as npt


@dataclass(frozen=True)
class Block:
    """Where rows of bytes begin in device memory.

    Attributes:
        address: of the first row of the first plane.
        row: bytes from one row to the next.
        plane: bytes from one plane to the next; a multiple of `row`.
    """

    address: int
    row: int = 0
    plane: int = 0


class Device(Protocol):
    """Memory and one stream of a GPU. Everything but `allocate`, `free` and `synchronize` may return before it is done.

    Every method raises `DeviceError` for what the device reports, from this or from earlier work.
    """

    stream: int  # as libraries take it

    def allocate(self, size: int) -> int:
        """The address of `size` new bytes, aligned to 256. Raises `OutOfMemory` if there is no room."""

    def free(self, address: int) -> None:
        """Give an allocation back."""

    def free_memory(self) -> int:
        """Bytes that are left."""

    def host_buffer(self, size: int) -> npt.NDArray[Any]:
        """uint8 `[size]` of the host's memory that the device reads and writes by itself (page-locked)."""

    def upload(self, address: int, array: npt.NDArray[Any]) -> None:
        """Copy a contiguous array to the device. A host buffer must not change until that is done; other arrays may."""

    def download(self, array: npt.NDArray[Any], address: int) -> None:
        """Copy to a contiguous array of the host, which is whole after `synchronize`."""

    def copy(self, target: Block, source: Block, width: int, rows: int = 1, planes: int = 1) -> None:
        """Copy `planes` of `rows` of `width` bytes within the device."""

    def clear(self, target: Block, width: int, rows: int = 1) -> None:
        """Set `rows` of `width` bytes to zero."""

    def synchronize(self) -> None:
        """Wait until the device has done all that it was told."""

    def capture(self, enqueue: Callable[[], None]) -> Callable[[], None]:
        """Record what `enqueue` tells the stream, without doing it; what is returned does it.

        It holds `enqueue`, and with it the library's object whose temporary memory was recorded.
        """
