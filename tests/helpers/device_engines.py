"""Checks of devices, device engines on any device, requests for them, and their expected answers."""

import dataclasses
import gc
import threading
import weakref
from typing import TYPE_CHECKING

import numpy as np
import pytest
from memory_device import BOUND, HashProgram, MemoryDevice
from memory_engine import SIZE, TOKENS, MemoryEngine, vectors_of
from toy import BUNDLE
from txport.runtime.bundle import interface
from txport.runtime.bundle.manifest import Manifest
from txport.runtime.bundle.schema import Graph, Precision, Tensor
from txport.runtime.device.device import Buffer, Device
from txport.runtime.device.engine import DeviceEngine
from txport.runtime.errors import ResourceError
from txport.runtime.search.decoding import decode_all
from txport.runtime.search.requests import Request

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy


def any_request() -> "SearchStrategy[Request]":
    """Return a strategy for requests to these engines."""
    from hypothesis import strategies as st  # not installed on machines for GPU tests

    source = st.lists(st.integers(4, 11), max_size=39).map(lambda ids: [*ids, TOKENS.eos])
    limit, prefix = st.none() | st.integers(1, 100), st.lists(st.integers(3, 11), max_size=5)
    return st.builds(Request, source, limit, st.integers(0, 40), prefix)


def manifest_of(precision: str = "float32", features: bool = False) -> Manifest:
    """Return the manifest of the toy bundle with the step of beam search, in this precision.

    With `features`, its encoder reads vectors.
    """
    manifest = Manifest.load(BUNDLE)
    if features:
        manifest = dataclasses.replace(manifest, model=dataclasses.replace(manifest.model, feature_size=SIZE))
        encoder = dataclasses.replace(manifest.encoder, inputs=interface.encoder(manifest.model, "float32").inputs)
        graphs = (encoder, *(graph for graph in manifest.graphs if graph.role != "encoder"))
        manifest = dataclasses.replace(manifest, graphs=graphs)
    made = interface.decoder_beams(manifest.model, "float32")
    name, file = "decoder_beams", "onnx/decoder_beams.onnx"
    graph = Graph(name, name, "standard", True, file, {"": 24}, made.inputs, made.outputs, made.aliases)
    manifest = dataclasses.replace(manifest, graphs=(*manifest.graphs, graph))
    if precision == "float32":
        return manifest

    def half(tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return tuple(
            dataclasses.replace(t, dtype="float16")
            if t.dtype == "float32" and t.name not in (*interface.TOP_OUTPUTS, interface.FEATURES)
            else t
            for t in tensors
        )

    graphs = tuple(dataclasses.replace(g, inputs=half(g.inputs), outputs=half(g.outputs)) for g in manifest.graphs)
    return dataclasses.replace(manifest, graphs=graphs, precision=Precision("float16", "float16", ()))


def reading_vectors(requests: list[Request]) -> list[Request]:
    """Convert requests for a model that reads vectors."""
    return [dataclasses.replace(request, source_ids=vectors_of(request.source_ids)) for request in requests]


def step_of(manifest: Manifest) -> Graph:
    return manifest.step("scatter")


def engine_on(
    device: MemoryDevice,
    poll: int = 4,
    batches: tuple[int, ...] = (1, 4),
    targets: tuple[int, ...] = (32, 100),
    precision: str = "float32",
    features: bool = False,
) -> tuple[DeviceEngine, HashProgram]:
    manifest = manifest_of(precision, features)
    program = HashProgram(device, manifest, step_of(manifest), batches, targets)
    return DeviceEngine(device, manifest, program, poll), program


def expected(requests: list[Request], eos_weight: float = 0.0) -> list[list[int]]:
    """Return the expected ids: those of the same search with `MemoryEngine`."""
    return [result.ids for result in decode_all(MemoryEngine(BOUND, eos_weight=eos_weight), requests)]


def ids_of(engine: DeviceEngine, requests: list[Request]) -> list[list[int]]:
    return [result.ids for result in decode_all(engine, requests)]


def sources(count: int, limit: int) -> list[Request]:
    """Return distinct sources whose answers reach the maximum length."""
    return [Request([4 + i % 8, 4 + i // 8, 5, TOKENS.eos], limit) for i in range(count)]


def check_threads(engine: DeviceEngine) -> None:
    """Check that four simultaneous threads get the same answers as one thread."""
    requests = sources(6, 30)
    answers: list[list[list[int]]] = []
    threads = [threading.Thread(target=lambda: answers.append(ids_of(engine, requests))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == [expected(requests)] * 4


def check_copies(device: Device) -> None:
    """Check copies, fills, capture and the report of free memory."""
    first, second = device.allocate(1 << 16), device.allocate(1 << 16)
    assert first % 256 == second % 256 == 0
    given = np.random.default_rng(0).integers(0, 255, (4, 8, 64), np.uint8)
    device.upload(first, given)
    device.fill(Buffer(second, 1 << 12), 0, 1 << 12, 16)
    # Copy rows 1 to 3 of four planes, 48 of 64 bytes each, to planes of 16 rows of 128 bytes.
    device.copy(Buffer(second + 128, 128, 16 * 128), Buffer(first + 64, 64, 8 * 64), 48, 3, 4)
    found = device.host_buffer(1 << 16, device.create_event())
    device.download(found, second)
    device.synchronize()
    expected = np.zeros((4, 16, 128), np.uint8)
    expected[:, 1:4, :48] = given[:, 1:4, :48]
    np.testing.assert_array_equal(found[: expected.size].reshape(expected.shape), expected)

    # CUDA guarantees copies of several rows only for the pitches of its own allocations. txport's rows are shorter.
    for pitch in (16, 40, 200):
        device.fill(Buffer(second), 0, 1 << 16)
        device.copy(Buffer(second, pitch), Buffer(first, 64), 16, 8)
        device.copy(Buffer(second + (1 << 12), pitch, 16 * pitch), Buffer(first + 8, 64, 8 * 64), 12, 8, 4)
        device.download(found, second)
        device.synchronize()
        flat = np.lib.stride_tricks.as_strided(found, (8, 16), (pitch, 1))
        np.testing.assert_array_equal(flat, given[0, :, :16])
        deep = np.lib.stride_tricks.as_strided(found[1 << 12 :], (4, 8, 12), (16 * pitch, pitch, 1))
        np.testing.assert_array_equal(deep, given[:, :, 8:20])

    def copy() -> None:
        device.copy(Buffer(second, 100), Buffer(first, 64), 64, 2)

    replay, held = device.capture(copy), weakref.ref(copy)
    del copy
    gc.collect()
    assert held() is not None, "a library's temporary memory goes with what was captured"
    device.synchronize()
    for _ in range(3):
        replay()
    device.download(found[:200], second)
    device.synchronize()
    np.testing.assert_array_equal(found[:64], given[0, 0])
    np.testing.assert_array_equal(found[100:164], given[0, 1])
    with pytest.raises(ResourceError):
        device.allocate(1 << 46)
    before = device.free_memory()
    more = device.allocate(64 << 20)
    assert before - device.free_memory() >= 64 << 20
    for address in (first, second, more):
        device.free(address)


def check_any_thread(device: Device) -> None:
    """Check that a thread that did not create the device can use it."""
    address = device.allocate(256)
    found = np.zeros(256, np.uint8)
    faults: list[Exception] = []

    def work() -> None:
        try:
            device.upload(address, np.arange(256, dtype=np.uint8))
            device.download(found, address)
            device.synchronize()
        except Exception as error:
            faults.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert faults == [] and (found == np.arange(256)).all()
    device.free(address)
