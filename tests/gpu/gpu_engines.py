"""Engines for the tests in tests/gpu, and what must hold of each, whatever library it is over.

In a rehearsal the driver is in host memory. ONNX Runtime then computes on the CPU or, where its CUDA provider starts
over libraries that do nothing, nothing at all: ids mean something in the first case only.
"""

import os
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, cast

import numpy as np
import pytest
from txport.runtime.bundle.manifest import Manifest
from txport.runtime.bundle.schema import Lowering
from txport.runtime.device.beams import DeviceBeams
from txport.runtime.device.engine import DeviceEngine
from txport.runtime.device.state import DeviceState
from txport.runtime.engine import Int64
from txport.runtime.engines.choice import choose
from txport.runtime.errors import TxportError
from txport.runtime.golden import check, load_golden
from txport.runtime.libraries import cuda_provider
from txport.runtime.search.decoding import decode_all
from txport.runtime.search.requests import Request
from txport.runtime.search.settings import Search
from txport.runtime.text.affixes import affixes

if TYPE_CHECKING:
    from txport.runtime.device.cuda import CudaDevice  # which a machine without cuda-bindings cannot import

REHEARSAL = os.environ.get("TXPORT_GPU_REHEARSAL") == "1"
WHERE = "cpu" if REHEARSAL and cuda_provider() is None else "cuda"
COMPUTES = not (REHEARSAL and WHERE == "cuda")
BATCHES, SOURCE, TARGET = (1, 8, 32), 32, 64
# Every replay reads what it read in the capture: memory of the host may have another meaning by then.
FORBIDDEN = ("host", "pageable memcpy")

Rows = Callable[[str, dict[str, object]], None]  # pytest's fixture record_property


def on_onnxruntime(bundle: Path, lowering: Lowering | None = None, *, captured: bool = True) -> DeviceEngine:
    """The bundle on ONNX Runtime's CUDA provider, with its state on the device; the test is skipped without it."""
    pytest.importorskip("onnxruntime", reason="needs ONNX Runtime: pip install 'txport[ort-gpu]'")
    if WHERE == "cuda" and cuda_provider() is None:
        pytest.skip("needs ONNX Runtime's CUDA provider: pip install 'txport[ort-gpu]'")
    pytest.importorskip("cuda.bindings", reason="needs cuda-python: pip install 'txport[trt]'")
    from txport.runtime.device.cuda import CudaDevice
    from txport.runtime.engines.ort_cuda import OrtProgram

    manifest, device = Manifest.load(bundle), CudaDevice()
    lowerings = choose(manifest, "cuda", "ort", lowering).lowerings
    program = OrtProgram(bundle, manifest, lowerings, device, provider=WHERE)
    program.captures = program.captured = captured and program.captured
    return DeviceEngine(device, manifest, program)


def wrong_cases(engine: DeviceEngine, bundle: Path, rows: int | None = None) -> list[str]:
    """Golden cases whose answers differ, in so many rows, which are refilled; none where nothing is computed."""
    prefix = affixes(Manifest.load(bundle).tokenizer).target_prefix
    wrong = check(engine, load_golden(bundle), prefix, rows=rows and min(rows, engine.limits.batch))
    return [f"case {each.case}: {each.expected[:12]} became {each.actual[:12]}" for each in wrong if COMPUTES]


def check_golden(engine: DeviceEngine, bundle: Path) -> None:
    """The golden cases in any batch and after any refill."""
    for rows in (None, 1, 3, 8):
        assert wrong_cases(engine, bundle, rows) == [], f"in {rows or 'as many as fit'} rows"


class Gathering:
    """An engine as if it had no step of beam search: rows of a sentence are rows like others."""

    def __init__(self, engine: DeviceEngine) -> None:
        self._engine = engine

    def __getattr__(self, name: str) -> object:
        return getattr(self._engine, name)

    def allocate(self, rows: int, source: int, target: int, *, logits: bool, top: int, beams: int) -> DeviceState:
        return self._engine.allocate(rows, source, target, logits=logits, top=top)


