"""Checks and settings of a parsed network before the build, since TensorRT drops and retypes tensors silently."""

import re
from collections.abc import Collection, Iterator
from dataclasses import replace
from typing import Any

from txport.runtime.bundle.schema import Graph
from txport.runtime.engines.build_record import SCORES
from txport.runtime.engines.tensorrt import TensorRt
from txport.runtime.errors import CheckFailed

# Query, key, value, mask. TensorRT silently ignores Attention's `nonpad_kv_seqlen`.
_MASK = 3
FLOATS = ("float32", "float16", "bfloat16")
# These layers store, move or convert values but compute nothing.
_MOVES = {
    "CAST", "CONCATENATION", "CONSTANT", "FILL", "GATHER", "IDENTITY", "SCATTER", "SELECT", "SHAPE", "SHUFFLE", "SLICE",
    "SQUEEZE", "UNSQUEEZE", "KV_CACHE_UPDATE",
}  # fmt: skip

# The operator's definition (`stash_type`) specifies float32 inside, whatever the types of input and output.
_IN_FLOAT32 = re.compile(r"/RMSNormalization(_\d+)?$")


def layers_of(network: Any) -> Iterator[Any]:
    """Yield the layers of a network, in order."""
    return (network.get_layer(index) for index in range(network.num_layers))


def kind_of(layer: Any) -> str:
    """Return a layer's type, as in `LayerType`."""
    return str(layer.type).rpartition(".")[2]


def let_attention_decompose(tensorrt: TensorRt, network: Any) -> None:
    """Allow the library to compute an Attention as separate operators if it has no kernel for its shape.

    Otherwise the build fails for fewer than 4 heads, and for head sizes that are not multiples of 8 (TensorRT-RTX 1.7).
    """
    for layer in layers_of(network):
        if kind_of(layer) == "ATTENTION_INPUT":
            layer.__class__ = tensorrt.module.IAttentionInputLayer  # the network returns an ILayer
            layer.attention.decomposable = True


def leave_out_unknown(network: Any, graph: Graph, names: Collection[str]) -> Graph:
    """Unmark optional outputs that are not `names`, since every marked output is computed and must be bound.

    Scores that `mark_scores` has made outputs stay.

    Returns:
        `graph` without these outputs.
    """
    for output in [network.get_output(index) for index in range(network.num_outputs)]:
        if output.name not in names and not output.name.startswith(SCORES):
            network.unmark_output(output)
    return replace(graph, outputs=tuple(tensor for tensor in graph.outputs if tensor.name in names))


def check_network(tensorrt: TensorRt, network: Any, graph: Graph, precision: str, islands: set[str]) -> dict[str, int]:
    """Check that inputs, outputs, masks and axes are complete, and precisions, if the network is strongly typed.

    Args:
        tensorrt: the library.
        network: parsed from `graph`.
        graph: the graph's record in the manifest.
        precision: "float32" or "float16".
        islands: names of nodes that compute in float32 in a float16 graph.

    Returns:
        number of layers that compute in each floating type.

    Raises:
        CheckFailed: something is missing or wrong.
    """
    inputs = {network.get_input(index).name for index in range(network.num_inputs)}
    outputs = {network.get_output(index).name for index in range(network.num_outputs)}
    for direction, parsed, declared in (("input", inputs, graph.inputs), ("output", outputs, graph.outputs)):
        if missing := sorted({tensor.name for tensor in declared} - parsed):
            raise CheckFailed(
                f"{tensorrt.library} dropped the {direction} {missing[0]!r} of {graph.file}: its engine would be wrong"
            )
    for layer in layers_of(network):
        if kind_of(layer) == "ATTENTION_INPUT" and layer.num_inputs <= _MASK:
            raise CheckFailed(
                f"{tensorrt.library} dropped the mask of {layer.name} of {graph.file}: it would attend to padding; "
                "export the bundle again with this txport"
            )
    _check_reductions(tensorrt, network, graph.file)
    counts: dict[str, int] = {}
    for layer, kind in computing_layers(tensorrt, network):
        if kind == "float32" and _IN_FLOAT32.search(layer.name):
            continue
        counts[kind] = counts.get(kind, 0) + 1
        expected = "float32" if is_island(layer.name, islands) else precision
        if tensorrt.strongly_typed and kind != expected:
            raise CheckFailed(f"{layer.name} of {graph.file} computes in {kind} instead of {expected}")
    return counts


def _check_reductions(tensorrt: TensorRt, network: Any, file: str) -> None:
    """Check that reductions are over the last axis only. The parsers of 8.6 and 9 reduce over all axes in opset 18."""
    for layer in layers_of(network):
        if kind_of(layer) != "REDUCE":
            continue
        layer.__class__ = tensorrt.module.IReduceLayer  # the network returns an ILayer
        if layer.axes != 1 << (len(layer.get_input(0).shape) - 1):
            raise CheckFailed(
                f"{tensorrt.library} would reduce {layer.name} of {file} over other axes than the last: it would mix "
                "rows; export the bundle again with this txport"
            )


def computing_layers(tensorrt: TensorRt, network: Any) -> Iterator[tuple[Any, str]]:
    """Yield each layer that computes in floating point, and the type of its output."""
    for layer in layers_of(network):
        if kind_of(layer) in _MOVES:
            continue
        for index in range(layer.num_outputs):
            if (name := tensorrt.type_name(layer.get_output(index).dtype)) in FLOATS:
                yield layer, name
                break


def is_island(layer: str, islands: set[str]) -> bool:
    """Return whether a layer belongs to one of these nodes. The parser numbers the layers of a node."""
    return layer in islands or re.sub(r"_\d+$", "", layer) in islands
