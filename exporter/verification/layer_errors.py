"""Where a graph's values part from float32, node by node: what `tx-verify --layers` measures.

The reference is the same graph with the same weights, computed in float32 by ONNX Runtime's plain kernels on the CPU.
Both see the same inputs: each case of golden.json alone, and for a step the caches that the reference has filled, so
that an error is that of one encoder run or of one step. Within a run errors add up from layer to layer.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
from txport.exporter.bundle import write_graphs
from txport.exporter.graphs.float16 import MOVES, rounded, widened
from txport.exporter.graphs.sessions import Array, outputs_of, session, with_all_outputs
from txport.exporter.verification.layer_runners import Feed, Runner, runner_on
from txport.runtime.bundle.manifest import Manifest
from txport.runtime.bundle.schema import Graph, Lowering
from txport.runtime.errors import InputError
from txport.runtime.golden import Case, load_golden

# Cases, and steps of each.
CASES, STEPS = 4, 12


@dataclass(frozen=True)
class LayerError:
    """How far one value is from float32, over all cases and steps.

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


def layer_errors(bundle: Path, manifest: Manifest, device: str, lowering: Lowering, scratch: Path) -> list[LayerError]:
    """Compare every floating-point value of the encoder and of one decoder step, in the order of their nodes.

    Args:
        bundle: already checked.
        manifest: its manifest.
        device: "cpu" (a float16 bundle rounds every value there), "cuda" (ONNX Runtime) or "trt" (TensorRT).
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
    encoder, step = manifest.encoder, manifest.step(lowering)
    exact = _copies(bundle, manifest, (encoder, step), scratch / "exact", widened)
    if device == "cpu" and manifest.precision.type == "float16":
        found = _copies(bundle, manifest, (encoder, step), scratch / "rounded", rounded)
    else:
        found = _copies(bundle, manifest, (encoder, step), scratch / "bundle")
    feeds = _Feeds(_exactly(exact["encoder"]), _exactly(exact[step.name]), step, cases, manifest.tokens.bos)
    errors = []
    for graph, pairs in ((encoder, feeds.of_encoder()), (step, feeds.of_step())):
        shapes = [{name: array.shape for name, array in feed.items()} for feed, _ in pairs]
        infer = runner_on(device, found[graph.name], graph, manifest, shapes)
        errors += _compare(graph, bundle / graph.file, infer, pairs)
    return errors


def _copies(
    bundle: Path,
    manifest: Manifest,
    graphs: Sequence[Graph],
    directory: Path,
    change: Callable[[ir.Model], None] | None = None,
) -> dict[str, Path]:
    """The graphs, changed in place, with every floating-point value as an output, by name."""
    models = {graph.name: ir.load(bundle / graph.file) for graph in graphs}
    if change is not None:
        for model in models.values():
            change(model)
    files = write_graphs(directory, models, manifest.made_by.version)
    copies = {}
    for name, file in files.items():
        copies[name] = file.with_suffix(".all.onnx")
        with_all_outputs(file, copies[name])
    return copies


def _exactly(file: Path) -> Runner:
    """The graph as it is written: fusions compute otherwise."""
    return partial(outputs_of, session(file, fused=False))


class _Feeds:
    """What the two graphs are given, and what the reference makes of it."""

    def __init__(self, encoder: Runner, step: Runner, graph: Graph, cases: Sequence[Case], bos: int) -> None:
        self._encoder, self._step, self._inputs = encoder, step, graph.inputs
        self._cases, self._bos = cases, bos

    def of_encoder(self) -> list[tuple[Feed, Feed]]:
        return [(feed, self._encoder(feed)) for feed in map(_source, self._cases)]

    def of_step(self) -> list[tuple[Feed, Feed]]:
        length = max([len(case.target_ids) for case in self._cases], default=1)
        return [pair for case in self._cases for pair in self._steps(case, max(1, min(length, STEPS)))]

    def _steps(self, case: Case, length: int) -> list[tuple[Feed, Feed]]:
        encoded = self._encoder(_source(case))
        sizes = {"batch": 1, "target": length}
        caches: dict[str, Array] = {
            tensor.name: np.zeros([d if isinstance(d, int) else sizes[d] for d in tensor.shape], np.float32)
            for tensor in self._inputs
            if tensor.name.startswith("self_")
        }
        fixed: dict[str, Array] = {
            "finished": np.zeros(1, np.bool_),
            "target_limits": np.full(1, length + 1, np.int64),
            "cache_positions": np.arange(length, dtype=np.int64),
            **encoded,
        }
        names = {tensor.name for tensor in self._inputs}
        pairs = []
        for position, token in enumerate([self._bos, *case.target_ids][:length]):
            now = {"token_ids": np.array([token], np.int64), "positions": np.array([position], np.int64)}
            feed: Feed = {name: array for name, array in {**fixed, **caches, **now}.items() if name in names}
            made = self._step(feed)
            pairs.append((feed, made))
            caches = {name: made[f"next_{name}"] for name in caches}
        return pairs


def _source(case: Case) -> Feed:
    ids = np.array([case.source_ids], np.int64)
    return {"input_ids": ids, "source_lengths": np.array([ids.shape[1]], np.int64)}


class _Sums:
    """Of one value, over all that was compared."""

    def __init__(self) -> None:
        self.largest = self.error = self._squares = self._differences = 0.0

    def add(self, found: Array, expected: Array) -> None:
        wanted, given = expected.astype(np.float64), found.astype(np.float64)
        self.largest = max(self.largest, float(np.abs(wanted).max(initial=0.0)))
        difference = np.abs(given - wanted)
        # max() of Python would drop a NaN.
        self.error = float(np.maximum(self.error, difference.max(initial=0.0)))
        self._squares += float(np.square(wanted).sum())
        self._differences += float(np.square(difference).sum())

    @property
    def relative(self) -> float:
        if self._differences == 0:
            return 0.0
        return math.sqrt(self._differences / self._squares) if self._squares > 0 else math.inf


def _compare(graph: Graph, file: Path, infer: Runner, pairs: Sequence[tuple[Feed, Feed]]) -> list[LayerError]:
    sums: dict[str, _Sums] = {}
    for feed, expected in pairs:
        found = infer(feed)
        for name in expected.keys() & found.keys():
            sums.setdefault(name, _Sums()).add(found[name], expected[name])
    nodes = onnx.load(file, load_external_data=False).graph.node
    return [
        LayerError(graph.name, node.name, node.op_type, value, *_figures(sums[value]))
        for node in nodes
        for value in node.output
        if value in sums
    ]


def _figures(sums: _Sums) -> tuple[float, float, float]:
    return sums.largest, sums.error if math.isfinite(sums.error) else math.nan, sums.relative


def worst(errors: Sequence[LayerError], count: int) -> list[LayerError]:
    """The values with the largest relative errors, those that are not finite before all others, in their order.

    Operators that only move values repeat the error of what they move, and are left out.
    """
    computed = [each for each in errors if each.operator not in MOVES]
    ranked = sorted(computed, key=lambda each: (each.finite, -each.relative if each.finite else 0.0))
    chosen = {id(each) for each in ranked[:count]}
    return [each for each in errors if id(each) in chosen]
