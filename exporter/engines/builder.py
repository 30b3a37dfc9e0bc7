"""Builder of one serialized TensorRT engine from one ONNX graph, with checks before and after the build.

TensorRT reads the weights from the mapped file of the bundle. Versions that can do so write the engine to disk in
parts. So neither is copied into memory.
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
        ampere_plus: build for all GPUs of compute capability 8.0 or more.
        version_compatible: also allow later versions of the same major version.
        optimization_level: 0 to 5.
        workspace: maximum device memory for temporary tensors, in bytes; None for the library's limit.
        select_caches: write caches by `Where` in the `scatter` lowering; see `decoder_step`.
        inspect: open the finished engine and read the types of its layers. This needs the GPU that it is built for.
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
    """Builder of all engines of a directory, in sequence, with one timing cache.

    Attributes:
        tensorrt: the library.
        bundle: directory of the graphs.
        manifest: of the bundle.
        options: for TensorRT's builder.
        directory: directory for the engines.
        timings: timing measurements of earlier builds, from `timing_cache`; may be empty.
        progress: called with (file, fraction done from 0 to 1).
    """

    tensorrt: TensorRt
    bundle: Path
    manifest: Manifest
    options: BuildOptions
    directory: Path
    timings: bytes
    progress: Callable[[str, float], None]
    layers: dict[str, int] = field(default_factory=dict)
    _cache: Any = None

    @property
    def timing_cache(self) -> bytes:
        """Timing measurements of all builds, for later ones; empty if the library has no timing cache."""
        if self._cache is None:
            return b""
        return bytes(memoryview(self._cache.serialize()))

    def build(self, graph: Graph, file: str, profiles: Sequence[Profile], target: int | None = None) -> EngineFile:
        """Build one engine.

        Args:
            graph: the graph's record in the manifest.
            file: file name of the engine.
            profiles: optimization profiles, in order.
            target: fixed cache length, if layers need a static one. The number of beams is then fixed also.

        Raises:
            BundleError: the graph was not written by tx-export, or the library cannot parse or build it.
            CheckFailed: the engine would not compute the same as the graph.
            EngineError: the library cannot build on this machine.
        """
        islands = {n for island in self.manifest.precision.islands if island.graph == graph.name for n in island.nodes}
        precision = self.manifest.precision.type
        builder = self.tensorrt.new_builder()
        fixed = fixed_sizes(profiles[0], target)
        checked_graph(self.bundle, graph.file)
        network, parser = make_network(self.tensorrt, builder, self.bundle / graph.file, self._changes(graph), fixed)
        contract = interface(graph.role, self.manifest.model, precision)
        if contract is not None:
            graph = leave_out_unknown(network, graph, {tensor.name for tensor in contract.outputs})
        counts = check_network(self.tensorrt, network, graph, precision, islands)
        config = self._config(builder, network, precision == "float16", file)
        for profile in profiles:
            sizes = {tensor.name: shapes(tensor, profile) for tensor in graph.inputs}
            add_profile(self.tensorrt, config, builder, network, sizes.__getitem__)
        path = self.directory / file
        with path.open("xb") as output:
            if not self.tensorrt.serialize_to(builder, network, config, output):
                raise BundleError(f"{self.tensorrt.library} cannot build {graph.file}: {self.tensorrt.why()}")
        del parser  # the parser maps the weights, which the network needs
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
        """Use one cache object for all engines, since TensorRT 8.6 fails to read its own serialized cache."""
        if self._cache is None:
            self._cache = config.create_timing_cache(self.timings)
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

    def _check_products(self, products: list[str], file: str, precision: str) -> None:
        if not products:
            return
        fault = f"the engine of {file} does not read {precision} in {len(products)} products: {', '.join(products[:3])}"
        if self.tensorrt.strongly_typed:
            raise CheckFailed(f"{fault}, although its graph requires it")
        _log.warning("%s; %s chose so", fault, self.tensorrt.library)


def add_profile(
    tensorrt: TensorRt, config: Any, builder: Any, network: Any, shapes_of: Callable[[str], Sequence[Sequence[int]]]
) -> None:
    """Add an optimization profile with the minimum, optimal and maximum shape of each input of variable size.

    Raises:
        BundleError: the library does not accept it.
    """
    profile = builder.create_optimization_profile()
    for tensor in (network.get_input(index) for index in range(network.num_inputs)):
        if -1 in tuple(tensor.shape):
            profile.set_shape(tensor.name, *shapes_of(tensor.name))
    if config.add_optimization_profile(profile) < 0:
        raise BundleError(f"{tensorrt.library} refuses the sizes of a profile: {tensorrt.why()}")


def _monitor(trt: Any, progress: Callable[[float], None]) -> Any:
    """Return a TensorRT progress monitor that reports the progress of the outermost phase."""

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
