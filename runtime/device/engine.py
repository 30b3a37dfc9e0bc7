"""An engine whose state stays on a device, over any library that runs on one: TensorRT or ONNX Runtime.

Memory is allocated once for each size and kept: sources come in widths of powers of two, batches and caches in the
library's own buckets. Everything is told to one stream, in one order, so nothing needs to wait but a look.
"""

import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import numpy as np
from txport.runtime.bundle.interface import cross_names
from txport.runtime.bundle.manifest import Manifest
from txport.runtime.bundle.schema import Graph
from txport.runtime.device.buffers import ALIGNMENT, Stack, StepBuffers, StepSizes, bytes_needed, stack, stack_bytes
from txport.runtime.device.device import Device
from txport.runtime.device.state import DeviceState
from txport.runtime.engine import FIRST_TARGET, Int64, Limits
from txport.runtime.errors import DeviceError, InputError, OutOfMemory

# Steps between two looks: each look costs the device a pause, each step after a sentence's end is wasted.
POLL = 4
_NARROWEST = 32
_MULTIPLE = 8  # encoder widths, so that copies are of whole words


class Program(Protocol):
    """What a library adds: two graphs that run on the device's stream.

    Attributes:
        name: the library, for people.
        limits: the largest sizes that it takes.
        id_type: its type for what the manifest calls int64.
        step_graph: the decoder step that it runs.
        always_logits: its step has no form without logits.
    """

    name: str
    limits: Limits
    id_type: str
    step_graph: Graph
    always_logits: bool

    def bucket(self, rows: int, target: int) -> tuple[int, int]:
        """The rows and the cache length that are really run for this many."""

    def prepare(self, addresses: Mapping[str, int], sizes: StepSizes) -> Callable[[], None]:
        """Bind the step's buffers, whose rows are all finished, try it, and give what tells the stream one step."""

    def encode(self, addresses: Mapping[str, int], batch: int, width: int) -> None:
        """Tell the stream to run the encoder."""

    def key(self) -> object:
        """What else prepared buffers belong to; a thread, for example."""


@dataclass(frozen=True)
class Encoded:
    """Encoder output on the device: cross keys and values, and the bias `[batch, 1, 1, width]`."""

    cross: Stack
    bias: int
    width: int
    memory: "_Lease"  # goes back to the pool when nobody holds this any more


