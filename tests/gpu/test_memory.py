"""Memory of the GPU: what an engine takes, what is left of it, and what it says when there is none."""

import gc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gpu_engines import BATCHES, SOURCE, TARGET, Rows, on_onnxruntime, wrong_cases
from txport.runtime.bundle.manifest import Manifest
from txport.runtime.device.engine import DeviceEngine
from txport.runtime.engine import DecoderState
from txport.runtime.errors import ResourceError, TxportError

pytestmark = pytest.mark.gpu
KEPT = 64 << 20  # bytes that libraries may keep for themselves


def stepped(engine: DeviceEngine, batch: int, source: int, target: int) -> DecoderState:
    """A batch after its first step, of as many tokens as the bundle takes."""
    source, target = min(source, engine.limits.source), min(target, engine.limits.target)
    state = engine.allocate(batch, source, target)
    memory = engine.encode(np.full((batch, source), 4), np.full(batch, source))
    state.place(range(batch), memory, range(batch), [target] * batch)
    state.step()
    state.read()
    return state


def test_what_each_batch_takes(plain: Path, device: Any, record_property: Rows) -> None:
    """Each batch finds room; what the largest takes is at least its caches."""
    before = start = device.free_memory()
    engine = on_onnxruntime(plain)
    manifest = Manifest.load(plain)
    for batch in (0, *(batch for batch in BATCHES if batch <= engine.limits.batch)):
        state = stepped(engine, batch, SOURCE, TARGET) if batch else None
        now = device.free_memory()
        record_property("memory", {"bundle": plain.name, "batch": batch, "taken_bytes": before - now, "free": now})
        before = now
        if state is not None:
            values = 2 * manifest.model.decoder_layers * manifest.model.d_model * state.rows * state.target
            assert start - now >= values * (2 if manifest.precision.type == "float16" else 4)
        del state


def test_engines_that_go_leave_no_memory_behind(small: Path, device: Any) -> None:
    left = []
    for _ in range(20):
        assert wrong_cases(on_onnxruntime(small), small) == []
        gc.collect()
        left.append(device.free_memory())
    assert left[1] - left[-1] <= KEPT, "the first one loads libraries"


def test_memory_that_is_exhausted_is_said_and_the_engine_goes_on(
    small: Path, device: Any, record_property: Rows
) -> None:
    engine, taken, size = on_onnxruntime(small), [], device.free_memory()
    while size >= 1 << 20:
        try:
            taken.append(device.allocate(size))
        except ResourceError:
            size //= 2
        else:
            size = min(size, device.free_memory())
    error: TxportError | None = None
    try:
        stepped(engine, engine.limits.batch, engine.limits.source, engine.limits.target)
    except TxportError as caught:  # of any kind: cuBLAS and cuDNN have words of their own
        error = caught
        record_property("memory that is exhausted", {"kind": type(error).__name__, "said": str(error)})
    for address in taken:
        device.free(address)
    assert isinstance(error, ResourceError), f"{type(error).__name__}: {error}"
    assert wrong_cases(engine, small) == []
