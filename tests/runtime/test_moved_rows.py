"""Rows of every engine move, repeat and go on by themselves; PyTorch's are in tests/training/test_torch_engine.py."""

from collections.abc import Sequence

import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from memory_device import HashProgram, MemoryDevice
from memory_engine import MemoryEngine
from moved_rows import LIMITS, SOURCES, WALK, Turn, after, check_moves
from patches import manifests
from toy import BUNDLE, answer
from txport.runtime.bundle.manifest import Manifest
from txport.runtime.bundle.schema import Lowering
from txport.runtime.device.engine import DeviceEngine
from txport.runtime.engines.ort import OrtEngine
from txport.runtime.engines.ort_cuda import OrtProgram

MANIFEST = Manifest.load(BUNDLE)
# The same with the source's ids in the state.
COPIES = Manifest.parse(manifests().data("copies"))


def toy_after(source: Sequence[int], made: Sequence[int]) -> int:
    """The next token of the toy bundle."""
    return answer(source, len(made) + 1, prefix=made)[0][-1]


@settings(max_examples=150, deadline=None)
@given(SOURCES, LIMITS, WALK)
def test_in_memory(sources: list[list[int]], limits: list[int], walk: list[Turn]) -> None:
    check_moves(MemoryEngine(), sources, limits[: len(sources)], walk, after)


@settings(max_examples=150, deadline=None)
@given(
    SOURCES,
    LIMITS,
    WALK,
    st.booleans(),
    st.sampled_from([(4,), (1, 2, 4), (1, 4)]),
    st.sampled_from([(100,), (16, 32, 100)]),
    st.sampled_from([MANIFEST, COPIES]),
)
def test_on_a_device(
    sources: list[list[int]],
    limits: list[int],
    walk: list[Turn],
    lazy: bool,
    batches: tuple[int, ...],
    targets: tuple[int, ...],
    manifest: Manifest,
) -> None:
    device = MemoryDevice(lazy)
    program = HashProgram(device, manifest, manifest.step("scatter"), batches, targets)
    engine = DeviceEngine(device, manifest, program)
    for _ in range(2):  # buffers that are used again hold nothing of before
        check_moves(engine, sources, limits[: len(sources)], walk, after)


OLD = tuple(map(int, onnxruntime.__version__.split(".")[:2])) < (1, 25)
OPSET_24 = pytest.mark.skipif(OLD, reason="needs ONNX Runtime 1.25 for opset 24")


@pytest.mark.parametrize("lowering", ["ort", "scatter", pytest.param("tensorscatter", marks=OPSET_24)])
@settings(max_examples=50, deadline=None)
@given(sources=SOURCES, limits=LIMITS, walk=WALK)
def test_on_onnx_runtime(lowering: Lowering, sources: list[list[int]], limits: list[int], walk: list[Turn]) -> None:
    check_moves(toy_engine(lowering), sources, limits[: len(sources)], walk, toy_after)


@settings(max_examples=30, deadline=None)
@given(SOURCES, LIMITS, WALK)
def test_on_onnx_runtime_over_a_device(sources: list[list[int]], limits: list[int], walk: list[Turn]) -> None:
    check_moves(toy_engine(None), sources, limits[: len(sources)], walk, toy_after)


_ENGINES: dict[Lowering | None, OrtEngine | DeviceEngine] = {}


def toy_engine(lowering: Lowering | None) -> OrtEngine | DeviceEngine:
    """The toy bundle on ONNX Runtime, opened once: on the host, or (None) over a device in host memory."""
    if lowering not in _ENGINES:
        if lowering is None:
            device = MemoryDevice(lazy=False)
            program = OrtProgram(BUNDLE, MANIFEST, MANIFEST.lowerings, device, provider="cpu")
            _ENGINES[lowering] = DeviceEngine(device, MANIFEST, program)
        else:
            _ENGINES[lowering] = OrtEngine(BUNDLE, MANIFEST, [lowering], threads=1)
    return _ENGINES[lowering]


@pytest.mark.parametrize("rows", [[0, 0, 2], [2, 2, 2, 0], [1], [2, 1, 0]])
def test_copies_within_the_same_buffers_move_only_the_repeated_rows(rows: list[int]) -> None:
    device = MemoryDevice()
    engine = DeviceEngine(device, MANIFEST, HashProgram(device, MANIFEST, MANIFEST.step("scatter"), (4,), (100,)))
    sources = [[4, 5, 3], [6, 7, 3], [8, 9, 3]]
    walk = [Turn(2, [], [], 0, False), Turn(1, [], rows, 0, False), Turn(3, [7, 8, 9], [], 0, False)] * 2
    check_moves(engine, sources, [60] * 3, walk, after)
    copies = device.copies
    state = engine.allocate(3, 3, 60)
    state.resized(rows, 60)
    assert (device.copies > copies) == (len(set(rows)) < len(rows))
