"""The optional graphs of a bundle on ONNX Runtime, which read whole source sentences and finished translations.

Each run handles several sentences; nothing is captured or kept between runs. TensorRT has no engines for these graphs.
With TensorRT, ONNX Runtime runs them, on the GPU if its CUDA provider is installed.
"""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt
import onnxruntime
from txport.runtime.bundle.archive import Files
from txport.runtime.bundle.interface import source_name
from txport.runtime.bundle.manifest import Manifest, graph_of
from txport.runtime.bundle.schema import Graph, OptionalRole
from txport.runtime.engine import Engine, Float32, Source, padded
from txport.runtime.engines.ort import OrtEngine
from txport.runtime.engines.ort_session import CPU, Provider, open_session, providers_of, reason_of
from txport.runtime.errors import failure
from txport.runtime.libraries import cuda_provider

# Maximum number of elements of one output, or of all logits, of a run: 64 MiB. A single sentence may have more.
MAX_NUMBERS = 1 << 24

Array = npt.NDArray[Any]
Ids = Sequence[int]


@dataclass(frozen=True)
class Reading:
    """Results of the decoder for one given translation, with t target ids and s source ids.

    Attributes:
        log_probabilities: float32 `[t]`, for each id of the translation.
        cross: float32 `[layers, heads, t, s]`, cross-attention; None if it was not requested.
        self_attention: float32 `[layers, heads, t, t]`; None if it was not requested. Columns are bos and all ids
            except the last one.
    """

    log_probabilities: Float32
    cross: Float32 | None
    self_attention: Float32 | None


