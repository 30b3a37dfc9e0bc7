"""An engine whose state stays on a device, over any library that runs on one: TensorRT or ONNX Runtime.

All work is enqueued on one stream, in order, so the host waits only when it polls.
"""

from typing import Any

import numpy as np
import numpy.typing as npt
from txport.runtime.bundle.interface import CROSS_IDS, candidate_count, cross_names, source_name
from txport.runtime.bundle.manifest import Manifest
from txport.runtime.device.beams import DeviceBeams
from txport.runtime.device.buffers import ALIGNMENT, stack, stack_bytes
from txport.runtime.device.device import Device
from txport.runtime.device.pool import Encoded, Pool
from txport.runtime.device.program import Program
from txport.runtime.device.state import DeviceState
from txport.runtime.engine import FIRST_TARGET, Int64, Sources, check_vector_shape

# Maximum number of steps between polls. A poll may stall the device, but steps after the end of a sentence are wasted.
POLL = 4
_MULTIPLE = 8  # encoder widths are multiples of this, so that copies consist of complete words


class DeviceEngine:
    """An `Engine` (see `txport.runtime.engine`) over a device and a program.

    Args:
        device: the device that stores the state.
        manifest: manifest of the bundle.
        program: the library and its graphs.
        poll: maximum number of steps between polls.
    """

    def __init__(self, device: Device, manifest: Manifest, program: Program, poll: int = POLL) -> None:
        self.name = program.name
        self.poll = poll
        self.limits = program.limits
        self.tokens = manifest.tokens
        self.vocabulary = manifest.model.target_vocabulary
        self.manifest = manifest
        self.device = device
        self._program = program
        self._pool = Pool(device, manifest, program)
        self._cross = cross_names(manifest.model.decoder_layers)

    ragged = False
    restricts = False
    recomputes_logits = False

    @property
    def captured(self) -> bool:
        """True while steps are replayed as CUDA graphs, false after captures have failed."""
        return self._program.captured

    def first_target(self, source: int) -> int:
        """Return the minimum cache length, since the time of a step grows with it."""
        return FIRST_TARGET

    def encode(self, input_ids: Sources, source_lengths: Int64) -> Encoded:
        """Enqueue the encoder for ids or vectors with int64 `[batch]` lengths; see `Engine.encode`."""
        padded = self._padded(input_ids)
        batch, width = padded.shape[:2]
        id_type = np.dtype(self._program.id_type)
        float_type = np.dtype(self.manifest.precision.type)
        line = width * self.manifest.model.head_dim * float_type.itemsize
        heads = self.manifest.model.heads
        _, cross_bytes = stack_bytes(len(self._cross), batch, heads, line)
        if self.manifest.model.copies:
            copied = stack_bytes(1, batch, 1, width * id_type.itemsize)[1]
        else:
            copied = 0
        parts = (cross_bytes, batch * width * float_type.itemsize, padded.nbytes, batch * id_type.itemsize, copied)
        sizes = [-(-size // ALIGNMENT) * ALIGNMENT for size in parts]
        with self._pool.working():
            memory = self._pool.memory(sum(sizes))
            cross_at, bias, source_at, lengths_at, copied_at = (
                memory.value.address + sum(sizes[:index]) for index in range(5)
            )
            sources = [stack(cross_at, self._cross, batch, heads, line)]
            if copied:
                sources.append(stack(copied_at, [CROSS_IDS], batch, 1, width * id_type.itemsize))
            self.device.upload(source_at, padded)
            self.device.upload(lengths_at, np.ascontiguousarray(source_lengths, id_type))
            inputs = {source_name(self.manifest.model): source_at, "source_lengths": lengths_at}
            outputs = {name: address for buffer_stack in sources for name, address in buffer_stack.tensors().items()}
            self._program.encode({**inputs, **outputs, "cross_bias": bias}, batch, width)
        return Encoded(tuple(sources), bias, width, memory)

    def _padded(self, sources: Sources) -> npt.NDArray[Any]:
        """Return ids as the program's type, or vectors as float32, at the width of the encoder's input."""
        batch, source = sources.shape[:2]
        width = min(-(-source // _MULTIPLE) * _MULTIPLE, self.limits.source)
        if (size := self.manifest.model.feature_size) is None:
            padded: npt.NDArray[Any] = np.full((batch, width), self.tokens.pad, self._program.id_type)
        else:
            check_vector_shape(sources, size)
            padded = np.zeros((batch, width, size), np.float32)
        padded[:, :source] = sources
        return padded

    def allocate(
        self, rows: int, source: int, target: int, *, logits: bool = False, top: int = 0, beams: int = 1
    ) -> DeviceState:
        """Return finished rows for `rows` sentences of up to `source` tokens and `target` new tokens.

        Beams copy no cache if the program has a step for them; otherwise the search gathers caches of plain rows.

        Raises:
            ResourceError: the device does not have enough memory for them.
        """
        if beams > 1 and self._has_step_of(beams):
            candidates = candidate_count(self.manifest.model)
            sentences = rows // beams
            step = self._pool.step(self._pool.sizes(sentences, source, target, logits or top > candidates, beams))
            return DeviceBeams(self._pool, step, range(sentences), source)
        step = self._pool.step(self._pool.sizes(rows, source, target, logits or top > 0))
        return DeviceState(self._pool, step, range(rows), source)

    def _has_step_of(self, beams: int) -> bool:
        with self._pool.working():  # `graph_of` may open the graph, which only one thread may do
            return self._program.graph_of(beams) is not None

    def synchronize(self) -> None:
        """Wait for all enqueued work, for measurements: `encode` and `DecoderState.step` return before it is done."""
        with self._pool.working():
            self.device.synchronize()
