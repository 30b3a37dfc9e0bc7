"""Stage "memory": what an engine takes at each point, what is left of it, and what it says when there is none."""

import gc
from collections.abc import Callable
from pathlib import Path

from txport.benchmarks.gpu.engines import engines, golden_fault, largest, openers
from txport.benchmarks.gpu.stage_context import StageContext
from txport.benchmarks.gpu.timing import BATCHES, SOURCE, TARGET, placed, random_sources
from txport.runtime.device.device import Device
from txport.runtime.device.engine import DeviceEngine
from txport.runtime.engine import Engine
from txport.runtime.errors import ResourceError

MADE_AND_DROPPED = 20
_KEPT = 64 << 20  # bytes that libraries may keep for themselves


def memory(context: StageContext) -> None:
    """Free memory of the GPU at each point, as the driver says."""
    from txport.runtime.device.cuda import CudaDevice

    probe, bundle = CudaDevice(), largest(context)
    for device, engine in engines(context, bundle):
        before = probe.free_memory()
        context.row(f"memory, {bundle.name}", device=device, at="opened", free_bytes=before)
        for batch in (batch for batch in BATCHES if batch <= engine.limits.batch):
            state = placed(engine, random_sources(engine, batch, SOURCE), min(TARGET, engine.limits.target))
            state.step()
            state.read()
            now = probe.free_memory()
            title, at = f"memory, {bundle.name}", f"a batch of {batch}"
            context.row(title, device=device, at=at, free_bytes=now, taken_bytes=before - now)
            before = now
            del state
    _made_and_dropped(context, probe)
    _exhausted(context, probe)


def _smallest(context: StageContext) -> tuple[Path, Callable[[], Engine]]:
    """The smallest bundle that can be opened here, and what opens it: ONNX Runtime if it is here."""
    found = ((bundle, opener) for bundle in context.bundles.values() for opener in openers(context, bundle).values())
    return next(found)


def _made_and_dropped(context: StageContext, probe: Device) -> None:
    small, opener = _smallest(context)
    left = []
    for _ in range(MADE_AND_DROPPED):
        engine = opener()
        golden_fault(engine, small)
        del engine
        gc.collect()
        left.append(probe.free_memory())
    lost = left[1] - left[-1]  # the first one loads libraries
    context.check(f"{MADE_AND_DROPPED} engines made and dropped", lost <= _KEPT, f"{lost} bytes are gone")


def _exhausted(context: StageContext, probe: Device) -> None:
    """A batch for which there is no memory is refused with advice, and the engine goes on when there is some again."""
    small, opener = _smallest(context)
    engine = opener()
    assert isinstance(engine, DeviceEngine)
    taken = []
    size = probe.free_memory()
    while size >= 1 << 20:
        try:
            taken.append(probe.allocate(size))
        except ResourceError:
            size //= 2
        else:
            size = min(size, probe.free_memory())
    said = ""
    try:
        placed(engine, random_sources(engine, engine.limits.batch, engine.limits.source), engine.limits.target)
    except ResourceError as error:
        said = str(error)
    for address in taken:
        probe.free(address)
    context.check("memory that is exhausted is said", bool(said), said or "the batch fitted")
    fault = golden_fault(engine, small)
    context.check("the engine goes on afterwards", not fault, fault or "golden ids")
