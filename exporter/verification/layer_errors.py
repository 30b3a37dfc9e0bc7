"""Errors of a graph's values against float32, node by node: what `tx-verify --layers` measures.

The reference is the same graph with the same weights, computed in float32 by ONNX Runtime's plain kernels on the CPU.
Both see the same inputs: each case of golden.json alone, and for a step the caches that the reference has filled, so
that an error comes from one encoder run or one step. Within a run errors accumulate from layer to layer.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
from txport.exporter.bundle import write_graphs
from txport.exporter.graphs.float16 import MOVES, rounded, widened
from txport.exporter.graphs.sessions import Array, TeacherForced, Values, session, with_all_outputs
from txport.exporter.verification.layer_runners import Runner, runner_on
from txport.runtime.bundle.graph_rules import checked_graph
from txport.runtime.bundle.interface import MASKED, MASKED_HALF
from txport.runtime.bundle.manifest import Manifest
from txport.runtime.bundle.schema import Graph, Lowering
from txport.runtime.engine import padded
from txport.runtime.errors import InputError
from txport.runtime.golden import Case, load_golden

# Cases, and steps of each.
CASES = 4
STEPS = 12
# Scores of masked positions are as near to float16's number for them.
_NEAR = 5000

Pair = tuple[Values, Values]  # inputs of a run, and the reference's outputs


@dataclass(frozen=True)
class LayerError:
    """Error of one value against float32, over all cases and steps.

    Attributes:
        graph: name of the graph.
        node: name of the node that makes the value.
        operator: its type.
        value: name of the value.
        largest: largest magnitude in float32.
        error: largest absolute difference; NaN where the value is not finite.
        relative: root mean square difference over the root mean square of the value; NaN likewise.
    """

    graph: str
    node: str
    operator: str
    value: str
    largest: float
    error: float
    relative: float

    @property
    def finite(self) -> bool:
        return math.isfinite(self.error)


def layer_errors(
    bundle: Path, manifest: Manifest, where: tuple[str, str], lowering: Lowering, scratch: Path
) -> list[LayerError]:
    """Compare every floating-point value of the encoder and of one decoder step, in the order of their nodes.

    Args:
        bundle: already checked.
        manifest: its manifest.
        where: device and engine: "cpu" (a float16 bundle rounds every value there) or "cuda", "ort" or "trt".
        lowering: which decoder step.
        scratch: an empty directory.

    Raises:
        InputError: the bundle is int8, or cannot run on that device.
        BundleError: the library of the device does not take a graph.
    """
    if manifest.precision.weights == "int8":
        raise InputError(
            f"{bundle} is int8, and float32 is not in it: tx-inspect lists the layers that tx-export left in float32"
        )
    cases = load_golden(bundle).cases[:CASES]
    graphs = manifest.encoder, manifest.step(lowering)
    wide = _copies(bundle, manifest, graphs, scratch / "exact", widened)
    exact = TeacherForced(*(session(file, fused=False) for file in wide))
    if where[0] == "cpu" and manifest.precision.type == "float16":
        files = _copies(bundle, manifest, graphs, scratch / "rounded", rounded)
    else:
        files = _copies(bundle, manifest, graphs, scratch / "bundle")
    errors = []
    for graph, file, pairs in zip(graphs, files, _expected(exact, cases, manifest.tokens.bos), strict=True):
        shapes = [{name: array.shape for name, array in feed.items()} for feed, _ in pairs]
        infer = runner_on(where, file, graph, manifest, shapes)
        errors += _compare(graph, bundle / graph.file, infer, pairs)
    return errors


def _copies(
    bundle: Path,
    manifest: Manifest,
    graphs: Sequence[Graph],
    directory: Path,
    change: Callable[[ir.Model], None] | None = None,
) -> list[Path]:
    """Write the graphs, changed, with every floating-point value as an output."""
    for graph in graphs:
        checked_graph(bundle, graph.file)
    models = {graph.name: ir.load(bundle / graph.file) for graph in graphs}
    if change is not None:
        for model in models.values():
            change(model)
    return [with_all_outputs(file) for file in write_graphs(directory, models, manifest.made_by.version).values()]


def _expected(exact: TeacherForced, cases: Sequence[Case], bos: int) -> tuple[list[Pair], list[Pair]]:
    """Return each run of the encoder and of the step by the reference, one case at a time."""
    length = max([1, *(min(len(case.target_ids), STEPS) for case in cases)])
    encoder: list[Pair] = []
    step: list[Pair] = []
    for case in cases:
        feed, cross = exact.encode(*padded([case.read], 0))
        encoder.append((feed, cross))
        step += exact.steps(cross, [case.target_ids], bos, length)
    return encoder, step


class _Sums:
    """Errors of one value, over all runs."""

    def __init__(self) -> None:
        self.largest = self.error = self._squares = self._differences = 0.0

    def add(self, ours: Array, expected: Array) -> None:
        exact = expected.astype(np.float64)
        # What is masked may be infinite in float16; other values as low as that are faults.
        seen = ~((exact < MASKED / 2) | (np.abs(exact - MASKED_HALF) < _NEAR))  # NaN is seen
        ours = ours[seen]
        exact = exact[seen]
        self.largest = max(self.largest, float(np.abs(exact).max(initial=0.0)))
        difference = np.abs(ours.astype(np.float64) - exact)
        # max() of Python would drop a NaN.
        self.error = float(np.maximum(self.error, difference.max(initial=0.0)))
        self._squares += float(np.square(exact).sum())
        self._differences += float(np.square(difference).sum())

    @property
    def figures(self) -> tuple[float, float, float]:
        """The largest magnitude, the error and the relative error, as in `LayerError`."""
        if self._squares > 0:
            relative = math.sqrt(self._differences / self._squares)
        else:
            relative = math.inf
        if math.isfinite(self.error):
            error = self.error
        else:
            error = math.nan
        return self.largest, error, relative if self._differences != 0 else 0.0


def _compare(graph: Graph, file: Path, infer: Runner, pairs: Sequence[Pair]) -> list[LayerError]:
    sums: dict[str, _Sums] = {}
    for feed, expected in pairs:
        outputs = infer(feed)
        for name in expected.keys() & outputs.keys():
            sums.setdefault(name, _Sums()).add(outputs[name], expected[name])
    nodes = onnx.load(file, load_external_data=False).graph.node
    return [
        LayerError(graph.name, node.name, node.op_type, value, *sums[value].figures)
        for node in nodes
        for value in node.output
        if value in sums
    ]


def worst(errors: Sequence[LayerError], count: int) -> list[LayerError]:
    """Return the values with the largest relative errors, in the order of `errors`.

    Values that are not finite count as larger than all others. Operators that only move values repeat the error of
    what they move, and are left out.
    """
    computed = [each for each in errors if each.operator not in MOVES]
    ranked = sorted(computed, key=lambda each: (each.finite, -each.relative if each.finite else 0.0))
    chosen = {id(each) for each in ranked[:count]}
    return [each for each in errors if id(each) in chosen]
