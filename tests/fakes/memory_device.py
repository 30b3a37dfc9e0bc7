"""A fake device in host memory that checks its use, and a model to run on it.

Memory is real and filled with invalid values, addresses are real, and every access must be within an allocation. A lazy
device does all work in `synchronize` and reads page-locked memory only then, like the slowest possible GPU. An eager
device does all work at once, like the fastest one. Code that is right on both does not depend on timing.
"""

import threading
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from memory_engine import TOKENS, VOCABULARY, logits_after
from txport.runtime.bundle.interface import ANCESTORS, STATE, TOP_OUTPUTS, masked
from txport.runtime.bundle.manifest import Manifest
from txport.runtime.bundle.schema import Graph, Limits, Tensor
from txport.runtime.device.buffers import ALIGNMENT, StepSizes
from txport.runtime.device.device import Buffer, Event
from txport.runtime.engine import Float32, top_of
from txport.runtime.errors import EngineError, ResourceError

POISON = 0xAB
BOUND = Limits(4, 40, 100)


class MemoryDevice:
    """A `Device`. `copies`, `waits` and `captures` count calls; `broken` makes the next work fail."""

    stream = 7

    def __init__(self, lazy: bool = True, room: int = 1 << 30) -> None:
        self.lazy, self.room = lazy, room
        self.queue: list[Callable[[], None]] = []
        self.enqueued = 0  # amount of work so far, finished or not
        self.order, self.busy = threading.RLock(), False
        self.memory: dict[int, npt.NDArray[np.uint8]] = {}
        self.pinned: list[tuple[int, npt.NDArray[np.uint8]]] = []
        self.capturing: list[Callable[[], None]] | None = None
        self.copies = self.waits = self.captures = self.activations = 0
        self.behind: list[int] = []  # amount of work after each event at the time of a wait for it
        self.broken: str | None = None

    def activate(self) -> None:
        self.activations += 1

    def allocate(self, size: int) -> int:
        assert size > 0
        if size > self.free_memory():
            raise ResourceError(f"the GPU has no room for {size} bytes")
        array = np.full(size + ALIGNMENT, POISON, np.uint8)
        address = -(-array.ctypes.data // ALIGNMENT) * ALIGNMENT
        self.memory[address] = array[address - array.ctypes.data :][:size]
        return address

    def free(self, address: int) -> None:
        self.synchronize()
        self.memory.pop(address)[:] = POISON

    def free_memory(self) -> int:
        return self.room - sum(len(array) for array in self.memory.values())

    def create_event(self) -> "MemoryEvent":
        return MemoryEvent(self)

    def host_buffer(self, size: int, used: Event) -> npt.NDArray[Any]:
        array = np.full(size, POISON, np.uint8)
        self.pinned.append((array.ctypes.data, array))
        return array

    def upload(self, address: int, array: npt.NDArray[Any]) -> None:
        assert array.flags.c_contiguous
        target, source = self.view(address, array.nbytes), array.reshape(-1).view(np.uint8)
        pinned = any(start <= source.ctypes.data < start + len(whole) for start, whole in self.pinned)
        staged = source.copy()  # CUDA copies pageable memory before the call returns

        def work() -> None:
            assert not pinned or np.array_equal(source, staged), "page-locked memory changed under an upload"
            np.copyto(target, staged)

        self.enqueue(work)

    def download(self, array: npt.NDArray[Any], address: int) -> None:
        assert array.flags.c_contiguous
        target, source = array.reshape(-1).view(np.uint8), self.view(address, array.nbytes)
        self.enqueue(lambda: np.copyto(target, source))

    def copy(self, target: Buffer, source: Buffer, width: int, rows: int = 1, planes: int = 1) -> None:
        for block in (target, source):
            assert rows == 1 or block.row >= width, "rows overlap"
            assert planes == 1 or (block.plane % block.row == 0 and block.plane >= rows * block.row), "planes overlap"
        pairs = [
            tuple(self.view(b.address + plane * b.plane + row * b.row, width) for b in (target, source))
            for plane in range(planes)
            for row in range(rows)
        ]
        self.copies += 1

        def work() -> None:
            for to, of in pairs:
                np.copyto(to, of)

        self.enqueue(work)

    def fill(self, target: Buffer, value: int, width: int, rows: int = 1) -> None:
        assert rows == 1 or target.row >= width
        views = [self.view(target.address + row * target.row, width) for row in range(rows)]
        self.enqueue(lambda: [view.fill(value) for view in views] and None)

    def synchronize(self) -> None:
        assert self.capturing is None, "waiting while capturing"
        self.waits += 1
        self.run(self.enqueued)

    def run(self, end: int) -> None:
        """Do the work of the stream up to this position, once for all threads that wait.

        Garbage collection during the work may call this method again. Later work still waits for the present one.
        """
        with self.order:
            self._check()
            while not self.busy and self.queue and self.enqueued - len(self.queue) < end:
                self.busy = True
                try:
                    self.queue.pop(0)()
                finally:
                    self.busy = False

    def capture(self, enqueue: Callable[[], None]) -> Callable[[], None]:
        assert self.capturing is None
        self.capturing, self.captures = [], self.captures + 1
        recorded = self.capturing
        try:
            enqueue()
        finally:
            self.capturing = None

        def replay(_held: object = enqueue) -> None:
            for work in recorded:
                self.enqueue(work)

        return replay

    def enqueue(self, work: Callable[[], None]) -> None:
        """Append work to the stream, as a program does."""
        self._check()
        if self.capturing is not None:
            self.capturing.append(work)
        elif self.lazy:
            with self.order:
                self.enqueued += 1
                self.queue.append(work)
        else:
            work()

    def view(self, address: int, size: int) -> npt.NDArray[np.uint8]:
        """Return a view of bytes, which must be within one allocation."""
        for start, array in self.memory.items():
            if start <= address and address + size <= start + len(array):
                return array[address - start : address - start + size]
        raise AssertionError(f"{size} bytes at {address} are not within one allocation")

    def _check(self) -> None:
        if self.broken is not None:
            raise EngineError(f"CUDA failed: {self.broken}")


class MemoryEvent:
    """An `Event`. On a lazy device, a wait does only the work before it."""

    def __init__(self, device: MemoryDevice) -> None:
        self.device, self.place = device, 0

    def record(self) -> None:
        self.device._check()
        self.place = self.device.enqueued

    def synchronize(self) -> None:
        device = self.device
        device._check()
        if device.lazy and device.enqueued - len(device.queue) >= self.place:
            return  # all work is finished
        device.waits += 1
        device.behind.append(device.enqueued - self.place)
        device.run(self.place)


class HashProgram:
    """A `Program` whose model is `memory_engine.logits_after`; source ids and tokens go through the real buffers.

    Cross-attention keys contain the source ids, and the bias masks padding; self-attention keys contain the tokens. All
    heads, layers and values must agree, so that an incomplete copy is noticed.
    """

    name = "hash"
    always_logits = captures = captured = True

    def __init__(
        self, device: MemoryDevice, manifest: Manifest, graph: Graph, batches: tuple[int, ...], targets: tuple[int, ...]
    ) -> None:
        self.device, self.manifest, self.step_graph = device, manifest, graph
        self.batches, self.targets = batches, targets
        self.limits = Limits(batches[-1], BOUND.source, targets[-1])
        self.id_type = "int32"
        self.prepared: list[StepSizes] = []
        self.launched: list[int] = []
        self.eos_weight = 0.0

    def graph_of(self, beams: int) -> Graph | None:
        return self.step_graph if beams == 1 else self.manifest.optional_graph("decoder_beams")

    def bucket(self, rows: int, target: int, beams: int = 1) -> tuple[int, int]:
        assert rows * beams <= self.limits.batch
        return min(b for b in self.batches if b >= rows), min(t for t in self.targets if t >= target)

    def encode(self, addresses: Mapping[str, int], batch: int, width: int) -> None:
        tensors = {t.name: t for g in self.manifest.graphs if g.role == "encoder" for t in (*g.inputs, *g.outputs)}
        views = {n: self._view(a, tensors[n], {"batch": batch, "source": width}) for n, a in addresses.items()}

        def work() -> None:
            ids, lengths = _ids_of(views), views["source_lengths"]
            assert (ids >= 0).all() and (lengths >= 1).all() and (lengths <= width).all()
            for name, view in views.items():
                if name.startswith(("cross_key", "cross_value", "cross_ids")):
                    view[:] = ids[:, None, :, None]
            valid = np.arange(width) < lengths[:, None]
            views["cross_bias"][:] = np.where(valid, 0.0, masked(views["cross_bias"].itemsize))[:, None, None]

        self.device.enqueue(work)

    def prepare(self, addresses: Mapping[str, int], sizes: StepSizes) -> Callable[[], None]:
        self.prepared.append(sizes)
        bound = self.bind(addresses, sizes)

        def enqueue() -> None:
            self.device.enqueue(lambda: self.step(bound, sizes))

        enqueue()
        self.device.synchronize()
        assert sizes.beams > 1 or bound["finished"].all(), "a step is tried on finished rows"
        return enqueue

    def bind(self, addresses: Mapping[str, int], sizes: StepSizes) -> dict[str, Any]:
        """Return the tensors of the step by name, at these addresses."""
        graph = self.graph_of(sizes.beams)
        assert graph is not None
        bound = {t.name: self._view(addresses[t.name], t, sizes.named) for t in graph.inputs}
        outputs = {tensor.name: tensor for tensor in graph.outputs}
        for name, output in graph.aliases:
            assert name in STATE or addresses[name] == addresses[output], f"{name} and {output} must be one buffer"
            bound[output] = self._view(addresses[output], outputs[output], sizes.named)
        for name in {"logits", *TOP_OUTPUTS} & outputs.keys():
            bound[name] = self._view(addresses[name], outputs[name], sizes.named)
        assert all(addresses[name] % ALIGNMENT == 0 for name in addresses)
        return bound

    def step(self, bound: dict[str, Any], sizes: StepSizes) -> None:
        self.launched.append(sizes.rows)
        if sizes.beams > 1:
            self.step_beams(bound, sizes)
            return
        assert (bound["cache_positions"] == np.arange(sizes.target)).all()
        for row in range(sizes.rows):
            position, token = int(bound["positions"][row]), int(bound["token_ids"][row])
            assert 0 <= position < sizes.target, f"row {row} is stepped past its cache"
            for key in _caches(bound):
                key[row, :, position] = token
            finished = bool(bound["finished"][row])
            if not finished:
                assert not any(key[row, :, position + 1 :].any() for key in _caches(bound)), "of an earlier sentence"
                exact = self._logits(bound, row, _agreed([key[row, :, : position + 1] for key in _caches(bound)]))
                bound["logits"][row] = -99.0
                bound["logits"][row, :VOCABULARY] = exact
            made = TOKENS.pad if finished else int(exact.argmax())
            finished |= made == TOKENS.eos or position + 1 >= int(bound["target_limits"][row])
            bound["next_finished"][row] = finished
            bound["next_positions"][row] = position + (not finished)
            bound["next_token_ids"][row] = made

    def step_beams(self, bound: dict[str, Any], sizes: StepSizes) -> None:
        """Run a step for each hypothesis, whose tokens are in the slots of its ancestors."""
        beams = sizes.beams
        assert (bound["slot_positions"] == np.arange(sizes.target).repeat(beams)).all()
        assert (bound["rows"].ravel() == np.arange(sizes.rows * beams)).all()
        ancestors = bound[ANCESTORS].reshape(sizes.rows, beams, sizes.target, beams)
        for name in TOP_OUTPUTS:
            bound[name][:] = 77  # for rows that were never placed
        for sentence, beam in np.ndindex(sizes.rows, beams):
            position = int(bound["positions"][sentence, beam])
            assert 0 <= position < sizes.target and bound["first_slots"][sentence] == position * beams
            for key in _caches(bound):
                key[sentence, :, position * beams + beam] = bound["token_ids"][sentence, beam]
        for sentence, beam in np.ndindex(sizes.rows, beams):
            if (bound["cross_bias"][sentence] != 0).all():
                continue
            position = int(bound["positions"][sentence, beam])
            end, seen = (position + 1) * beams, ancestors[sentence, beam]
            if any(key[sentence, :, end:].any() for key in _caches(bound)):
                continue  # no sentence was placed here: the values of an earlier batch must not be read
            assert (seen.sum(axis=1) == (np.arange(sizes.target) <= position)).all(), "one ancestor at each position"
            (slots,) = seen.reshape(-1).nonzero()
            exact = self._logits(bound, sentence, _agreed([key[sentence][:, slots] for key in _caches(bound)]))
            row = sentence * beams + beam
            logits = np.full(bound["logits"].shape[1], -99.0, np.float32)
            logits[:VOCABULARY] = exact
            best = top_of(logits[None], bound["top_ids"].shape[1])
            bound["logits"][row], bound["normaliser"][row] = logits, best.normaliser
            bound["top_ids"][row], bound["top_logits"][row] = best.token_ids[0], best.logits[0]

    def _logits(self, bound: dict[str, Any], entry: int, fed: list[int]) -> Float32:
        """Return the logits after these tokens, for the sentence of an entry."""
        cross = [view for name, view in bound.items() if name.startswith(("cross_key", "cross_value", "cross_ids"))]
        seen = bound["cross_bias"][entry, 0, 0] == 0
        bias = bound["cross_bias"][entry]
        assert ((bias == 0) | (bias == bias.dtype.type(masked(bias.itemsize)))).all()
        source = _agreed([value[entry][:, seen] for value in cross])
        assert not any(value[entry][:, ~seen].any() for value in cross), "something is behind the mask"
        return logits_after(source, fed, self.eos_weight)

    def _view(self, address: int, tensor: Tensor, shape: Mapping[str, int]) -> npt.NDArray[Any]:
        sizes = [dim if isinstance(dim, int) else shape[dim] for dim in tensor.shape]
        kind = np.dtype(self.id_type if tensor.dtype == "int64" else tensor.dtype)
        data = self.device.view(address, int(np.prod(sizes)) * kind.itemsize)
        return data.view(kind).reshape(sizes)


def _ids_of(views: Mapping[str, npt.NDArray[Any]]) -> npt.NDArray[Any]:
    """Return the ids of the encoder's input: ids, or vectors that contain one id each."""
    if "input_ids" in views:
        return views["input_ids"]
    vectors = views["features"]
    assert vectors.dtype == np.float32 and (vectors == vectors[:, :, :1]).all(), "the numbers of a vector disagree"
    return vectors[:, :, 0]


def _caches(bound: dict[str, Any]) -> list[npt.NDArray[Any]]:
    return [view for name, view in bound.items() if name.startswith(("self_key", "self_value"))]


def _agreed(values: list[npt.NDArray[Any]]) -> list[int]:
    """Return the ids in tensors `[heads, length, head_dim]`, which must agree in all tensors, heads and values."""
    first = values[0][0, :, 0]
    for value in values:
        assert (value == first[None, :, None]).all(), "heads, values or layers disagree"
    return [int(token) for token in first]