def check_beams(engine: DeviceEngine, bundle: Path, rows: Rows) -> None:
    """The step of beam search is captured, with no work for the host, and finds answers of the scores of plain rows."""
    device, counts = cast("CudaDevice", engine.device), list[Counter[str]]()
    device.graphs = counts
    state = engine.allocate(min(8, engine.limits.batch // 4 * 4), 8, 32, top=8, beams=4)
    assert isinstance(state, DeviceBeams)
    state.step()
    state.read()
    device.graphs = None
    assert counts or not engine.captured, "nothing was captured"
    for nodes in counts:
        rows("nodes of a captured step", {"bundle": bundle.name, "beams": 4, **nodes})
        assert not any(nodes[kind] for kind in FORBIDDEN)
    search = Search(beam=4, n_best=4)
    requests = [Request(case.source_ids, search=search) for case in load_golden(bundle).cases]
    gathered = decode_all(cast("DeviceEngine", Gathering(engine)), requests)
    for found, right in zip(decode_all(engine, requests), gathered, strict=True):
        best = found.hypotheses[0].score, right.hypotheses[0].score
        assert not COMPUTES or best[0] == pytest.approx(best[1], abs=2e-2), "in float16, ties fall either way"


def check_threads(open_engine: Callable[[], DeviceEngine], bundle: Path) -> None:
    """Threads one after the other, which may get the number of one that is gone; some at once; two engines at once."""
    engine, wrong = open_engine(), list[list[str]]()

    def work(own: bool) -> None:
        mine = open_engine() if own else engine
        wrong.extend(wrong_cases(mine, bundle, rows) for rows in (1, 3, 5))

    threads = [threading.Thread(target=work, args=(own,)) for own in (False, False, False, False, False, True, True)]
    for thread in threads[:3]:
        thread.start()
        thread.join()
    for thread in threads[3:]:
        thread.start()
    for thread in threads[3:]:
        thread.join()
    assert wrong == [[]] * 3 * len(threads), "a thread that fails answers nothing"


def check_captures(engine: DeviceEngine, bundle: Path, beside: Callable[[], None]) -> list[str]:
    """Answers stay right while steps are captured again and again beside other work; returns why captures failed."""
    device, faults, done, stop = engine.device, list[str](), list[bool](), threading.Event()
    capture = device.capture

    def noting(enqueue: Callable[[], None]) -> Callable[[], None]:
        try:
            return capture(enqueue)
        except TxportError as error:
            faults.append(str(error))
            raise

    def repeat() -> None:
        while not stop.is_set():
            beside()
            done.append(True)

    device.capture = noting  # type: ignore[method-assign]
    other = threading.Thread(target=repeat)
    other.start()
    try:
        end = time.monotonic() + 20
        while (turns := len(done)) < 4 and time.monotonic() < end:
            while len(done) == turns and other.is_alive():
                engine._pool._free_idle(0)
                assert wrong_cases(engine, bundle, 1) == []
            assert other.is_alive(), "what is done beside it has failed"
    finally:
        stop.set()
        other.join()
        device.capture = capture  # type: ignore[method-assign]
    return faults


def check_encoder(engine: DeviceEngine, rows: Rows, **names: object) -> None:
    """Runs of the encoder are captured, with no work for the host, and give for other ids what they gave without."""
    device, counts = cast("CudaDevice", engine.device), list[Counter[str]]()
    device.graphs, chance = counts, np.random.default_rng(0)
    for batch in (batch for batch in BATCHES if batch <= engine.limits.batch):
        width = min(SOURCE, engine.limits.source)
        ids, lengths = chance.integers(4, 30, (2, batch, width)), chance.integers(1, width + 1, (2, batch))
        plain = [outputs(engine, *each) for each in zip(ids, lengths, strict=True)]
        before = len(counts)
        found = [outputs(engine, *each) for each in zip(ids, lengths, strict=True)]
        assert not COMPUTES or found == plain, f"in a batch of {batch}"
        for nodes in counts[before:]:
            rows("nodes of a captured run of the encoder", {**names, "batch": batch, **nodes})
    device.graphs = None
    assert len(counts) == len(BATCHES) or not engine.captured
    assert [nodes for nodes in counts if any(nodes[kind] for kind in FORBIDDEN)] == []


def outputs(engine: DeviceEngine, ids: Int64, lengths: Int64) -> list[bytes]:
    """What the encoder gives for cross-attention."""
    encoded, device = engine.encode(ids, lengths), engine.device
    found = [np.empty(whole.plane * len(whole.names), np.uint8) for whole in encoded.sources]
    with engine._pool.working():
        for array, whole in zip(found, encoded.sources, strict=True):
            device.download(array, whole.address)
        device.synchronize()
    return [array.tobytes() for array in found]


def check_nodes(engine: DeviceEngine, rows: Rows, **names: object) -> None:
    """No captured step of an engine that has made none yet has work for the host; the nodes of each batch are kept."""
    device, counts = cast("CudaDevice", engine.device), list[Counter[str]]()
    device.graphs = counts
    for batch in (batch for batch in BATCHES if batch <= engine.limits.batch):
        before = len(counts)
        state = engine.allocate(batch, min(SOURCE, engine.limits.source), min(TARGET, engine.limits.target))
        state.step()  # all rows are finished
        state.read()
        for nodes in counts[before:]:
            rows("nodes of a captured step", {**names, "batch": batch, **nodes})
    device.graphs = None
    assert counts or not engine.captured, "nothing was captured"
    assert [nodes for nodes in counts if any(nodes[kind] for kind in FORBIDDEN)] == []
