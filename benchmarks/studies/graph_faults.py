"""Faults in graphs that a comparison of weights cannot find: `python -m txport.benchmarks.studies.graph_faults CKPT`.

Each fault is planted at the nodes of a bundle's graphs where it can occur, in the encoder and in the step, at one node
at a time. The table counts the nodes for which verification refuses the bundle.
"""

import itertools
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import click
import numpy as np
import onnx_ir as ir
import torch
from txport.benchmarks.report.tables import markdown_table
from txport.benchmarks.studies.planted_faults import Planted
from txport.exporter.export import ExportOptions, export_bundle
from txport.models.checkpoint import load_checkpoint, save_checkpoint
from txport.runtime.bundle.schema import Lowering

STEP = "decoder_step.scatter"
# First positions from which the cache is written one slot late.
LATE_POSITIONS = (1, 3, 6)
# First distances with wrong biases.
DISTANT_POSITIONS = (4, 8)


def insert(graph: ir.Graph, before: ir.Node, operator: str, *inputs: ir.Value | None, **attributes: object) -> ir.Value:
    """Add a node to a graph, before another one, and return its output."""
    node = ir.node(operator, inputs, attributes)  # type: ignore[arg-type]
    graph.insert_before(before, node)
    return node.outputs[0]


def constant(graph: ir.Graph, before: ir.Node, value: np.ndarray) -> ir.Value:
    """Add a constant to a graph, named after the node that reads it."""
    result = ir.Value(name=f"{before.name}.fault.{len(graph.initializers)}")
    result.const_value = ir.tensor(value, name=result.name)
    result.shape = ir.Shape(value.shape)
    result.dtype = result.const_value.dtype
    graph.register_initializer(result)
    return result


def padding_let_through(graph: ir.Graph, node: ir.Node) -> None:
    """Let one position of padding through the encoder's mask, for one layer or for the decoder."""
    comparison = next(each for each in graph if each.op_type == "Less")
    selection = next(each for each in graph if each.op_type == "Where" and each.inputs[0] is comparison.outputs[0])
    unsqueeze = next(each for each in graph if each.op_type == "Unsqueeze" and each.inputs[0] is selection.outputs[0])
    faulty = insert(graph, unsqueeze, "LessOrEqual", *comparison.inputs)
    faulty = insert(graph, unsqueeze, "Where", faulty, *selection.inputs[1:])
    if node is unsqueeze:
        node.replace_input_with(0, faulty)
    else:
        node.replace_input_with(1, insert(graph, node, "Unsqueeze", faulty, unsqueeze.inputs[1]))


def future_let_through(graph: ir.Graph, node: ir.Node) -> None:
    """Let the self-attention of a layer also read the slot after its position."""
    selection = node.inputs[1].producer()  # type: ignore[union-attr]
    compared = selection.inputs[0].producer()  # type: ignore[union-attr]
    later = insert(graph, node, "Add", compared.inputs[1], constant(graph, node, np.array(1, np.int64)))  # type: ignore[union-attr]
    faulty = insert(graph, node, "LessOrEqual", compared.inputs[0], later)  # type: ignore[union-attr]
    node.replace_input_with(1, insert(graph, node, "Where", faulty, *selection.inputs[1:]))  # type: ignore[union-attr]


def written_late(first: int) -> Callable[[ir.Graph, ir.Node], None]:
    """Return a fault that writes the keys or values of a layer one slot late, from position `first` on."""

    def change(graph: ir.Graph, node: ir.Node) -> None:
        index = node.inputs[1]
        index_after = insert(graph, node, "GreaterOrEqual", index, constant(graph, node, np.array(first, np.int64)))
        index_after = insert(graph, node, "Cast", index_after, to=int(ir.DataType.INT64))
        index_after = insert(graph, node, "Add", index, index_after)
        shape = insert(graph, node, "Shape", node.inputs[0], start=2, end=3)
        last = insert(graph, node, "Sub", shape, constant(graph, node, np.array([1], np.int64)))
        node.replace_input_with(1, insert(graph, node, "Min", index_after, last))  # no slot follows the last one

    return change


def wrong_head_size(graph: ir.Graph, node: ir.Node) -> None:
    """Divide the scores of a layer by the square root of twice the size of a head."""
    half = constant(graph, node, np.array(0.5**0.5, np.float32))
    node.replace_input_with(0, insert(graph, node, "Mul", node.inputs[0], half))


