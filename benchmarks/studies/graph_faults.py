"""Faults in graphs that a comparison of weights cannot see: `python -m txport.benchmarks.studies.graph_faults CKPT`.

Each fault is planted at every place of a bundle's graphs where it can occur, in the encoder and in the step of the
lowering `scatter`, one place at a time. The table counts the places at which verification refuses the bundle.
"""

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import click
import numpy as np
import onnx_ir as ir
from txport.benchmarks.report.tables import markdown_table
from txport.benchmarks.studies.planted_faults import Planted
from txport.exporter.export import ExportOptions, export_bundle

STEP = "decoder_step.scatter"
# From these positions on the cache is written one slot late.
LATE = (1, 3, 6)


def insert(graph: ir.Graph, before: ir.Node, operator: str, *inputs: ir.Value | None, **attributes: object) -> ir.Value:
    """Add a node to a graph, before another one, and return its output."""
    node = ir.node(operator, inputs, attributes)  # type: ignore[arg-type]
    graph.insert_before(before, node)
    return node.outputs[0]


def constant(graph: ir.Graph, before: ir.Node, value: np.ndarray) -> ir.Value:
    """Add a constant to a graph; its name is that of the node that reads it."""
    result = ir.Value(name=f"{before.name}.fault.{len(graph.initializers)}")
    result.const_value = ir.tensor(value, name=result.name)
    result.shape = ir.Shape(value.shape)
    result.dtype = result.const_value.dtype
    graph.register_initializer(result)
    return result


def padding_let_through(graph: ir.Graph, node: ir.Node) -> None:
    """The encoder's mask has one position too many, for one layer or for the decoder."""
    less = next(each for each in graph if each.op_type == "Less")
    where = next(each for each in graph if each.op_type == "Where" and each.inputs[0] is less.outputs[0])
    unsqueeze = next(each for each in graph if each.op_type == "Unsqueeze" and each.inputs[0] is where.outputs[0])
    wrong = insert(graph, unsqueeze, "LessOrEqual", *less.inputs)
    wrong = insert(graph, unsqueeze, "Where", wrong, *where.inputs[1:])
    if node is unsqueeze:
        node.replace_input_with(0, wrong)
    else:
        node.replace_input_with(1, insert(graph, node, "Unsqueeze", wrong, unsqueeze.inputs[1]))


def future_let_through(graph: ir.Graph, node: ir.Node) -> None:
    """A layer's self-attention also reads the slot after its position."""
    where = node.inputs[1].producer()  # type: ignore[union-attr]
    compared = where.inputs[0].producer()  # type: ignore[union-attr]
    later = insert(graph, node, "Add", compared.inputs[1], constant(graph, node, np.array(1, np.int64)))  # type: ignore[union-attr]
    wrong = insert(graph, node, "LessOrEqual", compared.inputs[0], later)  # type: ignore[union-attr]
    node.replace_input_with(1, insert(graph, node, "Where", wrong, *where.inputs[1:]))  # type: ignore[union-attr]


def written_late(first: int) -> Callable[[ir.Graph, ir.Node], None]:
    """A layer's keys or values are written one slot late, from position `first` on."""

    def change(graph: ir.Graph, node: ir.Node) -> None:
        index = node.inputs[1]
        late = insert(graph, node, "GreaterOrEqual", index, constant(graph, node, np.array(first, np.int64)))
        late = insert(graph, node, "Cast", late, to=int(ir.DataType.INT64))
        late = insert(graph, node, "Add", index, late)
        shape = insert(graph, node, "Shape", node.inputs[0], start=2, end=3)
        last = insert(graph, node, "Sub", shape, constant(graph, node, np.array([1], np.int64)))
        node.replace_input_with(1, insert(graph, node, "Min", late, last))  # the last slot has none after it

    return change


def wrong_head_size(graph: ir.Graph, node: ir.Node) -> None:
    """A layer's scores are divided by the square root of twice the size of a head."""
    half = constant(graph, node, np.array(0.5**0.5, np.float32))
    node.replace_input_with(0, insert(graph, node, "Mul", node.inputs[0], half))


