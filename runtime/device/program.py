"""Protocol of a library that runs a bundle's graphs on the stream of a device."""

from collections.abc import Callable, Mapping
from typing import Protocol

from txport.runtime.bundle.schema import Graph, Limits
from txport.runtime.device.buffers import StepSizes


class Program(Protocol):
    """A bundle's encoder and one decoder step, loaded by a library.

    Every method may raise `EngineError` (the library failed) and `ResourceError` (memory is exhausted).

    Attributes:
        name: the library, for people.
        limits: its maximum sizes.
        id_type: its type for int64 of the manifest.
        step_graph: the decoder step that it runs.
        always_logits: whether every step returns logits.
        captures: whether the device should capture steps.
        captured: whether steps are replayed as CUDA graphs; false once the device has refused a capture.
    """

    name: str
    limits: Limits
    id_type: str
    step_graph: Graph
    always_logits: bool
    captures: bool
    captured: bool

    def graph_of(self, beams: int) -> Graph | None:
        """Return the step for this number of rows per sentence: `step_graph` for 1, otherwise beam search or None."""

    def bucket(self, rows: int, target: int, beams: int = 1) -> tuple[int, int]:
        """Return entries (see `StepSizes.rows`) and cache length of buffers for at least these sizes."""

    def prepare(self, addresses: Mapping[str, int], sizes: StepSizes) -> Callable[[], None]:
        """Bind the step's buffers, whose rows are all finished, and return a function that enqueues one step.

        It has run until the library has allocated what it needs. After each step, an output that has an input's address
        is there; the library may have written it elsewhere.
        """

    def encode(self, addresses: Mapping[str, int], batch: int, width: int) -> None:
        """Enqueue a run of the encoder."""
