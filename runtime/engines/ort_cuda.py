"""ONNX Runtime's CUDA provider as a program of `txport.runtime.device.engine`: it runs on the device's own buffers.

It runs on txport's stream, so that copies and steps need no synchronisation, and steps can be captured
(`txport.runtime.device.capture`).

ONNX Runtime's own graphs (`enable_cuda_graph`) are not used. ONNX Runtime keeps them for each thread and never frees
them. Its captures prevent allocations in other threads. Before 1.28 it also waits after each replay.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from typing import Any

import numpy as np
import onnxruntime
from txport.runtime.bundle.archive import Files
from txport.runtime.bundle.manifest import Manifest
from txport.runtime.bundle.schema import Graph, Limits, Lowering
from txport.runtime.device.buffers import StepSizes
from txport.runtime.device.capture import CapturedRuns
from txport.runtime.device.device import Device
from txport.runtime.engines.ort_session import open_beams, open_session, open_step, providers_of, refuse_unaligned, run

_SHORTEST_TARGET = 32
# Number of runs before a capture, in which ONNX Runtime allocates memory and the libraries choose their kernels.
_WARM_UP = 2


class OrtProgram:
    """A bundle's graphs on ONNX Runtime over a device's memory; see `txport.runtime.device.engine.Program`.

    Args:
        bundle: the bundle.
        manifest: its manifest, already checked.
        lowerings: the decoder steps to try; the first that the installed version loads is used.
        device: owner of the memory and the stream.
        provider: "cuda"; "cpu" is for devices of tests, which use host memory.

    Raises:
        BundleError: ONNX Runtime does not load the graphs.
        MissingLibrary: ONNX Runtime has no CUDA provider, or cannot start it.
    """

    id_type = "int64"
    always_logits = False

    def __init__(
        self, bundle: Files, manifest: Manifest, lowerings: Sequence[Lowering], device: Device, provider: str = "cuda"
    ) -> None:
        self._device = device
        self._provider = provider
        self._encoder_graph = manifest.encoder
        self.limits: Limits = manifest.limits
        providers = providers_of(provider, user_compute_stream=str(device.stream))
        # One thread: the host only launches kernels.
        self._open = partial(open_session, bundle, threads=1, providers=providers)
        self._encoder = self._open(manifest.encoder)
        self.step_graph, self._step = open_step(manifest, lowerings, self._open_step)
        self._beam_graph = manifest.optional_graph("decoder_beams")
        self.captures = self.captured = provider == "cuda"
        self._encoder_runs = CapturedRuns(device)
        self.name = f"ONNX Runtime {onnxruntime.__version__} on {provider}, lowering {self.step_graph.lowering}"

    def _open_step(self, graph: Graph) -> Any:
        if self._provider == "cuda":
            refuse_unaligned(graph, self.limits)
        return self._open(graph)

    def graph_of(self, beams: int) -> Graph | None:
        """Return the step for this number of rows per sentence. Beam search supports any number."""
        if beams == 1:
            return self.step_graph
        if self._beam_step is not None:
            return self._beam_graph
        return None

    @cached_property
    def _beam_step(self) -> Any | None:
        """Return the session of beam search.

        The first call opens it, not the constructor, because it puts a second copy of the weights on the GPU.
        """
        return open_beams(self._beam_graph, self._open)

    def bucket(self, rows: int, target: int, beams: int = 1) -> tuple[int, int]:
        """Return the sizes rounded up to powers of two, at most the limits of the bundle."""
        batch = min(1 << (rows - 1).bit_length(), max(1, self.limits.batch // beams))
        length = min(max(_SHORTEST_TARGET, 1 << (target - 1).bit_length()), self.limits.target)
        return batch, length

    def prepare(self, addresses: Mapping[str, int], sizes: StepSizes) -> Callable[[], None]:
        """Bind the buffers of a step, and run it until ONNX Runtime has allocated its memory."""
        if sizes.beams == 1:
            session = self._step
        else:
            session = self._beam_step
        graph = self.graph_of(sizes.beams)
        assert graph is not None, "a step that the bundle does not have"
        launch = _bound(session, graph, addresses, sizes.named, self._provider)
        for _ in range(_WARM_UP):
            launch()
        self._device.synchronize()
        return launch

    def encode(self, addresses: Mapping[str, int], batch: int, width: int) -> None:
        """Enqueue a run of the encoder; the sizes determine the shapes of the tensors at these addresses."""
        shape = {"batch": batch, "source": width}
        enqueue = partial(_run_once, self._encoder, self._encoder_graph, addresses, shape, self._provider)
        if self.captures:
            self._encoder_runs.launch((addresses[self._encoder_graph.inputs[0].name], batch, width), enqueue)
        else:
            enqueue()


def _run_once(
    session: Any, graph: Graph, addresses: Mapping[str, int], shape: Mapping[str, int], provider: str
) -> None:
    """Bind a graph's tensors and enqueue one run."""
    _bound(session, graph, addresses, shape, provider)()


def _bound(
    session: Any, graph: Graph, addresses: Mapping[str, int], shape: Mapping[str, int], provider: str
) -> Callable[[], None]:
    """Bind a graph to addresses, with sizes by name; return a function that enqueues a run and keeps the session."""
    binding = session.io_binding()
    options = onnxruntime.RunOptions()
    for tensors, bind in ((graph.inputs, binding.bind_input), (graph.outputs, binding.bind_output)):
        for tensor in tensors:
            if tensor.name in addresses:
                kind = np.dtype(tensor.dtype).type
                bind(tensor.name, provider, 0, kind, tensor.sizes(shape), addresses[tensor.name])
    if provider == "cuda":
        # All work is on one stream, which keeps the order. Only reading results waits.
        options.add_run_config_entry("disable_synchronize_execution_providers", "1")
    return partial(run, session, binding, options)
