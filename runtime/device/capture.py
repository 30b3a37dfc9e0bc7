"""Groups of decoder steps, and runs of the encoder, as CUDA graphs.

If the device cannot capture them, they are launched operator by operator.
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

# Lock for captures of a stream, and for libraries that open, prepare or close a model, which may wait for the whole
# device. Waiting for the device during a capture fails and invalidates the capture (CUDA C++ Programming Guide,
# "Prohibited and Unhandled Operations"). A thread that holds the lock of a pool may take this one, never the reverse.
WHOLE_DEVICE = threading.RLock()

_log = logging.getLogger("txport")
ATTEMPTS = 5  # number of failed captures after which nothing is captured any more


@dataclass
class _Run:
    """Work over the same memory.

    Attributes:
        times: number of launches.
        replay: replays the work as a CUDA graph; None until it is captured.
    """

    times: int = 0
    replay: Callable[[], None] | None = None


class CapturedRuns:
    """Work that is captured when it is repeated with the same key, and replayed from then on.

    Allocations of a library invalidate a capture. So does another library of the process, such as PyTorch, that waits
    for the device meanwhile. Such work is launched operator by operator, which allocates, and captured next time.

    Args:
        device: the device on whose stream the work is enqueued.
        attempts: number of failed captures after which nothing is captured any more; 0 to capture nothing.
        often: number of the launch that is captured. In earlier launches, a library allocates memory and chooses
            kernels.
        maximum: maximum number of keys to remember, the latest ones.
        refused: called after the last failed capture, with the message of the device or the library.
    """

    def __init__(
        self,
        device: Device,
        attempts: int = ATTEMPTS,
        often: int = 3,
        maximum: int = 64,
        refused: Callable[[str], None] | None = None,
    ) -> None:
        self._device = device
        self._attempts = attempts
        self._often = often
        self._maximum = maximum
        self._refused = refused
        self._runs: OrderedDict[Hashable, _Run] = OrderedDict()

    def launch(self, key: Hashable, enqueue: Callable[[], None]) -> None:
        """Enqueue work. Equal keys mean the same kernels over the same addresses.

        A graph keeps a reference to `enqueue`, which therefore must not refer to the owner of these runs.

        Raises:
            EngineError: the device or the library failed.
            ResourceError: memory is exhausted.
        """
        run = self._run_of(key)
        run.times += 1
        if run.replay is None and run.times >= self._often and self._attempts > 0:
            self._capture(run, enqueue)
        (run.replay or enqueue)()

    def _run_of(self, key: Hashable) -> _Run:
        """Return the run of a key; a new one may replace the least recently used one."""
        run = self._runs.setdefault(key, _Run())
        self._runs.move_to_end(key)
        if len(self._runs) > self._maximum:
            _, oldest = self._runs.popitem(last=False)
            if oldest.replay is not None:  # it may still be running
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
    """Groups of steps over one set of buffers. The first group of each size is captured and replayed from then on.

    Args:
        buffers: those of the steps.
        enqueue: enqueues one step; a step must have run before.
        program: origin of the steps; decides whether to capture, and is notified of failures.
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
        """Enqueue `count` steps and copies of their tokens to the ring. Raises as `CapturedRuns.launch`."""
        self._runs.launch(count, partial(_enqueue, self._enqueue, self._buffers, count))


def _give_up(program: Program, fault: str) -> None:
    if program.captured:
        _log.warning("steps are launched one by one, without CUDA graphs: %s", fault)
    program.captured = False


def _enqueue(enqueue: Callable[[], None], buffers: StepBuffers, count: int) -> None:
    for ring_index in range(count):
        enqueue()
        buffers.keep_tokens(ring_index)