def epsilon_times(factor: float) -> Callable[[ir.Graph, ir.Node], None]:
    """Return a fault that multiplies the epsilon of a norm by this factor."""

    def change(graph: ir.Graph, node: ir.Node) -> None:
        if "epsilon" in node.attributes:
            node.attributes["epsilon"] = ir.AttrFloat32("epsilon", factor * node.attributes["epsilon"].as_float())
        else:
            epsilon = node.inputs[1].const_value.numpy()  # type: ignore[union-attr]
            node.replace_input_with(1, constant(graph, node, np.array(factor * epsilon, np.float32)))

    return change


def wrong_axis(graph: ir.Graph, node: ir.Node) -> None:
    """Compute a norm over positions (in the step over rows) instead of channels."""
    if node.op_type == "ReduceMean":
        node.replace_input_with(1, constant(graph, node, np.array([-2], np.int64)))
        return
    x, axes = node.inputs[0], constant(graph, node, np.array([-2], np.int64))
    centred = insert(graph, node, "Sub", x, insert(graph, node, "ReduceMean", x, axes, keepdims=1))
    variance = insert(graph, node, "ReduceMean", insert(graph, node, "Mul", centred, centred), axes, keepdims=1)
    epsilon = constant(graph, node, np.array(node.attributes["epsilon"].as_float(), np.float32))
    deviation = insert(graph, node, "Sqrt", insert(graph, node, "Add", variance, epsilon))
    scaled = insert(graph, node, "Mul", insert(graph, node, "Div", centred, deviation), node.inputs[1])
    faulty = insert(graph, node, "Add", scaled, node.inputs[2])
    node.outputs[0].replace_all_uses_with(faulty)


def other_gelu(graph: ir.Graph, node: ir.Node) -> None:
    """Compute GELU by tanh instead of erf, or the reverse."""
    scaled = node.inputs[0].producer()  # type: ignore[union-attr]
    if node.op_type == "Tanh":
        scaled = scaled.inputs[0].producer()  # type: ignore[union-attr]
    x = scaled.inputs[0]  # type: ignore[union-attr]

    def times(value: ir.Value | None, factor: float) -> ir.Value:
        return insert(graph, node, "Mul", value, constant(graph, node, np.array(factor, np.float32)))

    if node.op_type == "Tanh":
        faulty = insert(graph, node, "Erf", times(x, 0.5**0.5))
    else:
        cubic = times(insert(graph, node, "Mul", insert(graph, node, "Mul", x, x), x), 0.044715)
        faulty = insert(graph, node, "Tanh", times(insert(graph, node, "Add", x, cubic), (2 / np.pi) ** 0.5))
    node.outputs[0].replace_all_uses_with(faulty)


def wrong_bucket(first: int) -> Callable[[ir.Graph, ir.Node], None]:
    """Return a fault that gives distances from `first` on the biases of the next bucket."""

    def change(graph: ir.Graph, node: ir.Node) -> None:
        table = node.inputs[0].const_value.numpy().copy()  # type: ignore[union-attr]
        if "encoder" in (node.name or ""):
            middle = len(table) // 2
        else:
            middle = 0
        for row in range(len(table) - 2, middle + first - 1, -1):  # no bucket follows the last one
            later = next((each for each in table[row + 1 :] if (each != table[row]).any()), table[row])
            table[row] = later
        node.replace_input_with(0, constant(graph, node, table))

    return change


def limit_moved(by: int) -> Callable[[ir.Graph, ir.Node], None]:
    """Return a fault that changes the maximum length of answers by this number of tokens."""

    def change(graph: ir.Graph, node: ir.Node) -> None:
        shifted = insert(graph, node, "Add", node.inputs[1], constant(graph, node, np.array(by, np.int64)))
        node.replace_input_with(1, shifted)

    return change


def next_scale(graph: ir.Graph, node: ir.Node) -> None:
    """Replace one scale of an int8 product by the next one, in the channel where they differ most."""
    scales = node.inputs[3].const_value.numpy().copy()  # type: ignore[union-attr]
    channel = int(np.abs(np.diff(np.log(scales))).argmax())
    scales[channel] = scales[channel + 1]
    node.replace_input_with(3, constant(graph, node, scales))


def next_scales(graph: ir.Graph, node: ir.Node) -> None:
    """Give every channel of an int8 product the scale of the next channel."""
    scales = node.inputs[3].const_value.numpy()  # type: ignore[union-attr]
    node.replace_input_with(3, constant(graph, node, np.roll(scales, -1)))