class TeacherForcing:
    """The graphs of the optional roles, each loaded at its first use. Threads may share one.

    Args:
        bundle: the bundle.
        manifest: its manifest, already checked.
        engine: the engine that runs the bundle.
        device: "cpu" or "cuda"; without the CUDA provider, the graphs run on the CPU.
        threads: number of threads of each operator on the CPU; 0 for the number of cores.
    """

    def __init__(self, bundle: Files, manifest: Manifest, engine: Engine, device: str, threads: int) -> None:
        self._bundle = bundle
        self._manifest = manifest
        self._threads = threads
        self._source = source_name(manifest.model)
        # The outputs of `OrtEngine.encode` can be used by these graphs. Those of other engines are not in host memory.
        self._engine = engine if isinstance(engine, OrtEngine) else None
        self._on_cpu = device == "cpu" or self._engine is not None or cuda_provider() is None
        self._sessions: dict[str, Any] = {}
        self._lock = threading.Lock()

    def read(
        self, sources: Sequence[Source], targets: Sequence[Ids], *, cross: bool = False, self_attention: bool = False
    ) -> Iterator[tuple[int, Reading]]:
        """Yield the reading of each translation with its index, in the order of computation.

        Args:
            sources: source ids or vectors, as for an engine: each 1 to `Limits.source`.
            targets: their translations without bos, each 1 to `Limits.target`.
            cross, self_attention: whether to return cross-attention and self-attention.

        Raises:
            BundleError: the bundle has no such graph.
            ResourceError, EngineError: as for an engine.
        """
        model = self._manifest.model
        graph = self.graph("decoder")
        maps = model.decoder_layers * model.heads

        def numbers(source: int, target: int) -> int:
            return target * max(model.target_vocabulary, maps * max(source * cross, target * self_attention))

        output_names = ["log_probabilities"] + ["cross_attention"] * cross + ["self_attention"] * self_attention
        for rows in self._batches(sources, targets, numbers):
            ids, lengths = padded([targets[row] for row in rows], self._manifest.tokens.pad)
            feed = {**self._encode([sources[row] for row in rows]), "target_ids": ids, "target_lengths": lengths}
            outputs = self._run(graph, feed, output_names)
            for index, row in enumerate(rows):
                s = len(sources[row])
                t = len(targets[row])
                yield (
                    row,
                    Reading(
                        outputs["log_probabilities"][index, :t],
                        outputs["cross_attention"][:, index, :, :t, :s] if cross else None,
                        outputs["self_attention"][:, index, :, :t, :t] if self_attention else None,
                    ),
                )

    def memories(self, sources: Sequence[Source]) -> Iterator[tuple[int, Float32]]:
        """Yield the float32 output of the encoder `[s, d_model]` for each source, with its index; raise as `read`."""
        yield from self._encoded(sources, "memory", lambda s, _: s * self._manifest.model.d_model)

    def attentions(self, sources: Sequence[Source]) -> Iterator[tuple[int, Float32]]:
        """Yield the float32 self-attention of the encoder `[layers, heads, s, s]` for each source, as `memories`."""
        model = self._manifest.model
        maps = model.encoder_layers * (model.encoder_heads or model.heads)
        yield from self._encoded(sources, "self_attention", lambda s, _: maps * s * s)

    def _encoded(
        self, sources: Sequence[Source], output: str, numbers: Callable[[int, int], int]
    ) -> Iterator[tuple[int, Float32]]:
        graph = self.graph("encoder_attention")
        for rows in self._batches(sources, sources, numbers):
            read, lengths = padded([sources[row] for row in rows], self._manifest.tokens.pad)
            result = self._run(graph, {self._source: read, "source_lengths": lengths}, [output])[output]
            for index, row in enumerate(rows):
                s = len(sources[row])
                yield row, result[index, :s] if output == "memory" else result[:, index, :, :s, :s]

    def _batches(
        self, sources: Sequence[Source], targets: Sequence[Source], numbers: Callable[[int, int], int]
    ) -> Iterator[list[int]]:
        """Yield batches of sentences with similar lengths, the longest first, up to `MAX_NUMBERS` elements each."""
        order = sorted(range(len(sources)), key=lambda row: (-len(targets[row]), -len(sources[row])))
        maximum = self._manifest.limits.batch
        rows = list[int]()
        source = 0
        for row in order:
            longest = max(source, len(sources[row]))
            if rows and (
                len(rows) == maximum or (len(rows) + 1) * numbers(longest, len(targets[rows[0]])) > MAX_NUMBERS
            ):
                yield rows
                rows = []
                longest = len(sources[row])
            rows.append(row)
            source = longest
        if rows:
            yield rows

    def _encode(self, sources: Sequence[Source]) -> Mapping[str, Array]:
        """Return the keys, values and bias of cross-attention."""
        read, lengths = padded(sources, self._manifest.tokens.pad)
        if self._engine is not None:
            return self._engine.encode(read, lengths)
        graph = self._manifest.encoder
        inputs = {tensor.name for tensor in self.graph("decoder").inputs}
        output_names = [tensor.name for tensor in graph.outputs if tensor.name in inputs]
        return self._run(graph, {self._source: read, "source_lengths": lengths}, output_names)

    def graph(self, role: OptionalRole) -> Graph:
        """Return the graph of a role.

        Raises:
            BundleError: the bundle has no such graph.
        """
        return graph_of(self._bundle, self._manifest, role)

    def _run(self, graph: Graph, feed: Mapping[str, Array], output_names: Sequence[str]) -> dict[str, Array]:
        session = self._session(graph)
        options = onnxruntime.RunOptions()
        options.only_execute_path_to_fetches = True
        try:
            outputs = session.run(list(output_names), dict(feed), options)
        except Exception as error:  # ONNX Runtime's exceptions have no common base class
            raise failure(f"ONNX Runtime failed: {reason_of(error)}") from error
        return dict(zip(output_names, outputs, strict=True))

    def _session(self, graph: Graph) -> Any:
        with self._lock:
            if graph.name not in self._sessions:
                providers: Sequence[Provider] = [CPU] if self._on_cpu else providers_of("cuda")
                session = open_session(self._bundle, graph, threads=self._threads, providers=providers)
                self._sessions[graph.name] = session
            return self._sessions[graph.name]
