"""A queue whose requests join the batch that runs: answers, order, cancellation, deadlines, bounds and faults."""

import os
import random
import signal
import sys
import time
from collections.abc import Callable
from concurrent.futures import CancelledError, ThreadPoolExecutor, wait
from dataclasses import replace

import pytest
from greedy_oracle import REQUEST, check_results, oracle, sources
from hypothesis import given, settings
from hypothesis import strategies as st
from memory_engine import TOKENS, Gate, MemoryEngine
from txport.runtime.bundle.schema import Limits
from txport.runtime.engine import Int64
from txport.runtime.errors import EngineError, InputError, ResourceError
from txport.runtime.search.decoding import decode_all
from txport.runtime.search.queue import DeadlineExceeded, Pending, Queue
from txport.runtime.search.requests import Request, Token
from txport.runtime.search.settings import Rules, Sampling, Search

SEARCHES = [
    Search(),
    Search(beam=2, n_best=2),
    Search(rules=Rules(no_repeat_ngram=2)),
    Search(sampling=Sampling(seed=4)),
]


@settings(max_examples=30, deadline=None)
@given(
    st.lists(REQUEST, max_size=12), st.sampled_from([-3.0, 0.0, 1.0]), st.sampled_from([1, 4]), st.sampled_from([1, 3])
)
def test_results_equal_greedy_search(requests: list[Request], eos_weight: float, poll: int, threads: int) -> None:
    engine = MemoryEngine(Limits(4, 12, 100), poll, eos_weight)
    queue = Queue(engine)
    with ThreadPoolExecutor(threads) as pool:
        futures = list(pool.map(queue.submit, requests))
    results = [replace(future.result(60), index=index) for index, future in enumerate(futures)]
    queue.close()
    check_results(results, requests, engine.limits, eos_weight)


def test_searches_of_several_kinds_run_side_by_side() -> None:
    requests = [replace(each, search=SEARCHES[i % 4], key=i) for i, each in enumerate(sources([12, 5, 7, 3] * 6))]
    engine = MemoryEngine(Limits(8, 12, 100))
    queue = Queue(engine)
    futures = [queue.submit(request) for request in requests]
    for future, request in zip(futures, requests, strict=True):
        (alone,) = decode_all(MemoryEngine(Limits(8, 12, 100)), [request])
        assert future.result(60).hypotheses == alone.hypotheses
    queue.close()


def test_a_request_joins_the_running_batch() -> None:
    engine = Gate()
    queue = Queue(engine)
    futures = [queue.submit(sources([12])[0])]
    assert engine.arrived.wait(60)
    futures += [queue.submit(request) for request in sources([5, 7, 3, 9, 4])]
    engine.open.set()
    wait(futures, 60)
    queue.close()
    assert [rows for rows, *_ in engine.allocated] == [1], "one batch, which took more rows"
    assert max(engine.steps) == 4


def test_long_and_short_requests_are_fair_to_each_other() -> None:
    """Requests start in the order of arrival, whatever their length; short ones do not wait until a long one ends."""

    def order(rows: int, limits: list[int]) -> list[int]:
        engine = Gate(rows)
        queue = Queue(engine)
        ended: list[int] = []
        requests = [
            replace(request, max_length=limit)
            for request, limit in zip(sources([8] * len(limits)), limits, strict=True)
        ]
        futures = [queue.submit(request) for request in requests]
        for number, future in enumerate(futures):
            future.add_done_callback(lambda _, number=number: ended.append(number))  # type: ignore[misc]
        engine.open.set()
        wait(futures, 60)
        queue.close()
        return ended

    assert order(1, [3, 90, 3, 50, 3, 90, 3]) == [0, 1, 2, 3, 4, 5, 6]
    assert order(2, [90, *[3] * 20]) == [*range(1, 21), 0]


def test_on_token_receives_every_token_in_order() -> None:
    queue = Queue(MemoryEngine())
    tokens: list[Token] = []
    request = Request([4, 9, TOKENS.eos], 30, scores=True)
    result = queue.submit(request, on_token=tokens.append).result(60)
    queue.close()
    assert [token.id for token in tokens] == result.ids == oracle(request, queue_limits(), 0.0)[0]
    assert [token.score for token in tokens] == result.scores
    assert [token.last for token in tokens] == [False] * (len(tokens) - 1) + [True]


def queue_limits() -> Limits:
    return MemoryEngine().limits


