"""The device memory of one engine. Batches lease it; idle memory is kept until its space is needed."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Generic, NamedTuple, TypeVar

from txport.runtime.bundle.manifest import Manifest
from txport.runtime.device.beam_buffers import BeamBuffers
from txport.runtime.device.buffers import Stack, StepBuffers, StepSizes, bytes_needed
from txport.runtime.device.capture import WHOLE_DEVICE, StepGroups
from txport.runtime.device.device import Device
from txport.runtime.device.program import Program
from txport.runtime.errors import EngineError, ResourceError

_MIN_WIDTH = 32  # minimum width of buffers, in source tokens
# Maximum number of idle steps, and of idle blocks. A long text needs few sizes at a time, so more would only occupy
# memory.
_MAX_IDLE = 16
_Value = TypeVar("_Value")


class Lease(Generic[_Value]):
    """Exclusive use of a value by one batch. The value becomes idle when nothing refers to the lease.

    All work is on one stream, so work that a batch has enqueued runs before that of the next user.
    """

    def __init__(self, value: _Value, idle: list[_Value]) -> None:
        self.value = value
        self._idle = idle

    def __del__(self) -> None:
        self._idle.append(self.value)


@dataclass(frozen=True)
class PreparedStep:
    """Buffers of a step, and the groups of steps over them."""

    buffers: StepBuffers
    groups: StepGroups

    def __del__(self) -> None:
        """Wait for running work of a batch before the library's objects in `groups` are destroyed."""
        self.buffers.settle()


class _Block(NamedTuple):
    """Block of device memory."""

    address: int
    size: int


@dataclass(frozen=True)
class Encoded:
    """Encoder output on the device: values for `StepBuffers.sources`, and the bias `[batch, 1, 1, width]`."""

    sources: tuple[Stack, ...]
    bias: int
    width: int
    memory: Lease[_Block]


