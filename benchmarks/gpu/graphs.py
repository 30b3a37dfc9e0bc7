"""What a captured step consists of: the operators that ONNX Runtime runs, and the nodes that the driver counts."""

import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, cast

from txport.benchmarks.gpu.schema import Cell
from txport.benchmarks.gpu.stage_context import StageContext
from txport.benchmarks.gpu.timing import BATCHES, SOURCE, TARGET
from txport.exporter.graphs.capturable import not_capturable
from txport.runtime.bundle.manifest import Manifest
from txport.runtime.bundle.schema import Lowering
from txport.runtime.device.engine import DeviceEngine

if TYPE_CHECKING:
    from txport.runtime.device.cuda import CudaDevice  # which a machine without cuda-bindings cannot import

# Every replay reads what it read in the capture: memory of the host may have another meaning by then.
FORBIDDEN = ("host", "pageable memcpy")
_COLUMNS = ("kernel", "memcpy", "memset", *FORBIDDEN)


def report_nodes(context: StageContext, title: str, engine: DeviceEngine, **names: Cell) -> None:
    """Rows of the captured steps of each batch size of an engine that has made none yet, and a check of all."""
    captured: list[Counter[str]] = []
    device = cast("CudaDevice", engine.device)
    device.graphs = captured
    for batch in (batch for batch in BATCHES if batch <= engine.limits.batch):
        before = len(captured)
        engine.allocate(batch, min(SOURCE, engine.limits.source), min(TARGET, engine.limits.target))
        for nodes in captured[before:]:
            other = nodes.total() - sum(nodes[kind] for kind in _COLUMNS)
            columns = {kind.replace(" ", "_"): nodes[kind] for kind in _COLUMNS}
            context.row("nodes of a captured step", **names, batch=batch, **columns, other=other)
    device.graphs = None
    if captured:
        check_nodes(context, title, captured)


def check_nodes(context: StageContext, title: str, captured: Sequence[Counter[str]]) -> None:
    """Check that no graph has work for the host, or copies of memory that the driver does not know."""
    found = {kind: max(nodes[kind] for nodes in captured) for kind in FORBIDDEN}
    detail = ", ".join(f"{count} {kind} nodes" for kind, count in found.items() if count)
    context.check(f"{title}: no captured node depends on the host's memory", not detail, detail)


def check_operators(context: StageContext, title: str, bundle: Path, lowering: Lowering) -> None:
    """Check the operators of a step as ONNX Runtime's own optimisations leave it on this machine's device."""
    from txport.runtime.engines.ort_session import open_session, providers_of

    with tempfile.TemporaryDirectory(prefix="txport-gpu-") as scratch:
        saved = Path(scratch, "step.onnx")
        graph = Manifest.load(bundle).step(lowering)
        open_session(bundle, graph, threads=1, providers=providers_of(context.where), saved=saved)
        found = Counter(operators(saved.read_bytes()))
    wrong = not_capturable(found, on_cpu=context.rehearsal)
    detail = f"nobody has checked {', '.join(wrong)}" if wrong else f"{found.total()} nodes of {len(found)} operators"
    context.check(f"{title}: operators that may be captured", not wrong, detail)


def operators(model: bytes) -> Iterator[str]:
    """The operator of each node of an ONNX model, without the package onnx, which a machine with a GPU may not have.

    By ONNX's onnx.proto: a ModelProto has its graph in field 7, a GraphProto its nodes in field 1, and a NodeProto its
    operator in field 4.
    """
    for graph in _fields(memoryview(model), 7):
        for node in _fields(graph, 1):
            yield from (bytes(name).decode() for name in _fields(node, 4))


def _fields(message: memoryview, wanted: int) -> Iterator[memoryview]:
    """The values of one field, of bytes, of a message in the wire format of protocol buffers."""
    at = 0
    while at < len(message):
        tag, at = _number(message, at)
        kind = tag & 7
        if kind == 2:  # bytes: their number, and then they
            size, at = _number(message, at)
            if tag >> 3 == wanted:
                yield message[at : at + size]
            at += size
        elif kind == 0:
            _, at = _number(message, at)
        else:
            at += {1: 8, 5: 4}[kind]


def _number(message: memoryview, at: int) -> tuple[int, int]:
    """(the number that is written at `at` in groups of seven bits, the lowest first; where it ends)."""
    value = shift = 0
    while True:
        value |= (message[at] & 127) << shift
        shift, at = shift + 7, at + 1
        if message[at - 1] < 128:
            return value, at
