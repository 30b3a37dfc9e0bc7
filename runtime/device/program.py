"""Protocol of a library on a device: a bundle's graphs, which run on its stream."""

from collections.abc import Callable, Mapping
from typing import Protocol

from txport.runtime.bundle.schema import Graph, Limits
from txport.runtime.device.buffers import StepSizes


class Program(Protocol):
    """A bundle's encoder and one decoder step, loaded by a library.

    Every method may raise `EngineError` (the library failed) and `ResourceError` (memory is exhausted).

    Attributes:
        name: the library, for people.
        limits: the largest sizes that it takes.
        id_type: its type for what the manifest calls int64.
        step_graph: the decoder step that it runs.
        always_logits: its step has no form without logits.
        captures: whether the device is to capture steps.
        captured: whether they are replayed as CUDA graphs; false once the device has refused one.
    """

    name: str
    limits: Limits
    id_type: str
    step_graph: Graph
    always_logits: bool
    captures: bool
    captured: bool

    def graph_of(self, beams: int) -> Graph | None:
        """Return the step for this number of rows per sentence: `step_graph` for 1, else beam search or None."""

    def bucket(self, rows: int, target: int, beams: int = 1) -> tuple[int, int]:
        """Return the entries (see `StepSizes.rows`) and the cache length of the buffers that serve this many."""

    def prepare(self, addresses: Mapping[str, int], sizes: StepSizes) -> Callable[[], None]:
        """Bind the step's buffers, whose rows are all finished, and return what enqueues one step.

        It has run until the library has allocated what it needs. After each step, an output that has an input's address
        is there; the library may have written it elsewhere.
        """

    def encode(self, addresses: Mapping[str, int], batch: int, width: int) -> None:
        """Enqueue a run of the encoder."""
