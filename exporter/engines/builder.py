"""One ONNX graph to one serialized TensorRT engine with its profiles, checked before and after the build.

TensorRT reads the weights from the mapped file of the bundle and, where its version can, streams the engine to disk:
neither is copied into memory.
"""

import logging
import mmap
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from txport.exporter.engines.inspector import count_types, engine_layers, wrong_products
from txport.exporter.engines.network import check_network, leave_out_unknown
from txport.exporter.engines.parsing import NetworkChanges, make_network
from txport.exporter.engines.profiles import fixed_sizes, shapes
from txport.runtime.bundle.graph_rules import checked_graph
from txport.runtime.bundle.interface import interface
from txport.runtime.bundle.manifest import Manifest
from txport.runtime.bundle.schema import Graph
from txport.runtime.engines.build_record import EngineFile, EngineRole, Profile
from txport.runtime.engines.tensorrt import TensorRt
from txport.runtime.errors import BundleError, CheckFailed
from txport.runtime.files import sha256

_log = logging.getLogger("txport")


@dataclass(frozen=True)
class BuildOptions:
    """Options of TensorRT's builder.

    Attributes:
        capabilities: compute capabilities to build for (TensorRT-RTX only).
        ampere_plus: for every GPU of compute capability 8.0 or more.
        version_compatible: for later versions of the same major version as well.
        optimization_level: 0 to 5.
        workspace: maximum number of bytes of device memory for temporaries; None for the library's own bound.
        select_caches: let the `scatter` lowering write caches by `Where`; see `decoder_step`.
        inspect: open the finished engine and read its layers' types, which needs the GPU that it is built for.
    """

    capabilities: tuple[str, ...] = ()
    ampere_plus: bool = False
    version_compatible: bool = False
    optimization_level: int = 3
    workspace: int | None = None
    select_caches: bool = False
    inspect: bool = True


