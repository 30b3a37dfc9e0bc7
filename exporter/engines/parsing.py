"""TensorRT networks of graphs, with the changes that a version needs; used by tx-build and the GPU tests."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from txport.exporter.engines.decoder_step import mark_scores, repeat_over_heads, write_caches_by_select
from txport.exporter.engines.network import let_attention_decompose
from txport.exporter.engines.static_sizes import with_size
from txport.runtime.bundle.schema import Graph, ModelSizes
from txport.runtime.engines.tensorrt import TensorRt
from txport.runtime.errors import BundleError


@dataclass(frozen=True)
class NetworkChanges:
    """Changes of a parsed network.

    Attributes:
        select_caches: write the caches of a `scatter` step by `Where` instead of ScatterElements.
        heads: numbers of heads over which nothing may be broadcast; empty to keep broadcasts.
        mark_scores: make the scores of self-attention outputs of a `scatter` step.
    """

    select_caches: bool = False
    heads: frozenset[int] = frozenset()
    mark_scores: bool = False

    @staticmethod
    def of(tensorrt: TensorRt, graph: Graph, sizes: ModelSizes, *, select_caches: bool) -> "NetworkChanges":
        """Return the changes for a graph and this version of TensorRT."""
        heads = frozenset({sizes.heads, sizes.encoder_heads or sizes.heads})
        is_scatter = graph.lowering == "scatter"
        return NetworkChanges(
            select_caches=select_caches and is_scatter,
            heads=frozenset() if tensorrt.strongly_typed else heads,
            mark_scores=is_scatter and tensorrt.fuses_scores_wrongly,
        )


def make_network(
    tensorrt: TensorRt,
    builder: Any,
    path: Path,
    changes: NetworkChanges,
    fixed: Mapping[str, int] | None = None,
) -> tuple[Any, Any]:
    """Parse a graph and change its network. Return (network, parser); the parser keeps the weights mapped.

    Args:
        tensorrt: the library.
        builder: its builder.
        path: an ONNX file.
        changes: see `NetworkChanges.of`.
        fixed: sizes of dimensions that become static, by name.

    Raises:
        BundleError: the library cannot parse it.
        CheckFailed: a cache is not written by a scatter, or not read by a softmax.
    """
    network, parser = parse_graph(tensorrt, builder, path, fixed)
    if changes.select_caches:
        write_caches_by_select(tensorrt, network)
    for heads in sorted(changes.heads):
        repeat_over_heads(network, heads)
    if changes.mark_scores:
        mark_scores(tensorrt, network)
    let_attention_decompose(tensorrt, network)
    return network, parser


def parse_graph(
    tensorrt: TensorRt, builder: Any, path: Path, fixed: Mapping[str, int] | None = None
) -> tuple[Any, Any]:
    """Parse an ONNX file into a network. Return (network, parser); the parser keeps the weights mapped.

    Args:
        tensorrt: the library.
        builder: its builder.
        path: an ONNX file.
        fixed: sizes of dimensions that become static, by name.

    Raises:
        BundleError: the library cannot parse it.
    """
    network = tensorrt.new_network(builder)
    parser = tensorrt.new_parser(network)
    if not fixed:
        parsed = parser.parse_from_file(str(path))
    else:
        model = path.read_bytes()
        for dimension, size in fixed.items():
            model = with_size(model, dimension, size)
        parsed = parser.parse(model, str(path))
    if not parsed:
        reasons = [parser.get_error(index).desc() for index in range(parser.num_errors)]
        if reasons:
            reason = " ".join(reasons[0].split())[:300]
        else:
            reason = tensorrt.why()
        raise BundleError(f"{tensorrt.library} does not parse {path}: {reason}")
    return network, parser
