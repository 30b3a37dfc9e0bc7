"""What one running batch holds in device memory, and where.

Tensors of a kind (all self-attention caches, all cross keys and values) stand in one allocation, a plane for each, so
that one copy or one clearing reaches a row in all of them. The state that the host reads stands in one block, so that
one copy brings it. Sizes: b rows, s source, t target, h heads, k head_dim, n keys and values of all layers.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from txport.runtime.bundle.interface import MASKED
from txport.runtime.bundle.manifest import Manifest
from txport.runtime.bundle.schema import Graph
from txport.runtime.device.device import Block, Device

ALIGNMENT = 256  # of every tensor that a library binds
RING = 64  # the most steps between two looks


@dataclass(frozen=True)
class StepSizes:
    """Rows, source tokens and cache length of one set of buffers, and whether logits are wanted."""

    rows: int
    source: int
    target: int
    logits: bool


@dataclass(frozen=True)
class Stack:
    """Tensors `[rows, heads, length, head_dim]` one after the other: where each begins and how large a row is.

    Attributes:
        address: of the first tensor.
        names: of the tensors, in order.
        line: bytes of one head, `length * head_dim` values.
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

    def at(self, row: int) -> Block:
        """From this row on, head by head, in all tensors."""
        return Block(self.address + row * self.row, self.line, self.plane)

    def clear(self, device: Device, row: int, count: int) -> None:
        """Zero `count` rows in all tensors."""
        device.clear(Block(self.address + row * self.row, self.plane), count * self.row, len(self.names))


