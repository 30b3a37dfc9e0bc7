"""Work that is captured once it has come often."""

from collections.abc import Callable

import pytest
from memory_device import MemoryDevice
from txport.runtime.device.capture import CapturedRuns
from txport.runtime.errors import EngineError, ResourceError


class Work:
    """Enqueues its own number."""

    def __init__(self, device: MemoryDevice, number: int) -> None:
        self.device, self.number, self.calls = device, number, 0
        self.done: list[int] = []

    def __call__(self) -> None:
        self.calls += 1
        self.device.enqueue(lambda: self.done.append(self.number))


def test_the_third_run_is_captured_and_later_ones_are_replays() -> None:
    device = MemoryDevice()
    runs, works = CapturedRuns(device), [Work(device, number) for number in range(2)]
    for _ in range(7):
        for work in works:
            runs.launch(work.number, work)
    device.synchronize()
    assert [work.calls for work in works] == [3, 3] and device.captures == 2
    assert [work.done for work in works] == [[0] * 7, [1] * 7]


def test_the_latest_keys_are_remembered() -> None:
    device = MemoryDevice()
    runs, works = CapturedRuns(device, maximum=2), [Work(device, number) for number in range(3)]
    for number in (0, 0, 1, 2, 0, 0):  # 0 is forgotten for 2, and starts anew
        runs.launch(number, works[number])
    assert device.captures == 0
    runs.launch(0, works[0])
    assert device.captures == 1


def test_a_graph_is_forgotten_after_it_has_run() -> None:
    """CUDA destroys what is still under way."""
    device = MemoryDevice()
    runs, works = CapturedRuns(device, often=1, maximum=1), [Work(device, number) for number in range(2)]
    runs.launch(0, works[0])
    assert device.captures == 1 and works[0].done == []
    runs.launch(1, works[1])
    assert works[0].done == [0]


@pytest.mark.parametrize("error", [EngineError("spoilt"), ResourceError("no memory")])
def test_what_cannot_be_captured_runs_as_it_is(error: Exception) -> None:
    class Refusing(MemoryDevice):
        def capture(self, enqueue: Callable[[], None]) -> Callable[[], None]:
            self.captures += 1
            raise error

    device, said = Refusing(), list[str]()
    runs, work = CapturedRuns(device, attempts=2, refused=said.append), Work(device, 5)
    for _ in range(9):
        runs.launch("key", work)
    device.synchronize()
    assert work.done == [5] * 9 and device.captures == 2
    assert said == [str(error)]
