"""The engine on ONNX Runtime's CPU provider; `txport.runtime.engines.ort_cuda` runs the CUDA provider.

All sessions map the same weights file of the bundle into memory. `ort_state` contains the buffers of a running batch,
`ort_beams` those of beam search.
"""

from collections.abc import Sequence
from functools import cached_property, partial

import numpy as np
import onnxruntime
from txport.runtime.bundle.archive import Files
from txport.runtime.bundle.interface import CROSS_IDS, cross_names, source_name
from txport.runtime.bundle.manifest import Manifest
from txport.runtime.bundle.schema import Lowering
from txport.runtime.engine import FIRST_TARGET, Int64, Sources, check_vector_shape
from txport.runtime.engines.ort_beams import OrtBeams
from txport.runtime.engines.ort_session import CPU, open_beams, open_session, open_step, run
from txport.runtime.engines.ort_state import Buffers, OrtState, OrtStep, bind, enough_memory, zeros


class OrtEngine:
    """A bundle on ONNX Runtime.

    Args:
        bundle: the bundle.
        manifest: its manifest, already checked.
        lowerings: the decoder steps to try; the first that the installed version loads is used. None for all steps of
            the bundle.
        threads: number of threads of each operator; 0 for the number of cores.

    Raises:
        BundleError: ONNX Runtime does not load a graph.
        ResourceError: there is not enough memory.
    """

    poll = 1  # reading the ids costs nothing on the CPU, so the host reads after each step
    ragged = False
    restricts = False
    recomputes_logits = False

    def __init__(
        self,
        bundle: Files,
        manifest: Manifest,
        lowerings: Sequence[Lowering] | None = None,
        threads: int = 0,
    ) -> None:
        self.limits = manifest.limits
        self.tokens = manifest.tokens
        self.vocabulary = manifest.model.target_vocabulary
        self.manifest = manifest
        names = {"cross_bias", CROSS_IDS, *cross_names(manifest.model.decoder_layers)}
        self._cross = [tensor for tensor in manifest.encoder.outputs if tensor.name in names]
        self._session_of = partial(open_session, bundle, threads=threads, providers=[CPU])
        self._encoder = self._session_of(manifest.encoder)
        step = open_step(manifest, lowerings or manifest.lowerings, self._session_of)
        self.step_graph, self.step_session = step
        self._decoder_step = OrtStep(*step, manifest.tokens)
        self.name = f"ONNX Runtime {onnxruntime.__version__} on cpu, lowering {self.step_graph.lowering}"

    def encode(self, input_ids: Sources, source_lengths: Int64) -> Buffers:
        """Run the encoder on int64 `[batch, source]` ids, padded with pad, or on vectors; lengths are int64 `[batch]`.

        Returns:
            its outputs by name: cross-attention keys, values and bias; also the source ids if the model copies tokens.

        Raises:
            ResourceError: there is not enough memory.
            EngineError: ONNX Runtime failed.
        """
        if (size := self.manifest.model.feature_size) is not None:
            check_vector_shape(input_ids, size)
        batch, source = input_ids.shape[:2]
        name = source_name(self.manifest.model)
        inputs = {name: np.ascontiguousarray(input_ids), "source_lengths": np.ascontiguousarray(source_lengths)}
        with enough_memory(batch, source):
            outputs = zeros(self._cross, {"batch": batch, "source": source})
        binding = self._encoder.io_binding()
        for name, array in inputs.items():
            bind(binding.bind_input, name, array)
        for name, array in outputs.items():
            bind(binding.bind_output, name, array)
        run(self._encoder, binding)
        return outputs

    def first_target(self, source: int) -> int:
        """Return the initial cache length; see `txport.runtime.engine.Engine.first_target`.

        The lowering `ort` reads only the used part of a cache, so longer caches cost only memory. Caches of the source
        length rarely have to grow.
        """
        target = FIRST_TARGET
        while self.step_graph.lowering == "ort" and target <= source:
            target *= 2
        return target

    def allocate(
        self, rows: int, source: int, target: int, *, logits: bool = False, top: int = 0, beams: int = 1
    ) -> OrtState:
        """Return finished rows for `rows` sentences of up to `source` tokens and `target` new tokens.

        The buffers of cross-attention are allocated with the first sentences.

        Raises:
            ResourceError: there is not enough memory for them.
        """
        if beams > 1 and (beam_step := self.beam_steps) is not None:
            return OrtBeams.of(beam_step, (rows // beams, source, target), beams, logits=logits, top=top)
        return OrtState.allocate(self._decoder_step, rows, source, target, logits=logits or top > 0)

    @cached_property
    def beam_steps(self) -> OrtStep | None:
        """Return the step of beam search, which the first call opens; None if `open_beams` finds none."""
        graph = self.manifest.optional_graph("decoder_beams")
        session = open_beams(graph, self._session_of)
        if graph is None or session is None:
            return None
        return OrtStep(graph, session, self.tokens)
