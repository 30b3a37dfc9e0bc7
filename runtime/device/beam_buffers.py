"""Device memory of one running batch of beam search. The host uploads a block before each step and downloads another.

Each sentence has one entry in the caches and in cross-attention, which its rows share.
"""

from collections import deque
from collections.abc import Sequence

import numpy as np
from txport.runtime.bundle.interface import ANCESTORS, TOP_OUTPUTS
from txport.runtime.bundle.schema import Graph, Tensor
from txport.runtime.device.buffers import UPLOADS, Block, HostMemory, StepBuffers

_INPUTS = ("token_ids", "positions", "rows", "first_slots", ANCESTORS)


class BeamBuffers(StepBuffers):
    """All device memory of one batch for the graph `decoder_beams`; see `StepBuffers`.

    Attributes:
        inputs: inputs of the next step by name, in the form of the graph; `upload_state` copies all of them.
        outputs: outputs of the last step except caches and logits, after `wait`.
    """

    def _create_blocks(self, graph: Graph) -> int:
        self.block, self._outputs_block = self._block(graph.inputs, _INPUTS), self._block(graph.outputs, TOP_OUTPUTS)
        self._host = np.zeros(self.block.size, np.uint8)
        self.inputs = self.block.views(self._host)
        self.inputs["rows"].ravel()[:] = np.arange(self.sizes.named["rows"])
        self._uploads = deque(HostMemory(self.device, self.block.size) for _ in range(UPLOADS))
        self._downloads = [HostMemory(self.device, self._outputs_block.size)]
        self.outputs = self._outputs_block.views(self._downloads[0].array)
        return self.block.size + self._outputs_block.size

    def _block(self, tensors: Sequence[Tensor], names: Sequence[str]) -> Block:
        types = {"int64": self.id_type}
        selected = [tensor for tensor in tensors if tensor.name in names]
        return Block({t.name: (types.get(t.dtype, t.dtype), tuple(t.sizes(self.sizes.named))) for t in selected})

    def _addresses(self, graph: Graph, blocks: dict[str, int]) -> dict[str, int]:
        outputs = {name: self.state + self.block.size + offset for name, offset in self._outputs_block.offsets.items()}
        return super()._addresses(graph, blocks) | outputs

    def reset(self, pad: int) -> None:
        """Upload valid inputs: zeros, or those of an earlier batch."""
        self.upload_state()

    def keep_tokens(self, ring_index: int) -> None:
        """Do nothing: the host reads every step."""

    def download(self) -> None:
        """Start copying the results of the step to `outputs`; `wait` waits for the copy."""
        (memory,) = self._downloads
        self.device.download(memory.array, self.state + self.block.size)
        memory.used.record()

    def wait(self) -> None:
        """Wait for the download."""
        self._downloads[0].used.synchronize()