@dataclass
class EngineBuilder:
    """Builds the engines of one directory, one after the other, with one timing cache.

    Attributes:
        tensorrt: the library.
        bundle: where the graphs are.
        manifest: its manifest.
        options: for TensorRT's builder.
        directory: where engines are written.
        known: measurements of earlier builds, as `timing_cache` gave them; empty for none.
        progress: called with (file, fraction done from 0 to 1).
    """

    tensorrt: TensorRt
    bundle: Path
    manifest: Manifest
    options: BuildOptions
    directory: Path
    known: bytes
    progress: Callable[[str, float], None]
    layers: dict[str, int] = field(default_factory=dict)
    _cache: Any = None

    @property
    def timing_cache(self) -> bytes:
        """The measurements of all builds, for a later run; empty if the library makes none."""
        if self._cache is None:
            return b""
        return bytes(memoryview(self._cache.serialize()))

    def build(self, graph: Graph, file: str, profiles: Sequence[Profile], target: int | None = None) -> EngineFile:
        """Build one engine.

        Args:
            graph: which graph.
            file: the engine file's name.
            profiles: its optimization profiles, in order.
            target: fixes the cache length, for layers that need it static, and with it the number of beams.

        Raises:
            BundleError: the graph contains more than tx-export writes, or the library cannot parse or build it.
            CheckFailed: the engine would compute something else than the graph.
            EngineError: the library cannot build here.
        """
        islands = {n for island in self.manifest.precision.islands if island.graph == graph.name for n in island.nodes}
        precision = self.manifest.precision.type
        builder = self.tensorrt.new_builder()
        fixed = fixed_sizes(profiles[0], target)
        checked_graph(self.bundle, graph.file)
        network, parser = make_network(self.tensorrt, builder, self.bundle / graph.file, self._changes(graph), fixed)
        known = interface(graph.role, self.manifest.model, precision)
        if known is not None:
            graph = leave_out_unknown(network, graph, {tensor.name for tensor in known.outputs})
        counts = check_network(self.tensorrt, network, graph, precision, islands)
        config = self._config(builder, network, precision == "float16", file)
        for profile in profiles:
            sizes = {tensor.name: shapes(tensor, profile) for tensor in graph.inputs}
            add_profile(self.tensorrt, config, builder, network, sizes.__getitem__)
        path = self.directory / file
        with path.open("xb") as output:
            if not self.tensorrt.serialize_to(builder, network, config, output):
                raise BundleError(f"{self.tensorrt.library} cannot build {graph.file}: {self.tensorrt.why()}")
        del parser  # it maps the weights, which must outlive the network
        if self.options.inspect:
            counts = self._inspect(path, graph, precision, islands)
        for kind, count in counts.items():
            self.layers[kind] = self.layers.get(kind, 0) + count
        return EngineFile(cast(EngineRole, graph.role), file, path.stat().st_size, sha256(path), tuple(profiles))

    def _changes(self, graph: Graph) -> NetworkChanges:
        sizes = self.manifest.model
        return NetworkChanges.of(self.tensorrt, graph, sizes, select_caches=self.options.select_caches)

    def _config(self, builder: Any, network: Any, half: bool, file: str) -> Any:
        trt = self.tensorrt.module
        options = self.options
        config = builder.create_builder_config()
        config.profiling_verbosity = trt.ProfilingVerbosity.DETAILED
        config.builder_optimization_level = options.optimization_level
        if options.workspace is not None:
            config.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, options.workspace)
        self.tensorrt.set_precision(config, network, half)
        self.tensorrt.share_profiles(config)
        self.tensorrt.set_target(config, options.capabilities, options.ampere_plus, options.version_compatible)
        if self.tensorrt.has_timing_cache:
            self._set_timing_cache(config)
        if hasattr(trt, "IProgressMonitor"):
            config.progress_monitor = _monitor(trt, lambda part: self.progress(file, part))
        return config

    def _set_timing_cache(self, config: Any) -> None:
        """One object for all engines, since 8.6 fails with an internal error on its own serialized cache."""
        if self._cache is None:
            self._cache = config.create_timing_cache(self.known)
        if self._cache is None or not config.set_timing_cache(self._cache, False):
            _log.warning("%s rejects its timing cache: every kernel is timed again", self.tensorrt.library)
            self._cache = config.create_timing_cache(b"")
            config.set_timing_cache(self._cache, False)

    def _inspect(self, path: Path, graph: Graph, precision: str, islands: set[str]) -> dict[str, int]:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            _runtime, engine = self.tensorrt.open_engine(data, self.options.version_compatible)
            if engine is None:
                raise CheckFailed(f"{self.tensorrt.library} does not open the engine: {self.tensorrt.why()}")
            layers = engine_layers(self.tensorrt, engine)
            del engine
        self._check_products(wrong_products(layers, precision, islands), graph.file, precision)
        return count_types(layers)

    def _check_products(self, wrong: list[str], file: str, precision: str) -> None:
        if not wrong:
            return
        fault = f"the engine of {file} does not read {precision} in {len(wrong)} products: {', '.join(wrong[:3])}"
        if self.tensorrt.strongly_typed:
            raise CheckFailed(f"{fault}, although its graph requires it")
        _log.warning("%s; %s chose so", fault, self.tensorrt.library)


def add_profile(
    tensorrt: TensorRt, config: Any, builder: Any, network: Any, shapes_of: Callable[[str], Sequence[Sequence[int]]]
) -> None:
    """Add a profile in which each input of variable size has its smallest, optimal and largest shape, by its name.

    Raises:
        BundleError: the library refuses it.
    """
    profile = builder.create_optimization_profile()
    for tensor in (network.get_input(index) for index in range(network.num_inputs)):
        if -1 in tuple(tensor.shape):
            profile.set_shape(tensor.name, *shapes_of(tensor.name))
    if config.add_optimization_profile(profile) < 0:
        raise BundleError(f"{tensorrt.library} refuses the sizes of a profile: {tensorrt.why()}")


def _monitor(trt: Any, progress: Callable[[float], None]) -> Any:
    """Reports the progress of the outermost phase."""

    class Monitor(trt.IProgressMonitor):  # type: ignore[misc]
        def __init__(self) -> None:
            trt.IProgressMonitor.__init__(self)
            self.outermost: tuple[str, int] | None = None

        def phase_start(self, phase_name: str, parent_phase: str | None, num_steps: int) -> None:
            if parent_phase is None:
                self.outermost = phase_name, max(1, num_steps)

        def step_complete(self, phase_name: str, step: int) -> bool:
            if self.outermost is not None and self.outermost[0] == phase_name:
                progress(min(1.0, (step + 1) / self.outermost[1]))
            return True

        def phase_finish(self, phase_name: str) -> None:
            if self.outermost is not None and self.outermost[0] == phase_name:
                self.outermost = None

    return Monitor()
