"""Device engines over any device, requests for them, and what must come out."""

import dataclasses
import threading

from hypothesis import strategies as st
from memory_device import BOUND, HashProgram, MemoryDevice
from memory_engine import TOKENS, MemoryEngine
from toy import BUNDLE
from txport.runtime.bundle.manifest import Manifest
from txport.runtime.bundle.schema import Graph, Precision, Tensor
from txport.runtime.device.engine import DeviceEngine
from txport.runtime.greedy import Request, decode_all

WORD = st.integers(4, 11)
SOURCE = st.lists(WORD, max_size=39).map(lambda ids: [*ids, TOKENS.eos])
REQUEST = st.builds(
    Request, SOURCE, st.none() | st.integers(1, 100), st.integers(0, 40), st.lists(st.integers(3, 11), max_size=5)
)


def manifest_of(precision: str = "float32") -> Manifest:
    """The toy bundle's manifest, or that of the same model in another precision."""
    manifest = Manifest.load(BUNDLE)
    if precision == "float32":
        return manifest

    def half(tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return tuple(dataclasses.replace(t, dtype="float16") if t.dtype == "float32" else t for t in tensors)

    graphs = tuple(dataclasses.replace(g, inputs=half(g.inputs), outputs=half(g.outputs)) for g in manifest.graphs)
    return dataclasses.replace(manifest, graphs=graphs, precision=Precision("float16", "float16", ()))


def step_of(manifest: Manifest) -> Graph:
    return manifest.step("scatter")


def engine_on(
    device: MemoryDevice,
    poll: int = 4,
    batches: tuple[int, ...] = (1, 4),
    targets: tuple[int, ...] = (32, 100),
    precision: str = "float32",
) -> tuple[DeviceEngine, HashProgram]:
    manifest = manifest_of(precision)
    program = HashProgram(device, manifest, step_of(manifest), batches, targets)
    return DeviceEngine(device, manifest, program, poll), program


def expected(requests: list[Request], eos_weight: float = 0.0) -> list[list[int]]:
    """By the loop over the engine that it is proven on."""
    return [result.ids for result in decode_all(MemoryEngine(BOUND, eos_weight=eos_weight), requests)]


def ids_of(engine: DeviceEngine, requests: list[Request]) -> list[list[int]]:
    return [result.ids for result in decode_all(engine, requests)]


def sources(count: int, limit: int) -> list[Request]:
    """Distinct sources that nothing ends before their limit."""
    return [Request([4 + i % 8, 4 + i // 8, 5, TOKENS.eos], limit) for i in range(count)]


def check_threads(engine: DeviceEngine) -> None:
    """Four threads at once get what one alone gets."""
    requests = sources(6, 30)
    answers: list[list[list[int]]] = []
    threads = [threading.Thread(target=lambda: answers.append(ids_of(engine, requests))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == [expected(requests)] * 4
