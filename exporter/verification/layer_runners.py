"""Runs of a graph with every value as an output, by each library, for `tx-verify --layers`.

An output cannot be fused away, so this measures a library's kernels and precisions, not its fusions.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from txport.exporter.engines.builder import add_profile
from txport.exporter.engines.parsing import parse_graph
from txport.exporter.graphs.sessions import Array, Values, outputs_of, session
from txport.runtime.bundle.manifest import Manifest
from txport.runtime.bundle.schema import Graph
from txport.runtime.engines.ort_session import providers_of
from txport.runtime.engines.tensorrt import TensorRt, find_tensorrt
from txport.runtime.libraries import needs

Runner = Callable[[Values], Values]
Shapes = Mapping[str, tuple[int, ...]]


def runner_on(where: tuple[str, str], file: Path, graph: Graph, manifest: Manifest, shapes: Sequence[Shapes]) -> Runner:
    """Return a function that runs `file` on a device; float inputs are rounded to the types that it takes.

    Args:
        where: device and engine: "cpu" or "cuda", "ort" or "trt".
        file: `graph` with all its values as outputs.
        graph: the manifest's record.
        manifest: the bundle's.
        shapes: of the inputs of every run, by name.
    """
    device, engine = where
    if engine == "trt":
        return _tensorrt(find_tensorrt(), file, graph, manifest, shapes)
    opened = session(file, providers_of(device))
    types = {value.name: np.float16 if "float16" in value.type else None for value in opened.get_inputs()}

    def infer(feed: Values) -> dict[str, Array]:
        return outputs_of(opened, {name: feed[name].astype(half or feed[name].dtype) for name, half in types.items()})

    return infer


def _tensorrt(tensorrt: TensorRt, file: Path, graph: Graph, manifest: Manifest, shapes: Sequence[Shapes]) -> Runner:
    """Run an engine by Polygraphy's runner, which allocates the many outputs."""
    os.environ["POLYGRAPHY_USE_TENSORRT_RTX"] = str(int(tensorrt.is_rtx))  # it reads this when it is imported
    with needs("trt"):
        from polygraphy.backend.trt import EngineFromNetwork, TrtRunner

    runner = TrtRunner(EngineFromNetwork(*network_with_config(tensorrt, file, graph, manifest, shapes)))
    runner.activate()
    inputs = runner.get_input_metadata()

    def infer(feed: Values) -> dict[str, Array]:
        typed = {name: feed[name].astype(np.dtype(inputs[name].dtype)) for name in inputs}
        return {name: np.array(value) for name, value in runner.infer(typed).items()}

    return infer


def network_with_config(
    tensorrt: TensorRt, file: Path, graph: Graph, manifest: Manifest, shapes: Sequence[Shapes]
) -> tuple[tuple[Any, Any, Any], Callable[[Any, Any], Any]]:
    """Builder, network and parser, and a function that configures them with precisions as `tx-build` does.

    Raises:
        BundleError: the library cannot parse the graph.
        EngineError: it cannot build here.
    """
    lengths = [each["cache_positions"][0] for each in shapes if "cache_positions" in each]
    fixed = (
        {"target": lengths[0]} if graph.lowering == "tensorscatter" else None
    )  # its cache layers take no other length
    builder = tensorrt.new_builder()
    network, parser = parse_graph(tensorrt, builder, file, fixed)

    def configure(builder: Any, network: Any) -> Any:
        config = builder.create_builder_config()
        tensorrt.set_precision(config, network, manifest.precision.type == "float16")
        add_profile(tensorrt, config, builder, network, lambda name: _range_of([each[name] for each in shapes]))
        return config

    return (builder, network, parser), configure


def _range_of(shapes: Sequence[tuple[int, ...]]) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """Return the smallest, the first and the largest, size by size."""
    return tuple(map(min, zip(*shapes, strict=True))), shapes[0], tuple(map(max, zip(*shapes, strict=True)))
