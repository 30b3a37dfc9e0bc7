"""Device memory of one running batch of beam search: the host uploads a block before each step, and downloads another.

An entry of the caches and of cross-attention is a sentence, whose rows share it.
"""

from collections import deque
from collections.abc import Sequence

import numpy as np
from txport.runtime.bundle.interface import ANCESTORS, TOP_OUTPUTS
from txport.runtime.bundle.schema import Graph, Tensor
from txport.runtime.device.buffers import UPLOADS, Block, HostMemory, StepBuffers

_INPUTS = ("token_ids", "positions", "rows", "first_slots", ANCESTORS)


class BeamBuffers(StepBuffers):
    """All device memory of one batch, as `StepBuffers` has it, for the graph `decoder_beams`.

    Attributes:
        inputs: what the next step reads, by name, as the graph has it; `upload_state` copies all of them.
        outputs: outputs of the last step except caches and logits, after `wait`.
    """

    def _exchange(self, graph: Graph) -> int:
        self.block, self._made = self._block(graph.inputs, _INPUTS), self._block(graph.outputs, TOP_OUTPUTS)
        self._host = np.zeros(self.block.size, np.uint8)
        self.inputs = self.block.views(self._host)
        self.inputs["rows"].ravel()[:] = np.arange(self.sizes.named["rows"])
        self._uploads = deque(HostMemory(self.device, self.block.size) for _ in range(UPLOADS))
        self._downloads = [HostMemory(self.device, self._made.size)]
        self.outputs = self._made.views(self._downloads[0].array)
        return self.block.size + self._made.size

    def _block(self, tensors: Sequence[Tensor], names: Sequence[str]) -> Block:
        types = {"int64": self.id_type}
        found = [tensor for tensor in tensors if tensor.name in names]
        return Block({t.name: (types.get(t.dtype, t.dtype), tuple(t.sizes(self.sizes.named))) for t in found})

    def _addresses(self, graph: Graph, at: dict[str, int]) -> dict[str, int]:
        made = {name: self.state + self.block.size + offset for name, offset in self._made.offsets.items()}
        return super()._addresses(graph, at) | made

    def reset(self, pad: int) -> None:
        """Upload what can be stepped: zeros, or what an earlier batch has left."""
        self.upload_state()

    def keep_tokens(self, slot: int) -> None:
        """Nothing: the host sees each step."""

    def download(self) -> None:
        """Copy what the step has made to `outputs`, where it is after `wait`."""
        (memory,) = self._downloads
        self.device.download(memory.array, self.state + self.block.size)
        memory.used.record()

    def wait(self) -> None:
        """Wait for the download."""
        self._downloads[0].used.synchronize()