def test_a_cancelled_request_frees_its_row() -> None:
    engine = Gate(rows=1)
    queue = Queue(engine)
    long, waits, short = (queue.submit(request) for request in sources([12, 6, 3]))
    assert engine.arrived.wait(60)
    assert waits.cancel() and long.cancel()
    engine.open.set()
    assert len(short.result(60).ids) == 40
    assert queue.load.unanswered == 0
    queue.close()
    assert len(engine.steps) < 2 * 40, "the first was not decoded to its end"
    for future in (long, waits):
        with pytest.raises(CancelledError):
            future.result()


def test_a_request_fails_after_its_deadline() -> None:
    engine = Gate()
    queue = Queue(engine)
    late, other = queue.submit(sources([12])[0], seconds=0.01), queue.submit(sources([5])[0], seconds=60)
    assert engine.arrived.wait(60)
    time.sleep(0.02)
    engine.open.set()
    with pytest.raises(DeadlineExceeded, match="not finished at its deadline"):
        late.result(60)
    assert len(other.result(60).ids) == 40
    queue.close()


def test_load_counts_every_row_of_a_beam_search() -> None:
    queue = Queue(MemoryEngine(eos_weight=-99.0))
    queue.submit(replace(sources([5])[0], search=Search(beam=3))).result(60)
    queue.close()
    assert queue.load.steps > 0 and queue.load.rows == 3 * queue.load.steps


def test_a_full_queue_refuses_requests() -> None:
    engine = Gate()
    queue = Queue(engine, max_waiting=2)
    futures = [queue.submit(request) for request in sources([5, 6])]
    with pytest.raises(ResourceError, match="2 requests are unanswered"):
        queue.submit(sources([7])[0])
    engine.open.set()
    wait(futures, 60)
    assert len(queue.submit(sources([7])[0]).result(60).ids) == 40
    queue.close()


def test_a_failed_batch_does_not_affect_others() -> None:
    class Failing(MemoryEngine):
        def encode(self, input_ids: Int64, source_lengths: Int64) -> list[tuple[int, ...]]:
            if (input_ids == 4).any():
                raise EngineError("as planned")
            return super().encode(input_ids, source_lengths)

    queue = Queue(Failing(Limits(1, 12, 100)))
    asked = [[5, TOKENS.eos], [4, TOKENS.eos], [6, TOKENS.eos]]
    good, bad, last = (queue.submit(Request(source, 20)) for source in asked)
    for future, source in ((good, asked[0]), (last, asked[2])):
        assert future.result(60).ids == oracle(Request(source, 20), queue_limits(), 0.0)[0]
    with pytest.raises(EngineError, match="as planned"):
        bad.result(60)
    queue.close()


def test_close_finishes_waiting_requests_and_refuses_new_ones() -> None:
    engine = MemoryEngine(eos_weight=-99.0)
    queue = Queue(engine)
    futures = [queue.submit(request) for request in sources([5] * 9)]
    queue.close()
    assert all(len(future.result(0).ids) == 40 for future in futures)
    with pytest.raises(InputError, match="the queue was closed"):
        queue.submit(sources([5])[0])
    queue.close()


def test_close_without_draining_cancels() -> None:
    engine = Gate(rows=1)
    queue = Queue(engine)
    futures = [queue.submit(request) for request in sources([5] * 4)]
    assert engine.arrived.wait(60)
    with ThreadPoolExecutor(1) as pool:
        closing = pool.submit(queue.close, drain=False)
        while not all(future.cancelled() for future in futures):
            time.sleep(0.001)
        engine.open.set()
        closing.result(60)
    assert len(engine.steps) < 40


def test_an_exception_in_on_token_fails_only_its_request() -> None:
    queue = Queue(MemoryEngine(eos_weight=-99.0))

    def fault(token: Token) -> None:
        raise ValueError("a caller's fault")

    faulty, other = queue.submit(sources([5])[0], on_token=fault), queue.submit(sources([6])[0])
    with pytest.raises(ValueError, match="a caller's fault"):
        faulty.result(60)
    assert len(other.result(60).ids) == 40
    queue.close()


def test_a_failed_queue_answers_every_request() -> None:
    class Broken(MemoryEngine):
        def encode(self, input_ids: Int64, source_lengths: Int64) -> list[tuple[int, ...]]:
            raise ZeroDivisionError("a bug")

    queue = Queue(Broken())
    with pytest.raises(ZeroDivisionError, match="a bug"):
        queue.submit(sources([5])[0]).result(60)
    with pytest.raises(EngineError, match="the queue failed"):
        queue.submit(sources([5])[0])
    queue.close()