def rounded_island(graph: ir.Graph, node: ir.Node) -> None:
    """Round the result of a float32 island to float16, where it may overflow."""
    result = node.outputs[0]
    half = ir.node("Cast", [result], {"to": int(ir.DataType.FLOAT16)})
    back = ir.node("Cast", [half.outputs[0]], {"to": int(ir.DataType.FLOAT)})
    graph.insert_after(node, [half, back])
    for use in [each for each in result.uses() if each.node is not half]:
        use.node.replace_input_with(use.idx, back.outputs[0])


def _is_mask(node: ir.Node) -> bool:
    """Return whether a node of the encoder adds the padding mask, or outputs it for the decoder."""
    return node.outputs[0].name == "cross_bias" or (_is_masking(node) and node.inputs[1].name == "cross_bias")  # type: ignore[union-attr]


def _is_self_mask(node: ir.Node) -> bool:
    """Return whether a node of the step adds the mask of self-attention."""
    producer = node.inputs[1].producer() if _is_masking(node) else None  # type: ignore[union-attr]
    return producer is not None and producer.op_type == "Where"


def _is_masking(node: ir.Node) -> bool:
    """Return whether a node adds a mask to the scores of attention."""
    if node.op_type == "Add" and node.inputs[0] is not None:
        scores = node.inputs[0].producer()
    else:
        scores = None
    reader = next(iter(node.outputs[0].uses()), None)
    return scores is not None and scores.op_type == "MatMul" and reader is not None and reader.node.op_type == "Softmax"


def _has_epsilon(node: ir.Node) -> bool:
    """Return whether a node is a norm, or adds its epsilon."""
    if "epsilon" in node.attributes:
        return True
    reader = next(iter(node.outputs[0].uses()), None)
    return node.op_type == "Add" and reader is not None and reader.node.op_type == "Sqrt"


def _is_norm(node: ir.Node) -> bool:
    return node.op_type in ("LayerNormalization", "ReduceMean")


def _is_gelu(node: ir.Node) -> bool:
    return node.op_type in ("Erf", "Tanh")


def _is_bucket(node: ir.Node) -> bool:
    """Return whether a node looks up biases of relative positions."""
    return node.op_type == "Gather" and "positions.table" in (node.inputs[0].name or "")  # type: ignore[union-attr]


def _is_limit(node: ir.Node) -> bool:
    return any(each is not None and each.name == "target_limits" for each in node.inputs)


def _is_int8_product(node: ir.Node) -> bool:
    if node.op_type != "MatMulIntegerToFloat":
        return False
    return node.inputs[3].const_value is not None and node.inputs[3].const_value.size > 1  # type: ignore[union-attr]


def _is_island(node: ir.Node) -> bool:
    """Return whether the result of a node is the largest value of a layer that overflows."""
    if node.op_type not in ("MatMul", "Gemm", "Relu") or node.inputs[0] is None:
        return False
    return "feed_forward.inner" in f"{node.name} {node.inputs[0].name}"


Fault = tuple[Callable[[ir.Graph, ir.Node], None], str, Callable[[ir.Node], bool]]
BOTH_GRAPHS = ("encoder", STEP)
# For each fault: the change, the graph, and the nodes at which it is possible.
FAULTS: dict[str, list[Fault]] = {
    "padding let through": [(padding_let_through, "encoder", _is_mask)],
    "future let through": [(future_let_through, STEP, _is_self_mask)],
    "cache written late": [
        (written_late(first), STEP, lambda node: node.op_type == "ScatterElements") for first in LATE_POSITIONS
    ],
    "wrong head size": [(wrong_head_size, graph, _is_masking) for graph in BOTH_GRAPHS],
    "other GELU": [(other_gelu, graph, _is_gelu) for graph in BOTH_GRAPHS],
    "next bucket at long distances": [
        (wrong_bucket(first), graph, _is_bucket) for graph in BOTH_GRAPHS for first in DISTANT_POSITIONS
    ],
    "length limit, one token more": [(limit_moved(1), STEP, _is_limit)],
    "length limit, one token less": [(limit_moved(-1), STEP, _is_limit)],
    "norm over the wrong axis": [(wrong_axis, graph, _is_norm) for graph in BOTH_GRAPHS],
    "norm with a large epsilon": [(epsilon_times(100), graph, _has_epsilon) for graph in BOTH_GRAPHS],
    "norm without epsilon": [(epsilon_times(0), graph, _has_epsilon) for graph in BOTH_GRAPHS],
}
# The same of bundles in int8 and float16, whose step is that of the lowering `ort`.
ORT_STEP = "decoder_step.ort"
INT8_FAULTS: dict[str, list[Fault]] = {
    "one int8 scale of the next channel": [(next_scale, graph, _is_int8_product) for graph in ("encoder", ORT_STEP)],
    "all int8 scales of the next channels": [(next_scales, graph, _is_int8_product) for graph in ("encoder", ORT_STEP)],
}
FLOAT16_FAULTS: dict[str, list[Fault]] = {
    "island left in float16": [(rounded_island, graph, _is_island) for graph in ("encoder", ORT_STEP)],
}