class DeviceEngine:
    """An `Engine` (see `txport.runtime.engine`) over a device and a program.

    Args:
        device: where the state is.
        manifest: the bundle's.
        program: what runs there.
        poll: steps between two looks.
    """

    def __init__(self, device: Device, manifest: Manifest, program: Program, poll: int = POLL) -> None:
        self.name, self.poll = program.name, poll
        self.limits, self.tokens, self.manifest = program.limits, manifest.tokens, manifest
        self._device, self._program = device, program
        self._lock = threading.RLock()
        self._broken: str | None = None
        self._idle: defaultdict[object, list[tuple[StepBuffers, Callable[[], None]]]] = defaultdict(list)
        self._free: defaultdict[int, list[int]] = defaultdict(list)
        self._cross = cross_names(manifest.model.decoder_layers)

    @contextmanager
    def working(self) -> Iterator[None]:
        """One thread at a time; after the device has failed, none.

        Raises:
            DeviceError: it fails now, or has failed before.
        """
        with self._lock:
            if self._broken is not None:
                raise DeviceError(f"the GPU failed before ({self._broken}): create the Translator again")
            try:
                yield
            except OutOfMemory:
                raise
            except DeviceError as error:
                self._broken = str(error)
                raise

    def first_target(self, source: int) -> int:
        """The shortest there are: what a step costs depends on their length."""
        return FIRST_TARGET

    def encode(self, input_ids: Int64, source_lengths: Int64) -> Encoded:
        """Run the encoder on int64 `[batch, source]` ids, padded with pad, of int64 `[batch]` lengths."""
        batch, given = input_ids.shape
        width = min(-(-given // _MULTIPLE) * _MULTIPLE, self.limits.source)
        id_type, float_type = np.dtype(self._program.id_type), np.dtype(self.manifest.precision.type)
        ids = np.full((batch, width), self.tokens.pad, id_type)
        ids[:, :given] = input_ids
        line = width * self.manifest.model.head_dim * float_type.itemsize
        heads = self.manifest.model.heads
        _, cross_bytes = stack_bytes(len(self._cross), batch, heads, line)
        parts = (cross_bytes, batch * width * float_type.itemsize, ids.nbytes, batch * id_type.itemsize)
        sizes = [-(-size // ALIGNMENT) * ALIGNMENT for size in parts]
        with self.working():
            memory = self._lease(sum(sizes))
            cross_at, bias, ids_at, lengths_at = (memory.address + sum(sizes[:index]) for index in range(4))
            cross = stack(cross_at, self._cross, batch, heads, line)
            self._device.upload(ids_at, ids)
            self._device.upload(lengths_at, np.ascontiguousarray(source_lengths, id_type))
            inputs = {"input_ids": ids_at, "source_lengths": lengths_at}
            self._program.encode({**inputs, **cross.tensors(), "cross_bias": bias}, batch, width)
        return Encoded(cross, bias, width, memory)

    def wait(self) -> None:
        """Wait until the device has done all that it was told: `encode` and a state's `step` return before that."""
        with self.working():
            self._device.synchronize()

    def allocate(self, rows: int, source: int, target: int, *, logits: bool = False) -> DeviceState:
        """Buffers for `rows` sentences of up to `source` tokens that make up to `target` tokens, all rows finished.

        Raises:
            InputError: the device has not enough memory for them.
        """
        sizes = self.sizes(rows, source, target, logits)
        key = sizes, self._program.key()
        with self.working():
            if self._idle[key]:
                buffers, launch = self._idle[key].pop()
                buffers.reset(self.tokens.pad)
            else:
                buffers, launch = self._new_buffers(sizes)
        give_back = partial(self._idle[key].append, (buffers, launch))
        return DeviceState(self, buffers, launch, range(rows), source, give_back)

    def synchronize(self) -> None:
        """Wait for the device, as measurements must."""
        with self.working():
            self._device.synchronize()

    def sizes(self, rows: int, source: int, target: int, logits: bool) -> StepSizes:
        """What is really allocated for a request of these sizes."""
        width = _NARROWEST
        while width < source:
            width *= 2
        batch, length = self._program.bucket(rows, target)
        return StepSizes(batch, min(width, self.limits.source), length, logits or self._program.always_logits)

    def _new_buffers(self, sizes: StepSizes) -> tuple[StepBuffers, Callable[[], None]]:
        def allocate() -> StepBuffers:
            graph, ids = self._program.step_graph, self._program.id_type
            return StepBuffers(self._device, self.manifest, graph, sizes, ids, self.tokens.pad)

        try:
            buffers = allocate()
        except OutOfMemory:
            self._release_idle()
            try:
                buffers = allocate()
            except OutOfMemory as error:
                raise InputError(self._too_large(sizes)) from error
        launch = self._program.prepare(buffers.addresses, sizes)
        # Trying the step has left its traces in slot 0 of the caches only; `place` clears them.
        return buffers, launch

    def _too_large(self, sizes: StepSizes) -> str:
        def needed(rows: int) -> int:
            return bytes_needed(self.manifest, StepSizes(rows, sizes.source, sizes.target, sizes.logits), ids)

        ids, free = self._program.id_type, self._device.free_memory()
        fitting = [rows for rows in range(1, sizes.rows) if needed(rows) <= free]
        buckets = [self._program.bucket(rows, sizes.target)[0] for rows in fitting]
        fits = max((rows for rows in buckets if needed(rows) <= free), default=0)
        advice = f"a batch of {fits} would fit" if fits else "not even one row would fit"
        return (
            f"the GPU has no room for a batch of {sizes.rows} rows of {sizes.source} source and {sizes.target} target "
            f"tokens: {needed(sizes.rows) / 1e6:.0f} MB were asked for and {free / 1e6:.0f} MB are free; {advice}"
        )

    def _release_idle(self) -> None:
        self._device.synchronize()
        for waiting in self._idle.values():
            for buffers, _ in waiting:
                buffers.free()
            waiting.clear()
        for blocks in self._free.values():
            for address in blocks:
                self._device.free(address)
            blocks.clear()

    def _lease(self, size: int) -> "_Lease":
        """Memory for a while, from what is free or new; sizes are powers of two, so that it is found again."""
        rounded = 1 << (size - 1).bit_length()
        if not self._free[rounded]:
            try:
                self._free[rounded].append(self._device.allocate(rounded))
            except OutOfMemory:
                self._release_idle()
                try:
                    self._free[rounded].append(self._device.allocate(rounded))
                except OutOfMemory as error:
                    raise InputError(f"{error} for a batch's encoder output: use a smaller batch") from error
        return _Lease(self._free[rounded].pop(), self._free[rounded])


class _Lease:
    """A block of device memory that goes back to its pool; the stream does what it was told before any reuse."""

    def __init__(self, address: int, pool: list[Any]) -> None:
        self.address, self._pool = address, pool

    def __del__(self) -> None:
        self._pool.append(self.address)