@pytest.mark.parametrize("rows", [1, 4])
def test_a_request_takes_a_free_row_while_steps_are_in_flight(rows: int) -> None:
    engine = MemoryEngine(Limits(8, 12, 100), poll=4, eos_weight=-99.0)
    queue = Queue(engine)
    late: list[Pending] = []
    steps: list[int] = []

    def on_first(token: Token) -> None:
        made.append(token)
        if len(made) == 40:
            steps.append(len(engine.steps))
            late.append(queue.submit(replace(sources([4])[0], max_length=8), on_token=on_last))

    def on_last(token: Token) -> None:
        if token.last:
            steps.append(len(engine.steps))

    made: list[Token] = []
    requests = [replace(request, max_length=90) for request in sources([5] * rows)]
    if rows > 1:
        requests[-1] = replace(requests[-1], max_length=12)
    futures = [queue.submit(requests[0], on_token=on_first), *map(queue.submit, requests[1:])]
    wait([*futures], 60)
    assert len(late[0].result(60).ids) == 8
    queue.close()
    submitted, answered = steps
    assert answered - submitted <= 8 + 2 * 4, "at most two groups of steps in flight"


def test_threads_submit_while_deadlines_are_checked() -> None:
    queue = Queue(MemoryEngine(eos_weight=-99.0), max_waiting=10**6)
    requests = sources([5] * 500)

    def submit_all(_: int) -> list[Pending]:
        return [queue.submit(request, seconds=600) for request in requests]

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as pool:
            futures = [future for futures in pool.map(submit_all, range(4)) for future in futures]
        assert all(len(future.result(60).ids) == 40 for future in futures)
    finally:
        sys.setswitchinterval(interval)
        queue.close(drain=False)


def test_a_finished_search_keeps_no_caches() -> None:
    queue = Queue(MemoryEngine())
    for seed in range(20):
        request = replace(sources([5])[0], search=Search(sampling=Sampling(seed=seed)))
        queue.submit(request).result(60)
    end = time.monotonic() + 60
    while queue._lanes and time.monotonic() < end:  # the last answer comes before its batch has ended
        time.sleep(0.001)
    assert not queue._lanes
    queue.close()


def test_no_state_is_left_of_many_requests() -> None:
    draw = random.Random(3)
    queue = Queue(MemoryEngine(), max_waiting=64)
    futures = []
    for request in sources([5, 3, 9] * 100):
        futures.append(queue.submit(request))
        if draw.random() < 0.2:
            futures[-1].cancel()
        if len(futures) == 60:
            wait(futures, 60)
            futures.clear()
    queue.close()
    assert not queue._lanes and queue.load.unanswered == 0


def in_child(run: Callable[[], bool]) -> bool:
    """Return whether `run` returns True in a forked process within 30 seconds."""
    child = os.fork()
    if child == 0:
        signal.alarm(30)
        try:
            os._exit(0 if run() else 1)
        finally:
            os._exit(2)
    return os.waitpid(child, 0)[1] == 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.parametrize("busy", [False, True])
def test_a_forked_process_has_a_thread_of_its_own(busy: bool) -> None:
    """With an idle and with a busy queue in the parent: its requests fail at once in the child, and deadlines work."""
    engine = Gate()
    queue, (request,) = Queue(engine), sources([7])
    expected = decode_all(MemoryEngine(engine.limits, eos_weight=-99.0), [request])[0].hypotheses
    if not busy:
        engine.open.set()
    first = queue.submit(request)
    assert engine.arrived.wait(60)
    if not busy:
        assert first.result(60).hypotheses == expected

    def child() -> bool:
        engine.open.set()
        with pytest.raises(DeadlineExceeded):
            queue.submit(request, seconds=0).result(20)
        if busy:
            with pytest.raises(EngineError, match="parent process"):
                first.result(20)
        right = queue.submit(request).result(20).hypotheses == expected and queue.load.unanswered == 0
        queue.close()
        return right

    assert in_child(child)
    engine.open.set()
    assert first.result(60).hypotheses == expected
    assert queue.submit(request).result(60).hypotheses == expected
    queue.close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_closed_queue_stays_closed_in_a_forked_process() -> None:
    queue, (request,) = Queue(MemoryEngine(Limits(4, 12, 100))), sources([7])
    queue.submit(request).result(60)
    queue.close()

    def child() -> bool:
        with pytest.raises(InputError, match="closed"):
            queue.submit(request)
        return True

    assert in_child(child)
