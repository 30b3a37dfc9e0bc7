"""Stage "memory": what an engine takes at each point, what is left of it, and what it says when there is none."""

import gc
from collections.abc import Callable
from pathlib import Path

from txport.benchmarks.gpu.engines import engines, golden_fault, largest, openers
from txport.benchmarks.gpu.notebook import Notebook
from txport.benchmarks.gpu.timing import BATCHES, SOURCE, TARGET, placed, random_sources
from txport.runtime.device.device import Device
from txport.runtime.device.engine import DeviceEngine
from txport.runtime.engine import Engine
from txport.runtime.errors import ResourceError

MADE_AND_DROPPED = 20
_KEPT = 64 << 20  # bytes that libraries may keep for themselves


def memory(notebook: Notebook) -> None:
    """Free memory of the GPU at each point, as the driver says."""
    from txport.runtime.device.cuda import CudaDevice

    probe, bundle = CudaDevice(), largest(notebook)
    for device, engine in engines(notebook, bundle):
        before = probe.free_memory()
        notebook.row(f"memory, {bundle.name}", device=device, at="opened", free_bytes=before)
        for batch in (batch for batch in BATCHES if batch <= engine.limits.batch):
            state = placed(engine, random_sources(engine, batch, SOURCE), min(TARGET, engine.limits.target))
            state.step()
            state.read()
            now = probe.free_memory()
            title, at = f"memory, {bundle.name}", f"a batch of {batch}"
            notebook.row(title, device=device, at=at, free_bytes=now, taken_bytes=before - now)
            before = now
            del state
    _made_and_dropped(notebook, probe)
    _exhausted(notebook, probe)


def _smallest(notebook: Notebook) -> tuple[Path, Callable[[], Engine]]:
    """The smallest bundle that can be opened here, and what opens it: ONNX Runtime if it is here."""
    found = ((bundle, opener) for bundle in notebook.bundles.values() for opener in openers(notebook, bundle).values())
    return next(found)


def _made_and_dropped(notebook: Notebook, probe: Device) -> None:
    small, opener = _smallest(notebook)
    left = []
    for _ in range(MADE_AND_DROPPED):
        engine = opener()
        golden_fault(engine, small)
        del engine
        gc.collect()
        left.append(probe.free_memory())
    lost = left[1] - left[-1]  # the first one loads libraries
    notebook.check(f"{MADE_AND_DROPPED} engines made and dropped", lost <= _KEPT, f"{lost} bytes are gone")


def _exhausted(notebook: Notebook, probe: Device) -> None:
    """A batch for which there is no memory is refused with advice, and the engine goes on when there is some again."""
    small, opener = _smallest(notebook)
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
    notebook.check("memory that is exhausted is said", bool(said), said or "the batch fitted")
    fault = golden_fault(engine, small)
    notebook.check("the engine goes on afterwards", not fault, fault or "golden ids")
