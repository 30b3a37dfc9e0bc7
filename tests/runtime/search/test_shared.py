"""Calls of many threads that share a batch: answers, who decodes, faults, forks and interrupts."""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace

import pytest
from greedy_oracle import REQUEST, check_results, oracle, sources
from hypothesis import given, settings
from hypothesis import strategies as st
from memory_engine import Gate, MemoryEngine
from txport.runtime.bundle.schema import Limits
from txport.runtime.engine import Int64
from txport.runtime.errors import EngineError, InputError
from txport.runtime.search.decoding import decode_all
from txport.runtime.search.requests import Request, Result
from txport.runtime.search.settings import Rules, Search
from txport.runtime.search.shared import SharedBatches

LIMITS = Limits(8, 12, 100)


class Ragged(Gate):
    """An engine over which calls share batches; `fault` sees what is encoded."""

    ragged = True

    def __init__(self, eos_weight: float = -99.0, closed: bool = False) -> None:
        super().__init__(LIMITS.batch, eos_weight)
        self.fault: Callable[[Int64], None] = lambda _ids: None
        if not closed:
            self.open.set()

    def encode(self, input_ids: Int64, source_lengths: Int64) -> list[tuple[int, ...]]:
        memory = super().encode(input_ids, source_lengths)
        self.fault(input_ids)
        return memory


def waiting(shared: SharedBatches, count: int) -> None:
    """Wait until so many requests are in a batch that calls share."""
    end = time.monotonic() + 60
    while sum(len(group.owners) for group in shared._groups.running) < count:
        assert time.monotonic() < end
        time.sleep(0.001)


def begun(
    pool: ThreadPoolExecutor, shared: SharedBatches, engine: Ragged, calls: list[list[Request]]
) -> list[Future[list[Result]]]:
    """Calls of which the first leads, and waits in the encoder, and the others have joined it."""
    futures = [pool.submit(shared.decode, engine, calls[0])]
    assert engine.arrived.wait(60)
    futures += [pool.submit(shared.decode, engine, call) for call in calls[1:]]
    waiting(shared, sum(map(len, calls)))
    return futures


def right(results: list[Result], requests: list[Request], eos_weight: float = -99.0) -> bool:
    check_results(results, requests, LIMITS, eos_weight)
    return [result.index for result in results] == list(range(len(requests)))


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.lists(REQUEST, max_size=9), max_size=8),
    st.sampled_from([-3.0, 0.0]),
    st.integers(1, 4),
    st.integers(1, 2),
)
def test_answers_are_those_of_a_call_alone(
    calls: list[list[Request]], eos_weight: float, threads: int, most: int
) -> None:
    engine = Ragged(eos_weight)
    shared = SharedBatches(parallel_batches=most)
    searches = [Search(), Search(rules=Rules(suppress=(11,)))]
    other = [[replace(each, search=searches[i % 2]) for each in call] for i, call in enumerate(calls)]
    with ThreadPoolExecutor(threads) as pool:
        found = list(pool.map(lambda call: shared.decode(engine, call), other))
    for results, call in zip(found, other, strict=True):
        assert results == decode_all(MemoryEngine(LIMITS, 1, eos_weight), call)
    assert not shared._groups.running


def test_calls_join_the_batch_that_runs_and_one_goes_on_when_the_leader_has_its_answers() -> None:
    engine, shared = Ragged(closed=True), SharedBatches()
    calls = [sources([5]), sources([7, 3]), sources([9])]
    calls[0] = [replace(calls[0][0], max_length=2)]
    with ThreadPoolExecutor(3) as pool:
        futures = begun(pool, shared, engine, calls)
        engine.open.set()
        assert all(right(future.result(60), call) for future, call in zip(futures, calls, strict=True))
    assert [rows for rows, *_ in engine.allocated] == [1], "one batch, which took more rows"
    assert max(engine.steps) == 4
    assert not shared._groups.running


@pytest.mark.parametrize("case", ["large", "other search", "workers", "padding"])
def test_calls_that_decode_alone(case: str) -> None:
    engine = Ragged(closed=True)
    engine.ragged = case != "padding"
    shared = SharedBatches(workers=2 if case == "workers" else 1)
    second = sources([7] * (8 if case == "large" else 1))
    if case == "other search":
        second = [replace(each, search=Search(rules=Rules(suppress=(11,)))) for each in second]
    with ThreadPoolExecutor(2) as pool:
        futures = [pool.submit(shared.decode, engine, call) for call in (sources([5]), second)]
        assert engine.arrived.wait(60)
        engine.open.set()
        results = [future.result(60) for future in futures]
    assert len(engine.allocated) == 2
    assert right(results[0], sources([5]))
    assert results[1] == decode_all(MemoryEngine(LIMITS, 1, -99.0), second)


