"""What a captured step consists of, as the driver counts it."""

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

from txport.benchmarks.gpu.schema import Cell
from txport.benchmarks.gpu.stage_context import StageContext
from txport.benchmarks.gpu.timing import BATCHES, SOURCE, TARGET
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
