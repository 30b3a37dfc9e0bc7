"""Device memory of one running batch.

Tensors of a kind (all self-attention caches, all cross keys and values) share one allocation, with one plane each. One
copy or fill can therefore handle a row of all of them. The state that the host reads is one block, so one copy
transfers it.
"""

import math
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from txport.runtime.bundle.interface import CROSS_IDS, cache_names, cross_names, masked
from txport.runtime.bundle.manifest import Manifest
from txport.runtime.bundle.schema import Graph
from txport.runtime.device.device import Buffer, Device
from txport.runtime.errors import EngineError

ALIGNMENT = 256  # bytes; libraries require it of every tensor
# Maximum number of pending uploads of the state. Three actions upload it without a step in between: creating buffers,
# moving rows into them, and placing sentences there.
UPLOADS = 4
# Maximum number of steps of one group. Their tokens are collected on the device and downloaded together.
RING = 64


@dataclass(frozen=True)
class StepSizes:
    """Sizes of one set of buffers.

    Attributes:
        rows: number of entries of caches and cross-attention: one for each row of a batch or, if rows share an entry,
            one for each sentence.
        source: maximum number of source tokens.
        target: number of positions of the caches.
        logits: whether the step returns logits.
        beams: number of rows that share an entry; above 1 for beam search.
    """

    rows: int
    source: int
    target: int
    logits: bool
    beams: int = 1

    @property
    def named(self) -> dict[str, int]:
        """The size of each named dimension of a step."""
        beams = {"beam": self.beams, "rows": self.rows * self.beams, "slots": self.target * self.beams}
        return {"batch": self.rows, "source": self.source, "target": self.target, **beams}


@dataclass(frozen=True)
class Stack:
    """Addresses and strides of consecutive tensors: `[rows, heads, length, head_dim]`, or ids `[rows, length]`.

    Attributes:
        address: address of the first tensor.
        names: names of the tensors, in order.
        line: bytes of one head, `length * head_dim` values, or of the ids of one row.
        row: bytes of one row, all heads.
        plane: bytes from one tensor to the next.
    """

    address: int
    names: tuple[str, ...]
    line: int
    row: int
    plane: int

    def tensors(self) -> dict[str, int]:
        """Address of each tensor."""
        return {name: self.address + index * self.plane for index, name in enumerate(self.names)}

    @property
    def heads(self) -> int:
        return self.row // self.line

    def row_buffer(self, row: int) -> Buffer:
        """Return the heads of this row and the following rows, in all tensors."""
        return Buffer(self.address + row * self.row, self.line, self.plane)

    def clear(self, device: Device, row: int, count: int) -> None:
        """Zero `count` rows in all tensors."""
        device.fill(Buffer(self.address + row * self.row, self.plane), 0, count * self.row, len(self.names))