def test_side_by_side_before_they_share() -> None:
    engine, shared = Ragged(closed=True), SharedBatches(parallel_batches=2)
    calls = [sources([length]) for length in (5, 7, 9)]
    with ThreadPoolExecutor(3) as pool:
        futures = begun(pool, shared, engine, calls)
        assert len(shared._groups.running) == 2
        engine.open.set()
        assert all(right(future.result(60), call) for future, call in zip(futures, calls, strict=True))


def test_a_failure_is_that_of_its_own_call() -> None:
    engine, shared = Ragged(closed=True), SharedBatches()
    bad = sources([12])[0]

    def fault(ids: Int64) -> None:
        if ids.shape[1] == 12:
            raise EngineError("the library failed")

    engine.fault = fault
    calls = [sources([5]), sources([7]), [bad], sources([9, 3])]
    with ThreadPoolExecutor(4) as pool:
        futures = begun(pool, shared, engine, calls)
        engine.open.set()
        for future, call in zip(futures, calls, strict=True):
            if call == [bad]:
                with pytest.raises(EngineError, match="the library failed"):
                    future.result(60)
            else:
                assert right(future.result(60), call)
    assert not shared._groups.running


@pytest.mark.parametrize("error", [KeyboardInterrupt, ZeroDivisionError])
def test_what_ends_the_leader_ends_no_other_call(error: type[BaseException]) -> None:
    engine, shared = Ragged(closed=True), SharedBatches()
    faults = [error()]

    def fault(_ids: Int64) -> None:
        if faults:
            raise faults.pop()

    engine.fault = fault
    calls = [sources([5]), sources([7]), sources([9, 3])]
    with ThreadPoolExecutor(3) as pool:
        futures = begun(pool, shared, engine, calls)
        engine.open.set()
        with pytest.raises(error):
            futures[0].result(60)
        assert all(right(future.result(60), call) for future, call in zip(futures[1:], calls[1:], strict=True))
    assert not shared._groups.running


def test_a_call_in_the_midst_of_a_call_decodes_alone() -> None:
    """As of a signal's handler, in the thread that leads."""
    engine, shared = Ragged(), SharedBatches()
    within = list[list[Result]]()

    def fault(_ids: Int64) -> None:
        if not within:
            within.append([])
            within[0] = shared.decode(engine, sources([7]))

    engine.fault = fault
    assert right(shared.decode(engine, sources([5])), sources([5]))
    assert right(within[0], sources([7]))


@pytest.fixture
def interruptible() -> Iterator[None]:
    """What a shell runs in the background ignores SIGINT, and so does all that it starts."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_ctrl_c_in_a_call_that_waits_frees_its_row(interruptible: None) -> None:
    engine, shared = Ragged(closed=True), SharedBatches()
    main = threading.main_thread().ident
    assert main is not None

    def interrupt() -> None:
        waiting(shared, 2)
        time.sleep(0.05)
        signal.pthread_kill(main, signal.SIGINT)

    with ThreadPoolExecutor(2) as pool:
        (first,) = begun(pool, shared, engine, [sources([5])])
        pool.submit(interrupt)
        with pytest.raises(KeyboardInterrupt):
            shared.decode(engine, sources([7]))
        engine.open.set()
        assert right(first.result(60), sources([5]))
    assert engine.encoded == [1], "nothing was encoded for who left"
    assert not shared._groups.running


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_process_waits_for_no_thread_of_its_parent() -> None:
    engine, shared = Ragged(closed=True), SharedBatches()
    with ThreadPoolExecutor(1) as pool:
        (first,) = begun(pool, shared, engine, [sources([5])])
        child = os.fork()
        if child == 0:
            signal.alarm(30)
            os._exit(0 if right(shared.decode(Ragged(), sources([7])), sources([7])) else 1)
        engine.open.set()
        assert right(first.result(60), sources([5]))
    assert os.waitpid(child, 0)[1] == 0


def test_bad_requests_are_refused_and_leave_nothing() -> None:
    engine, shared = Ragged(closed=True), SharedBatches()
    with pytest.raises(InputError, match="13"):
        shared.decode(engine, [*sources([5]), Request([4] * 13)])
    with ThreadPoolExecutor(1) as pool:
        (first,) = begun(pool, shared, engine, [sources([5])])
        with pytest.raises(InputError, match="13"):
            shared.decode(engine, [Request([4] * 13)])
        engine.open.set()
        assert right(first.result(60), sources([5]))
    assert oracle(sources([5])[0], LIMITS, -99.0)[0] == first.result()[0].ids
    assert not shared._groups.running
