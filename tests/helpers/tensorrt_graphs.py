"""Bundles of random models that TensorRT-RTX can parse and build without a GPU."""

import dataclasses
from collections.abc import Collection
from pathlib import Path
from typing import Any, Literal

from numpy_runner import graphs_of, random_model
from txport.exporter.bundle import graph_record, write_graphs
from txport.exporter.engines.builder import BuildOptions, EngineBuilder
from txport.exporter.graphs.float16 import to_float16
from txport.runtime.bundle.manifest import Manifest
from txport.runtime.bundle.schema import Dimensions, Island, Precision, Range
from txport.runtime.engines.tensorrt import find_tensorrt

TOY = Path(__file__).parents[1] / "data" / "toy_bundle"
LOWERINGS = ("scatter", "tensorscatter")
CAPABILITY = "8.9"


def write_bundle(
    directory: Path, option: dict[str, Any], precision: str, islands: Collection[str] = (), listed: bool = True
) -> Manifest:
    """Write the encoder and both lowerings of a model; return their manifest, which is not written.

    Args:
        directory: directory that receives `onnx/`.
        option: changes of the preset.
        precision: "float32" or "float16".
        islands: nodes that stay in float32.
        listed: whether the manifest lists the islands.
    """
    model = random_model(**option)
    graphs = {"encoder": graphs_of(model, "scatter")[0]}
    graphs |= {f"decoder_step.{lowering}": graphs_of(model, lowering)[1] for lowering in LOWERINGS}
    found = []
    for name, graph in graphs.items():
        here = tuple(sorted(set(islands) & {node.name or "" for node in graph.graph}))
        if precision == "float16":
            to_float16(graph, here)
        if here and listed:
            found.append(Island(name, here, "loss"))
    sizes = model.config.sizes
    floating: Literal["float16", "float32"] = "float16" if precision == "float16" else "float32"
    write_graphs(directory / "onnx", graphs, "0")
    return dataclasses.replace(
        Manifest.load(TOY),
        model=sizes,
        dimensions=Dimensions(Range(1, 2, 4), Range(1, 8, 16), Range(1, 16, 32)),
        precision=Precision(floating, floating, tuple(found)),
        graphs=tuple(graph_record(name, graph, sizes) for name, graph in graphs.items()),
    )


def rtx_builder(bundle: Path, manifest: Manifest, directory: Path) -> EngineBuilder:
    """Return a builder for a GPU that need not be installed, at the level with the fastest build."""
    options = BuildOptions(capabilities=(CAPABILITY,), optimization_level=0, inspect=False)
    directory.mkdir(parents=True, exist_ok=True)
    return EngineBuilder(
        find_tensorrt("tensorrt_rtx"), bundle, manifest, options, directory, b"", lambda file, part: None
    )
