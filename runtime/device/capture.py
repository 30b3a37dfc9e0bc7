"""Groups of decoder steps, and runs of the encoder, as CUDA graphs.

They are launched operator by operator where the device refuses to capture them.
"""

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import partial

from txport.runtime.device.buffers import StepBuffers
from txport.runtime.device.device import Device
from txport.runtime.device.program import Program
from txport.runtime.errors import EngineError, ResourceError

# Held while a stream is captured, and while a library opens, prepares or closes a model, for which it may wait for the
# whole device. No thread may do that while a stream of the device is captured: it fails, and spoils the capture (CUDA
# C++ Programming Guide, "Prohibited and Unhandled Operations"). A thread that holds the lock of a pool may take this
# one, never the reverse.
WHOLE_DEVICE = threading.RLock()

_log = logging.getLogger("txport")
ATTEMPTS = 5  # failed captures


@dataclass
class _Run:
    """Work over the same memory: how often it was enqueued, and its graph if that was captured."""

    times: int = 0
    replay: Callable[[], None] | None = None


class CapturedRuns:
    """Work that is captured when it comes again with the same key, and replayed from then on.

    What a library allocates in a capture spoils it, and so does another library of the process, as PyTorch, that waits
    for the device meanwhile. Such work is launched operator by operator, which allocates, and captured the next time.

    Args:
        device: whose stream it is enqueued on.
        attempts: failed captures after which nothing is captured any more; 0 for never.
        often: which time it is captured. Before, a library has allocated what it needs and has chosen its kernels.
        most: keys to remember, the latest ones.
        refused: called after the last failed capture, with the message of the device or the library.
    """

    def __init__(
        self,
        device: Device,
        attempts: int = ATTEMPTS,
        often: int = 3,
        most: int = 64,
        refused: Callable[[str], None] | None = None,
    ) -> None:
        self._device = device
        self._attempts = attempts
        self._often = often
        self._most = most
        self._refused = refused
        self._runs: OrderedDict[Hashable, _Run] = OrderedDict()

    def launch(self, key: Hashable, enqueue: Callable[[], None]) -> None:
        """Enqueue work; one key means the same kernels over the same addresses.

        A graph holds `enqueue`, which therefore must not hold the owner of these runs.

        Raises:
            EngineError: the device or the library failed.
            ResourceError: the same, for want of memory.
        """
        run = self._run_of(key)
        run.times += 1
        if run.replay is None and run.times >= self._often and self._attempts > 0:
            self._capture(run, enqueue)
        (run.replay or enqueue)()

    def _run_of(self, key: Hashable) -> _Run:
        """Return the run of a key, for which the one that was not used for longest may be forgotten."""
        run = self._runs.setdefault(key, _Run())
        self._runs.move_to_end(key)
        if len(self._runs) > self._most:
            _, oldest = self._runs.popitem(last=False)
            if oldest.replay is not None:  # it may still be under way
                self._device.synchronize()
        return run

    def _capture(self, run: _Run, enqueue: Callable[[], None]) -> None:
        try:
            with WHOLE_DEVICE:
                run.replay = self._device.capture(enqueue)
        except (EngineError, ResourceError) as error:
            self._attempts -= 1
            _log.debug("not captured: %s", error)
            if self._attempts == 0 and self._refused is not None:
                self._refused(str(error))


class StepGroups:
    """The steps of one set of buffers, in groups: the first group of each size is captured, and replayed from then on.

    Args:
        buffers: of the steps.
        enqueue: enqueues one step; it has run before, with nothing left to do.
        program: its origin; decides whether to capture, and is notified of a refusal.
    """

    def __init__(self, buffers: StepBuffers, enqueue: Callable[[], None], program: Program) -> None:
        self._buffers = buffers
        self._enqueue = enqueue
        if program.captures:
            attempts = ATTEMPTS
        else:
            attempts = 0
        self._runs = CapturedRuns(buffers.device, attempts, often=1, refused=partial(_give_up, program))

    def launch(self, count: int) -> None:
        """Enqueue `count` steps, with a copy of the tokens of each to the ring. Raises as `CapturedRuns.launch`."""
        self._runs.launch(count, partial(_enqueue, self._enqueue, self._buffers, count))


def _give_up(program: Program, fault: str) -> None:
    if program.captured:
        _log.warning("steps are launched one by one, without CUDA graphs: %s", fault)
    program.captured = False


def _enqueue(enqueue: Callable[[], None], buffers: StepBuffers, count: int) -> None:
    for slot in range(count):
        enqueue()
        buffers.keep_tokens(slot)