def stack_bytes(count: int, rows: int, heads: int, line: int) -> tuple[int, int]:
    """(bytes of a plane, bytes of all): planes are aligned, and whole lines apart, as copies of planes want it."""
    unit = math.lcm(ALIGNMENT, line)
    plane = -(-rows * heads * line // unit) * unit
    return plane, count * plane


def stack(address: int, names: Sequence[str], rows: int, heads: int, line: int) -> Stack:
    """A stack at an address that has room for `stack_bytes`."""
    plane, _ = stack_bytes(len(names), rows, heads, line)
    return Stack(address, tuple(names), line, heads * line, plane)


class HostState:
    """The block of small tensors as the host sees it, in memory that the device copies to and from.

    Attributes:
        token_ids, positions, target_limits, finished: `[b]`; exact after each download, until the next step.
        ring: `[RING, b]`, the tokens of the steps since then.
    """

    def __init__(self, device: Device, rows: int, id_type: str) -> None:
        size = np.dtype(id_type).itemsize
        names = ("token_ids", "positions", "target_limits", "finished")
        widths = (rows * size, rows * size, rows * size, rows)
        self.offsets: dict[str, int] = {}
        at = 0
        for name, width in zip(names, widths, strict=True):
            self.offsets[name] = at
            at += -(-width // ALIGNMENT) * ALIGNMENT
        self.state_bytes, self.ring_row = at, rows * size
        self.bytes = at + RING * self.ring_row
        self.array = device.host_buffer(self.bytes)

        def view(name: str, kind: str) -> npt.NDArray[Any]:
            start = self.offsets[name]
            return self.array[start : start + rows * np.dtype(kind).itemsize].view(kind)

        self.token_ids, self.positions = view("token_ids", id_type), view("positions", id_type)
        self.target_limits, self.finished = view("target_limits", id_type), view("finished", "bool")
        self.ring = self.array[at:].view(id_type).reshape(RING, rows)

    def reset(self, pad: int) -> None:
        """Every row finished."""
        self.token_ids[:], self.positions[:], self.target_limits[:], self.finished[:] = pad, 0, 1, True


class StepBuffers:
    """All device memory of one batch, allocated once and used again for later batches of the same sizes.

    Args:
        device: where.
        manifest: for the sizes of the model.
        graph: the decoder step.
        sizes: of the batch.
        id_type: "int32" or "int64".
        pad: what finished rows make.

    Raises:
        OutOfMemory: there is no room; nothing is left allocated.
    """

    def __init__(
        self, device: Device, manifest: Manifest, graph: Graph, sizes: StepSizes, id_type: str, pad: int
    ) -> None:
        self.device, self.sizes, self.id_type = device, sizes, id_type
        model = manifest.model
        self.float_type, self.vocabulary = manifest.precision.type, model.target_vocabulary
        self.heads, self.float_size = model.heads, np.dtype(self.float_type).itemsize
        self.host = HostState(device, sizes.rows, id_type)
        plan = _plan(manifest, sizes, id_type, self.host.bytes)
        self._allocated: list[int] = []
        try:
            at = {name: self._allocate(size) for name, size in plan.items()}
        except Exception:
            self.free()
            raise
        names = [tensor.name for tensor in graph.inputs]
        line = model.head_dim * self.float_size
        caches, cross = (
            [n for n in names if n.startswith((f"{kind}_key", f"{kind}_value"))] for kind in ("self", "cross")
        )
        self.caches = stack(at["caches"], caches, sizes.rows, model.heads, sizes.target * line)
        self.cross = stack(at["cross"], cross, sizes.rows, model.heads, sizes.source * line)
        self.bias, self.masked, self.state = at["bias"], at["masked"], at["state"]
        self.logits = at["logits"] if sizes.logits else None
        self.bias_row = sizes.source * self.float_size
        self._write_constants(at, sizes)
        self.reset(pad)
        self.addresses = self._addresses(graph, at)

    def _allocate(self, size: int) -> int:
        address = self.device.allocate(size)
        self._allocated.append(address)
        return address

    def _write_constants(self, at: dict[str, int], sizes: StepSizes) -> None:
        """Caches and cross keys start as zeros: a NaN that memory happens to hold would come through a mask."""
        for whole in (self.caches, self.cross):
            whole.clear(self.device, 0, sizes.rows)
        masked = np.full((sizes.rows, sizes.source), MASKED, self.float_type)
        self.device.upload(self.bias, masked)
        self.device.upload(self.masked, masked)
        self.device.upload(at["cache_positions"], np.arange(sizes.target, dtype=self.id_type))

    def _addresses(self, graph: Graph, at: dict[str, int]) -> dict[str, int]:
        """What to bind, by the graph's names; an output that aliases an input has its address."""
        addresses = {name: self.state + offset for name, offset in self.host.offsets.items()}
        addresses |= self.caches.tensors() | self.cross.tensors()
        addresses |= {"cross_bias": self.bias, "cache_positions": at["cache_positions"]}
        addresses |= {output: addresses[name] for name, output in graph.aliases}
        return addresses | ({} if self.logits is None else {"logits": self.logits})

    def reset(self, pad: int) -> None:
        """Every row finished, as new."""
        self.host.reset(pad)
        self.upload_state()

    def upload_state(self) -> None:
        """The host's view of ids, positions, limits and flags becomes the device's."""
        self.device.upload(self.state, self.host.array[: self.host.state_bytes])

    def keep_tokens(self, slot: int) -> None:
        """Copy the tokens of the last step to a slot of the ring."""
        target = Block(self.state + self.host.state_bytes + slot * self.host.ring_row)
        self.device.copy(target, Block(self.state), self.host.ring_row)

    def download_state(self, slots: int) -> None:
        """Bring ids, positions, flags and `slots` of the ring to the host, and wait for them."""
        end = self.host.state_bytes + slots * self.host.ring_row
        self.device.download(self.host.array[:end], self.state)
        self.device.synchronize()

    def free(self) -> None:
        """Give all memory back; a set that is freed cannot be used."""
        for address in self._allocated:
            self.device.free(address)
        self._allocated.clear()


def bytes_needed(manifest: Manifest, sizes: StepSizes, id_type: str) -> int:
    """Device memory of one set of buffers."""
    small = 4 * sizes.rows * np.dtype(id_type).itemsize * (1 + RING // 4) + 4 * ALIGNMENT
    return sum(_plan(manifest, sizes, id_type, small).values())


def _plan(manifest: Manifest, sizes: StepSizes, id_type: str, state: int) -> dict[str, int]:
    """Bytes of each allocation."""
    model, float_size = manifest.model, np.dtype(manifest.precision.type).itemsize
    count, line = 2 * model.decoder_layers, model.head_dim * float_size
    plan = {
        "caches": stack_bytes(count, sizes.rows, model.heads, sizes.target * line)[1],
        "cross": stack_bytes(count, sizes.rows, model.heads, sizes.source * line)[1],
        "bias": sizes.rows * sizes.source * float_size,
        "masked": sizes.rows * sizes.source * float_size,
        "cache_positions": sizes.target * np.dtype(id_type).itemsize,
        "state": state,
    }
    return plan | ({"logits": sizes.rows * model.target_vocabulary * float_size} if sizes.logits else {})
