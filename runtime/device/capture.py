"""Groups of decoder steps as CUDA graphs, or launched operator by operator where the device refuses to capture them."""

import logging
import threading
from collections.abc import Callable
from functools import partial

from txport.runtime.device.buffers import StepBuffers
from txport.runtime.device.program import Program
from txport.runtime.errors import EngineError, ResourceError

# Held while a stream is captured, and while a library opens, prepares or closes a model, for which it may wait for the
# whole device. No thread may do that while a stream of the device is captured: it fails, and spoils the capture (CUDA
# C++ Programming Guide, "Prohibited and Unhandled Operations"). A thread that holds the lock of a pool may take this
# one, never the reverse.
WHOLE_DEVICE = threading.RLock()

_log = logging.getLogger("txport")
_ATTEMPTS = 5


class StepGroups:
    """The steps of one set of buffers, in groups: the first group of each size is captured, and replayed from then on.

    What a library allocates in a capture spoils it, and so does another library of the process, as PyTorch, that waits
    for the device meanwhile. Such a group is launched operator by operator, which allocates, and the next one is
    captured. After some failures steps over these buffers are not captured any more.

    Args:
        buffers: of the steps.
        enqueue: enqueues one step; it has run before, with nothing left to do.
        program: where it comes from; says whether to capture, and learns of a refusal.
    """

    def __init__(self, buffers: StepBuffers, enqueue: Callable[[], None], program: Program) -> None:
        self._buffers = buffers
        self._enqueue = enqueue
        self._program = program
        self._graphs: dict[int, Callable[[], None]] = {}
        self._attempts = _ATTEMPTS if program.captures else 0

    def launch(self, count: int) -> None:
        """Enqueue `count` steps, with a copy of the tokens of each to the ring.

        Raises:
            EngineError: the device or the library failed.
            ResourceError: the same, for want of memory.
        """
        replay = self._graphs.get(count) or self._replay(count)
        replay()

    def _replay(self, count: int) -> Callable[[], None]:
        """Capture a group; return what enqueues it."""
        group = partial(_enqueue, self._enqueue, self._buffers, count)  # without `self`, which holds the graph
        if self._attempts == 0:
            return group
        try:
            with WHOLE_DEVICE:
                self._graphs[count] = self._buffers.device.capture(group)
        except (EngineError, ResourceError) as error:
            self._attempts -= 1
            if self._attempts == 0:
                self._give_up(str(error))
            return group
        return self._graphs[count]

    def _give_up(self, fault: str) -> None:
        if self._program.captured:
            _log.warning("steps are launched one by one, without CUDA graphs: %s", fault)
        self._program.captured = False


def _enqueue(enqueue: Callable[[], None], buffers: StepBuffers, count: int) -> None:
    for slot in range(count):
        enqueue()
        buffers.keep_tokens(slot)
