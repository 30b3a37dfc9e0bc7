"""ONNX Runtime's CUDA provider as a program of `txport.runtime.device.engine`: it runs on the device's own buffers.

It runs on txport's stream, so that copies and steps need no synchronisation. ONNX Runtime captures the step over each
set of buffers as a CUDA graph and replays it; where it cannot, one warning says so and steps are launched one by one.
"""

import itertools
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from txport.runtime.bundle.manifest import Manifest
from txport.runtime.bundle.schema import Graph, Lowering
from txport.runtime.device.buffers import StepSizes
from txport.runtime.device.device import Device
from txport.runtime.engine import Limits
from txport.runtime.engines.ort_session import open_session, open_step, providers_of, run
from txport.runtime.errors import BundleError, EngineError, InputError

_SHORTEST_TARGET = 32
_log = logging.getLogger("txport")


class OrtProgram:
    """A bundle's graphs on ONNX Runtime over a device's memory; see `txport.runtime.device.engine.Program`.

    Args:
        directory: the bundle.
        manifest: its manifest, already checked.
        lowerings: the decoder steps to try; the first that the installed version loads is used.
        device: whose memory and stream.
        where: "cuda"; "cpu" is for a device whose memory is the host's, as in tests.

    Raises:
        BundleError: ONNX Runtime does not load the graphs.
        MissingLibrary: it has no CUDA provider, or cannot start it.
    """

    id_type = "int64"
    always_logits = False

    def __init__(
        self, directory: Path, manifest: Manifest, lowerings: Sequence[Lowering], device: Device, where: str = "cuda"
    ) -> None:
        self._device, self._where = device, where
        self._encoder_graph = manifest.encoder
        session_of = partial(open_session, directory, threads=0, providers=providers_of(where))
        self._stream = {"user_compute_stream": str(device.stream)}
        self._encoder = session_of(manifest.encoder, cuda=self._stream)
        self._open_plain = partial(session_of, cuda=self._stream)
        self._graphs = where == "cuda"
        try:
            cuda = {**self._stream, "enable_cuda_graph": "1"}
            self.step_graph, self._step = open_step(manifest, lowerings, partial(session_of, cuda=cuda))
        except BundleError as error:
            self.step_graph, self._step = open_step(manifest, lowerings, self._open_plain)
            self._without_graphs(str(error))
        self.limits: Limits = manifest.limits
        self._numbers = itertools.count(1)
        self.name = f"ONNX Runtime {onnxruntime.__version__} on {where}, lowering {self.step_graph.lowering}"

    def key(self) -> object:
        """ONNX Runtime keeps captured graphs per thread."""
        return threading.get_ident() if self._graphs else None

    def bucket(self, rows: int, target: int) -> tuple[int, int]:
        """Powers of two, up to the bundle's largest sizes."""
        batch = min(1 << (rows - 1).bit_length(), self.limits.batch)
        length = min(max(_SHORTEST_TARGET, 1 << (target - 1).bit_length()), self.limits.target)
        return batch, length

    def prepare(self, addresses: Mapping[str, int], sizes: StepSizes) -> Callable[[], None]:
        """Bind the step's buffers and run it: ONNX Runtime captures during the first run, and replays afterwards."""
        shape = {"batch": sizes.rows, "source": sizes.source, "target": sizes.target}
        try:
            launch = self._bound(self._step, self.step_graph, addresses, shape, self._graphs)
            launch()
            launch()
        except EngineError as error:
            if not self._graphs:
                raise
            self._without_graphs(str(error))
            self._step = self._open_plain(self.step_graph)
            launch = self._bound(self._step, self.step_graph, addresses, shape, False)
            launch()
        self._device.synchronize()
        return launch

    def encode(self, addresses: Mapping[str, int], batch: int, width: int) -> None:
        """Enqueue a run of the encoder."""
        self._bound(self._encoder, self._encoder_graph, addresses, {"batch": batch, "source": width}, False)()

    def _bound(
        self, session: Any, graph: Graph, addresses: Mapping[str, int], shape: Mapping[str, int], captured: bool
    ) -> Callable[[], None]:
        binding, options = session.io_binding(), onnxruntime.RunOptions()
        for tensors, bind in ((graph.inputs, binding.bind_input), (graph.outputs, binding.bind_output)):
            for tensor in tensors:
                if tensor.name in addresses:
                    kind = np.dtype(tensor.dtype).type
                    bind(tensor.name, self._where, 0, kind, tensor.sizes(shape), addresses[tensor.name])
        owner = threading.get_ident()
        if self._where == "cuda":
            # The stream orders everything; only a poll waits.
            options.add_run_config_entry("disable_synchronize_execution_providers", "1")
        if captured:
            options.add_run_config_entry("gpu_graph_id", str(next(self._numbers)))

        def launch() -> None:
            if captured and threading.get_ident() != owner:
                raise InputError("a stream of tokens must be read in the thread that began it: its steps belong there")
            run(session, binding, options)

        return launch

    def _without_graphs(self, reason: str) -> None:
        if self._graphs:
            _log.warning("steps are launched one by one, without CUDA graphs: %s", reason)
        self._graphs = False