class Pool:
    """Memory for steps and encoder output, and the lock of the device.

    Source widths are rounded up to powers of two, batches and caches to the library's buckets, so that later
    batches can reuse the memory.

    Args:
        device: owner of the memory.
        manifest: the bundle's.
        program: the library on the device.
    """

    def __init__(self, device: Device, manifest: Manifest, program: Program) -> None:
        self.device = device
        self.manifest = manifest
        self.tokens = manifest.tokens
        self._program = program
        self._lock = threading.RLock()
        self._failure: str | None = None
        # The most recently used ones are last.
        self._idle_steps: list[PreparedStep] = []
        self._idle_memory: list[_Block] = []

    @contextmanager
    def working(self) -> Iterator[None]:
        """Use the device in this context: one thread at a time, and never after the device has failed.

        Raises:
            EngineError: the device or the library fails now, or has failed before.
        """
        with self.waiting():
            self.device.activate()  # before the lock, which a thread of the parent may have held when it forked
        with self._lock, self.waiting():
            yield

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Wait for the device in this context, while other threads may use it. Raises as `working`."""
        if self._failure is not None:
            raise EngineError(f"the GPU failed before ({self._failure}): create the Translator again")
        try:
            yield
        except EngineError as error:
            self._failure = self._failure or str(error)
            raise

    def sizes(self, rows: int, source: int, target: int, logits: bool, beams: int = 1) -> StepSizes:
        """Return the sizes of buffers for a batch of these sizes."""
        width = _MIN_WIDTH
        while width < source:
            width *= 2
        batch, length = self._program.bucket(rows, target, beams)
        logits = logits or self._program.always_logits
        return StepSizes(batch, min(width, self._program.limits.source), length, logits, beams)

    def step(self, sizes: StepSizes) -> Lease[PreparedStep]:
        """Return a step whose rows are all finished.

        Raises:
            ResourceError: the device does not have enough memory; the message contains the batch size that would fit.
        """
        with self.working():
            idle = self._idle_steps
            step = _take_idle(idle, lambda step: step.buffers.sizes == sizes)
            self._free_idle(_MAX_IDLE)
            if step is not None:
                step.buffers.reset(self.tokens.pad)
                return Lease(step, idle)
            try:
                return Lease(self._with_room(lambda: self._prepared(sizes)), idle)
            except ResourceError as error:
                raise ResourceError(self._too_large(sizes)) from error

    def memory(self, size: int) -> Lease[_Block]:
        """Return at least `size` bytes. Sizes are rounded up to powers of two, so that idle memory can be reused.

        Raises:
            ResourceError: the device does not have enough memory.
        """
        rounded = 1 << (size - 1).bit_length()
        with self.working():
            idle = self._idle_memory
            block = _take_idle(idle, lambda block: block.size == rounded)
            self._free_idle(_MAX_IDLE)
            try:
                block = block or self._with_room(lambda: _Block(self.device.allocate(rounded), rounded))
                return Lease(block, idle)
            except ResourceError as error:
                raise ResourceError(f"{error} for a batch's encoder output: use a smaller batch") from error

    def _prepared(self, sizes: StepSizes) -> PreparedStep:
        """Return new buffers. Test runs of the step write only position 0 of the caches, which `place` clears."""
        graph = self._program.graph_of(sizes.beams)
        ids = self._program.id_type
        assert graph is not None, "an engine looks for the step before it asks for its buffers"
        if sizes.beams == 1:
            kind = StepBuffers
        else:
            kind = BeamBuffers
        buffers = kind(self.device, self.manifest, graph, sizes, ids, self.tokens.pad)
        try:
            with WHOLE_DEVICE:
                enqueue = self._program.prepare(buffers.addresses, sizes)
            return PreparedStep(buffers, StepGroups(buffers, enqueue, self._program))
        except EngineError:  # the device may not respond any more; closing it frees its memory
            raise
        except BaseException:
            buffers.free()
            raise

    def _with_room(self, allocate: Callable[[], _Value]) -> _Value:
        """Allocate; if memory is exhausted, free all idle memory and try once more."""
        try:
            return allocate()
        except ResourceError:
            pass  # retry outside the handler: the traceback keeps unfinished objects alive, such as a library's context
        self._free_idle(0)
        return allocate()

    def _free_idle(self, maximum: int) -> None:
        """Free the least recently used steps and blocks of memory until at most `maximum` of each are idle."""
        if max(len(self._idle_steps), len(self._idle_memory)) > maximum:
            self.device.synchronize()
        while len(self._idle_steps) > maximum:
            self._idle_steps.pop(0).buffers.free()
        while len(self._idle_memory) > maximum:
            self.device.free(self._idle_memory.pop(0).address)

    def _too_large(self, sizes: StepSizes) -> str:
        def bytes_of(rows: int) -> int:
            return bytes_needed(self.manifest, replace(sizes, rows=rows), ids)

        ids = self._program.id_type
        free = self.device.free_memory()
        fitting = [rows for rows in range(1, sizes.rows) if bytes_of(rows) <= free]
        buckets = [self._program.bucket(rows, sizes.target, sizes.beams)[0] for rows in fitting]
        largest = max((rows for rows in buckets if bytes_of(rows) <= free), default=0)
        if largest:
            advice = f"a batch of {largest} would fit"
        else:
            advice = "not even one row would fit"
        if sizes.beams == 1:
            kind = "rows"
        else:
            kind = f"sentences in {sizes.beams} rows each,"
        return (
            f"the GPU has no room for a batch of {sizes.rows} {kind} of {sizes.source} source and {sizes.target} "
            f"target tokens: it needs {bytes_of(sizes.rows) / 1e6:.0f} MB and {free / 1e6:.0f} MB are free; {advice}"
        )


def _take_idle(idle: list[_Value], is_suitable: Callable[[_Value], bool]) -> _Value | None:
    """Remove and return the most recently used value that fits, or None."""
    found = next((index for index in reversed(range(len(idle))) if is_suitable(idle[index])), None)
    if found is None:
        return None
    return idle.pop(found)