def stack_bytes(count: int, rows: int, heads: int, line: int) -> tuple[int, int]:
    """Return bytes of a plane and of all planes. Planes are aligned and consist of complete lines, as copies need."""
    unit = math.lcm(ALIGNMENT, line)
    plane = -(-rows * heads * line // unit) * unit
    return plane, count * plane


def stack(address: int, names: Sequence[str], rows: int, heads: int, line: int) -> Stack:
    """Return a stack at an address with `stack_bytes` of memory."""
    plane, _ = stack_bytes(len(names), rows, heads, line)
    return Stack(address, tuple(names), line, heads * line, plane)


class Block:
    """Consecutive small tensors, so that one copy transfers all of them.

    Attributes:
        offsets: number of bytes before each tensor, by name.
        size: number of bytes of all tensors.

    Args:
        tensors: type and shape of each tensor, by name, in order.
    """

    def __init__(self, tensors: Mapping[str, tuple[str, tuple[int, ...]]]) -> None:
        self._tensors = {name: (np.dtype(kind), shape) for name, (kind, shape) in tensors.items()}
        self.offsets = dict[str, int]()
        self.size = 0
        for name, (kind, shape) in self._tensors.items():
            self.offsets[name] = self.size
            self.size += -(-math.prod(shape) * kind.itemsize // ALIGNMENT) * ALIGNMENT

    def views(self, array: npt.NDArray[Any]) -> dict[str, npt.NDArray[Any]]:
        """Return views of the tensors in `array`, a copy of the block (uint8, `[size]` or more)."""
        starts = [(name, self.offsets[name], *self._tensors[name]) for name in self._tensors]
        return {
            name: array[offset : offset + math.prod(shape) * kind.itemsize].view(kind).reshape(shape)
            for name, offset, kind, shape in starts
        }


def state_block(rows: int, id_type: str) -> Block:
    """Return the small tensors of a step without beams. Outputs come first, so that one copy downloads all of them."""
    kinds = {"token_ids": id_type, "positions": id_type, "finished": "bool", "target_limits": id_type}
    return Block({name: (kind, (rows,)) for name, kind in kinds.items()})


class HostMemory:
    """Page-locked memory of the host.

    Attributes:
        array: uint8 `[size]`.
        used: event after the last copy to it or from it.
    """

    def __init__(self, device: Device, size: int) -> None:
        self.used = device.create_event()
        self.array = device.host_buffer(size, self.used)


class HostBlock:
    """A copy of the block of small tensors.

    Attributes:
        array: uint8, the complete block.
        token_ids, positions, target_limits: `id_type [rows]`.
        finished: bool `[rows]`.
    """

    def __init__(self, array: npt.NDArray[Any], rows: int, id_type: str) -> None:
        self.array = array
        views = state_block(rows, id_type).views(array)
        self.token_ids = views["token_ids"]
        self.positions = views["positions"]
        self.target_limits = views["target_limits"]
        self.finished = views["finished"]


class Poll(HostBlock):
    """Ids and flags that the host reads after a group of steps, in page-locked memory.

    Attributes:
        memory: the complete memory: the block, then the ring.
        ring: `id_type [RING, rows]`, the tokens of each step of the group.
        steps: number of steps in the group.
    """

    def __init__(self, memory: HostMemory, rows: int, id_type: str) -> None:
        super().__init__(memory.array, rows, id_type)
        self.memory = memory
        self.steps = 0
        self.ring = memory.array[state_block(rows, id_type).size :].view(id_type).reshape(RING, rows)


class StepBuffers:
    """All device memory of one batch, allocated once and reused for later batches of the same sizes.

    Attributes:
        caches: caches of self-attention.
        sources: outputs of the encoder except the mask (`bias`): keys and values of cross-attention, and ids for
            copying.
        bias: address of the mask of cross-attention, `[rows, source]`, which is added to scores.
        masked: address of a mask of the same shape that masks all positions. Rows of it are copied over `bias` before
            the mask of a new sentence, which may be shorter.

    Args:
        device: owner of the memory.
        manifest: contains the sizes of the model.
        graph: the decoder step.
        sizes: sizes of the batch.
        id_type: "int32" or "int64".
        pad: the token that finished rows emit.

    Raises:
        ResourceError: there is not enough memory; nothing is left allocated.
    """

    def __init__(
        self, device: Device, manifest: Manifest, graph: Graph, sizes: StepSizes, id_type: str, pad: int
    ) -> None:
        self.device = device
        self.sizes = sizes
        self.id_type = id_type
        model = manifest.model
        self.float_type = manifest.precision.type
        self.vocabulary = model.target_vocabulary
        self.heads, self.float_size = model.heads, np.dtype(self.float_type).itemsize
        plan = _plan(manifest, sizes, id_type, self._create_blocks(graph))
        self._allocated: list[int] = []
        try:
            addresses = {name: self._allocate(size) for name, size in plan.items()}
        except Exception:
            self.free()
            raise
        line = model.head_dim * self.float_size
        layers = model.decoder_layers
        self.caches = stack(
            addresses["caches"], cache_names(layers), sizes.rows, model.heads, sizes.named["slots"] * line
        )
        cross = stack(addresses["cross"], cross_names(layers), sizes.rows, model.heads, sizes.source * line)
        ids_line = sizes.source * np.dtype(id_type).itemsize
        if model.copies:
            ids = [stack(addresses["ids"], [CROSS_IDS], sizes.rows, 1, ids_line)]
        else:
            ids = []
        self.sources = (cross, *ids)
        self.bias = addresses["bias"]
        self.masked = addresses["masked"]
        self.state = addresses["state"]
        self.logits = addresses.get("logits")
        self.bias_row = sizes.source * self.float_size
        self._write_first_contents(addresses, sizes)
        self.reset(pad)
        self.addresses = self._addresses(graph, addresses)

    def _create_blocks(self, graph: Graph) -> int:
        """Create the blocks of the host for uploads and downloads, and return their size on the device.

        Args:
            graph: the step. Only subclasses need it, whose blocks contain the inputs and outputs of a graph.
        """
        device = self.device
        rows = self.sizes.rows
        id_type = self.id_type
        self.block = state_block(rows, id_type)
        self._host = np.zeros(self.block.size, np.uint8)
        self.host = HostBlock(self._host, rows, id_type)
        self._ring_row = rows * np.dtype(id_type).itemsize
        size = self.block.size + RING * self._ring_row
        # Two downloads, so that the host can read one group of steps while the device works on the next.
        self._downloads = [HostMemory(device, size) for _ in range(2)]
        self.polls = [Poll(memory, rows, id_type) for memory in self._downloads]
        self._uploads = deque(HostMemory(device, self.block.size) for _ in range(UPLOADS))
        return size

    def _allocate(self, size: int) -> int:
        address = self.device.allocate(size)
        self._allocated.append(address)
        return address

    def _write_first_contents(self, blocks: dict[str, int], sizes: StepSizes) -> None:
        """Write zeros to caches, cross keys and values, and ids; then masks and the constant cache positions.

        Uninitialised memory may contain NaN, which would pass the mask, and ids beyond the vocabulary.
        """
        for buffer_stack in (self.caches, *self.sources):
            buffer_stack.clear(self.device, 0, sizes.rows)
        bias = np.full((sizes.rows, sizes.source), masked(self.float_size), self.float_type)
        self.device.upload(self.bias, bias)
        self.device.upload(self.masked, bias)
        self.device.upload(blocks["slots"], np.arange(sizes.target, dtype=self.id_type).repeat(sizes.beams))

    def _addresses(self, graph: Graph, blocks: dict[str, int]) -> dict[str, int]:
        """Return the address of each input and output by name; an output that aliases an input has its address."""
        addresses = {name: self.state + offset for name, offset in self.block.offsets.items()}
        for buffer_stack in (self.caches, *self.sources):
            addresses |= buffer_stack.tensors()
        addresses |= {"cross_bias": self.bias, "cache_positions": blocks["slots"], "slot_positions": blocks["slots"]}
        addresses |= {output: addresses[name] for name, output in graph.aliases}
        if self.logits is not None:
            addresses["logits"] = self.logits
        return addresses

    def reset(self, pad: int) -> None:
        """Mark every row as finished, as in new buffers."""
        host = self.host
        host.token_ids[:] = pad
        host.positions[:] = 0
        host.target_limits[:] = 1
        host.finished[:] = True
        self.upload_state()

    def upload_state(self) -> None:
        """Copy ids, positions, limits and flags to the device. The host may change its block at once."""
        memory = self._uploads[0]
        self._uploads.rotate(-1)
        memory.used.synchronize()
        memory.array[:] = self._host
        self.device.upload(self.state, memory.array)
        memory.used.record()

    def keep_tokens(self, ring_index: int) -> None:
        """Copy the tokens of the last step to an entry of the ring."""
        target = Buffer(self.state + self.block.size + ring_index * self._ring_row)
        self.device.copy(target, Buffer(self.state), self._ring_row)

    def download_state(self, poll: Poll, steps: int) -> None:
        """Start copying the block and the tokens of `steps` steps to the host; the event of `poll` marks the end."""
        self.device.download(poll.array[: self.block.size + steps * self._ring_row], self.state)
        poll.steps = steps
        poll.memory.used.record()

    def adopt(self, poll: Poll) -> None:
        """Copy the outputs of a step into the block for uploads."""
        count = self.block.offsets["target_limits"]
        self._host[:count] = poll.array[:count]

    def settle(self) -> None:
        """Wait for enqueued work; ignore failures, since a failed device does no work."""
        for memory in (*self._uploads, *self._downloads):
            with suppress(EngineError):
                memory.used.synchronize()

    def free(self) -> None:
        """Free all memory; the buffers cannot be used afterwards."""
        self.settle()
        for address in self._allocated:
            self.device.free(address)
        self._allocated.clear()


def bytes_needed(manifest: Manifest, sizes: StepSizes, id_type: str) -> int:
    """Return the device memory of step buffers of these sizes, in bytes."""
    rows = sizes.named["rows"]
    blocks = (4 + RING) * rows * np.dtype(id_type).itemsize + 4 * ALIGNMENT  # four small tensors, each aligned
    if sizes.beams > 1:
        blocks += rows * sizes.named["slots"]  # ancestors
    return sum(_plan(manifest, sizes, id_type, blocks).values())


def _plan(manifest: Manifest, sizes: StepSizes, id_type: str, blocks: int) -> dict[str, int]:
    """Return bytes of each allocation. `blocks` is the result of `_create_blocks`, or an upper bound of it."""
    model = manifest.model
    float_size = np.dtype(manifest.precision.type).itemsize
    count = 2 * model.decoder_layers
    line = model.head_dim * float_size
    plan = {
        "caches": stack_bytes(count, sizes.rows, model.heads, sizes.named["slots"] * line)[1],
        "cross": stack_bytes(count, sizes.rows, model.heads, sizes.source * line)[1],
        "bias": sizes.rows * sizes.source * float_size,
        "masked": sizes.rows * sizes.source * float_size,
        "slots": sizes.named["slots"] * np.dtype(id_type).itemsize,
        "state": blocks,
    }
    if model.copies:
        plan["ids"] = stack_bytes(1, sizes.rows, 1, sizes.source * np.dtype(id_type).itemsize)[1]
    if sizes.logits:
        plan["logits"] = sizes.named["rows"] * model.target_vocabulary * float_size
    return plan