def no_epsilon(graph: ir.Graph, node: ir.Node) -> None:
    """A norm divides by a root without epsilon."""
    node.attributes["epsilon"] = ir.AttrFloat32("epsilon", 0.0)


def large_epsilon(graph: ir.Graph, node: ir.Node) -> None:
    """A norm has a hundred times the epsilon."""
    node.attributes["epsilon"] = ir.AttrFloat32("epsilon", 100 * node.attributes["epsilon"].as_float())


def exact_gelu(graph: ir.Graph, node: ir.Node) -> None:
    """GELU by erf instead of tanh, or the reverse."""
    if "approximate" in node.attributes:
        by_tanh = node.attributes["approximate"].as_string() == "tanh"
    else:
        by_tanh = False
    node.attributes["approximate"] = ir.AttrString("approximate", "none" if by_tanh else "tanh")


def _is_mask(node: ir.Node) -> bool:
    """Return whether a node of the encoder adds the mask of padding, or gives it to the decoder."""
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
    return "epsilon" in node.attributes


Fault = tuple[Callable[[ir.Graph, ir.Node], None], str, Callable[[ir.Node], bool]]
BOTH = ("encoder", STEP)
# The change, the graph, and the nodes where it can be.
FAULTS: dict[str, list[Fault]] = {
    "padding let through": [(padding_let_through, "encoder", _is_mask)],
    "future let through": [(future_let_through, STEP, _is_self_mask)],
    "cache written late": [
        (written_late(first), STEP, lambda node: node.op_type == "ScatterElements") for first in LATE
    ],
    "wrong head size": [(wrong_head_size, graph, _is_masking) for graph in BOTH],
    "other GELU": [(exact_gelu, graph, lambda node: node.op_type == "Gelu") for graph in BOTH],
    "norm with a large epsilon": [(large_epsilon, graph, _has_epsilon) for graph in BOTH],
    "norm without epsilon": [(no_epsilon, graph, _has_epsilon) for graph in BOTH],
}


def refusals(planted: Planted, kind: str) -> Iterator[tuple[str, list[str]]]:
    """Plant a fault at each of its places; yield the node and the failures that verification reports."""
    for change, name, fits in FAULTS[kind]:
        for number, node in enumerate(planted.graph(name).graph):
            if fits(node):
                with planted.changed_graph(name, number, change):
                    yield node.name or "", planted.report().failures


@click.command()
@click.argument("checkpoints", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--fp16", "float16", is_flag=True, help="A bundle in float16.")
@click.option("--sentences", type=int, default=200, show_default=True, help="Number of sentences to verify.")
def main(checkpoints: tuple[Path, ...], float16: bool, sentences: int) -> None:
    """Plant faults in the graphs of bundles of CHECKPOINTS and print at how many places each kind is refused."""
    counts = {kind: [0, 0] for kind in FAULTS}
    for checkpoint in checkpoints:
        with tempfile.TemporaryDirectory() as scratch:
            bundle = Path(scratch) / "bundle"
            copy = Path(scratch) / "copy"
            options = ExportOptions(float16=float16, lowerings=("ort", "scatter"), verify=False)
            export_bundle(checkpoint, bundle, options)
            copy.mkdir()
            planted = Planted(checkpoint, bundle, sentences, copy, "scatter")
            if failures := planted.report().failures:
                raise click.ClickException(f"{checkpoint} is refused without a fault: {failures[0]}")
            for kind, count in counts.items():
                for node, failures in refusals(planted, kind):
                    count[0] += bool(failures)
                    count[1] += 1
                    if not failures:
                        click.echo(f"{checkpoint}: {kind} at {node} is not refused", err=True)
    rows = [[kind, f"{refused} of {places}"] for kind, (refused, places) in counts.items() if places]
    click.echo("\n".join(markdown_table(("fault", "refused"), rows, left=("fault",))))


if __name__ == "__main__":
    main()