def refusals(planted: Planted, faults: Sequence[Fault], maximum: int | None = None) -> Iterator[tuple[str, list[str]]]:
    """Plant a fault at its places; yield the node and the failures that verification reports.

    Args:
        planted: the graphs.
        faults: faults of one kind.
        maximum: maximum number of nodes, evenly spaced; None for all.
    """
    places = [
        (change, name, number, node.name or "")
        for change, name, is_applicable in faults
        for number, node in enumerate(planted.graph(name).graph)
        if is_applicable(node)
    ]
    if maximum is None:
        selected = places
    elif places:
        selected = places[:: -(-len(places) // maximum)]
    else:
        selected = []
    for change, name, number, node_name in selected:
        with planted.changed_graph(name, number, change):
            yield node_name, planted.report().failures


def overflowing(checkpoint: Path, output: Path, factor: float = 2.0**18) -> Path:
    """Return an equivalent copy of a checkpoint whose feed-forward layers overflow float16 inside."""
    loaded = load_checkpoint(checkpoint)
    with torch.no_grad():
        for name, weight in loaded.model.named_parameters():
            if "feed_forward.inner." in name:
                weight.mul_(factor)
            elif "feed_forward.outer.weight" in name:
                weight.div_(factor)
    tokenizer, references = checkpoint / "tokenizer", loaded.references
    save_checkpoint(output, loaded.model, tokenizer, loaded.sentences, {}, references=references)
    return output


@dataclass(frozen=True)
class _Group:
    """Faults of one format, and the export options of its bundle."""

    faults: dict[str, list[Fault]]
    options: ExportOptions
    lowering: Lowering


GROUPS = (
    _Group(FAULTS, ExportOptions(lowerings=("ort", "scatter"), verify=False), "scatter"),
    _Group(INT8_FAULTS, ExportOptions(int8=True, lowerings=("ort",)), "ort"),  # verification selects the int8 layers
    _Group(FLOAT16_FAULTS, ExportOptions(float16=True, lowerings=("ort",), verify=False), "ort"),
)


def planted_in(checkpoint: Path, group: _Group, sentences: int, scratch: Path) -> Planted:
    """Export a checkpoint for the faults of a group.

    Raises:
        ClickException: verification refuses the bundle without a fault.
    """
    bundle, copy = scratch / "bundle", scratch / "copy"
    if group.options.float16:
        checkpoint = overflowing(checkpoint, scratch / "overflowing")
    export_bundle(checkpoint, bundle, group.options)
    copy.mkdir()
    planted = Planted(checkpoint, bundle, sentences, copy, group.lowering)
    if failures := planted.report().failures:
        raise click.ClickException(f"{checkpoint} is refused without a fault: {failures[0]}")
    return planted


@click.command()
@click.argument("checkpoints", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--sentences", type=int, default=200, show_default=True, help="To verify on.")
@click.option("--places", type=int, default=5, show_default=True, help="Maximum for each kind and checkpoint.")
def main(checkpoints: tuple[Path, ...], sentences: int, places: int) -> None:
    """Plant faults in the graphs of bundles of CHECKPOINTS and print at how many places each kind is refused."""
    counts = {kind: [0, 0] for group in GROUPS for kind in group.faults}
    for checkpoint, group in itertools.product(checkpoints, GROUPS):
        with tempfile.TemporaryDirectory() as scratch:
            planted = planted_in(checkpoint, group, sentences, Path(scratch))
            for kind, faults in group.faults.items():
                for node, failures in refusals(planted, faults, places):
                    counts[kind][0] += bool(failures)
                    counts[kind][1] += 1
                    if failures:
                        result = failures[0]
                    else:
                        result = "not refused"
                    click.echo(f"{checkpoint.name}: {kind} at {node}: {result}", err=True)
    rows = [[kind, f"{refused} of {total}"] for kind, (refused, total) in counts.items() if total]
    click.echo("\n".join(markdown_table(("fault", "refused"), rows, text_columns=("fault",))))


if __name__ == "__main__":
    main()
