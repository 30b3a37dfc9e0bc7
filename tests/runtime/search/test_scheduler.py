"""Batches that are fed, grow, shrink and drain, over an engine that records and checks how it is used."""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from threading import Event, Thread

import pytest
from greedy_oracle import REQUEST, check_results, sources
from hypothesis import given, settings
from hypothesis import strategies as st
from memory_engine import LIMITS, TOKENS, MemoryEngine
from txport.runtime.bundle.schema import Limits
from txport.runtime.engine import Int64
from txport.runtime.search.decoding import decode_all, stream
from txport.runtime.search.greedy import Greedy
from txport.runtime.search.requests import Request, Result
from txport.runtime.search.scheduler import Scheduler


def scheduler_of(engine: MemoryEngine, workers: int = 1, batch_tokens: int = 4096) -> Scheduler:
    return Scheduler(engine, Greedy(engine.tokens), batch_tokens=batch_tokens, workers=workers)


def fed(scheduler: Scheduler, parts: Sequence[Sequence[Request]], pauses: Sequence[int]) -> Iterator[Result]:
    """Results while each part is submitted after so many more groups of steps, or when all is answered."""
    waiting = list(zip(parts, pauses, strict=True))
    while waiting:
        scheduler.submit(waiting.pop(0)[0])
        for count, slots in enumerate(scheduler.steps()):
            yield from (slot.result() for slot in slots if slot.done)
            if waiting and count >= waiting[0][1]:
                scheduler.submit(waiting.pop(0)[0])


@settings(max_examples=80, deadline=None)
@given(
    st.lists(st.tuples(st.lists(REQUEST, max_size=5), st.integers(0, 30)), max_size=4),
    st.sampled_from([-3.0, 0.0, 1.0]),
    st.sampled_from([1, 3, 8]),
    st.sampled_from([1, 2, 4, 8]),
    st.sampled_from([20, 4096]),
)
def test_a_batch_that_is_fed_gives_what_each_sentence_gives_alone(
    parts: list[tuple[list[Request], int]], eos_weight: float, poll: int, rows: int, batch_tokens: int
) -> None:
    engine = MemoryEngine(Limits(rows, 12, 100), poll, eos_weight)
    scheduler = scheduler_of(engine, batch_tokens=batch_tokens)
    requests = [request for part, _ in parts for request in part]
    results = list(fed(scheduler, [part for part, _ in parts], [pause for _, pause in parts]))
    check_results(results, requests, engine.limits, eos_weight)


def test_another_thread_feeds_a_batch_while_it_runs() -> None:
    running = Event()
    more = Event()

    class Feedable(MemoryEngine):
        def encode(self, input_ids: Int64, source_lengths: Int64) -> list[tuple[int, ...]]:
            running.set()
            assert more.wait(60)
            return super().encode(input_ids, source_lengths)

    engine = Feedable(Limits(4, 12, 100), eos_weight=-99.0)
    scheduler = scheduler_of(engine)
    requests = sources([12] * 9)
    scheduler.submit(requests[:1])

    def feed() -> None:
        assert running.wait(60)
        scheduler.submit(requests[1:])
        more.set()

    thread = Thread(target=feed)
    thread.start()
    results = list(scheduler.drain())
    thread.join()
    check_results(results, requests, engine.limits, engine.eos_weight)
    assert len(engine.allocated) == 1, "all were answered by the batch that ran"


def test_a_batch_takes_more_rows_when_more_sentences_wait() -> None:
    engine = MemoryEngine(Limits(8, 12, 100), eos_weight=-99.0)
    scheduler = scheduler_of(engine)
    requests = sources([12] * 8)
    results = list(fed(scheduler, [requests[:1], requests[1:2], requests[2:3], requests[3:]], [0, 3, 3, 3]))
    check_results(results, requests, engine.limits, engine.eos_weight)
    assert len(engine.allocated) == 1
    assert [rows for rows, _ in engine.moves[:3]] == [2, 4, 8], "at least doubled, so that few moves are made"
    assert max(engine.steps) == 8


def test_rows_grow_again_after_they_have_shrunk() -> None:
    engine = MemoryEngine(Limits(4, 12, 100), eos_weight=-99.0)
    scheduler = scheduler_of(engine)
    limits = [30, 5, 5, 5, 5, 5, 5]
    requests = [Request(request.source_ids, limit) for request, limit in zip(sources([12] * 7), limits, strict=True)]
    results = list(fed(scheduler, [requests[:4], requests[4:]], [0, 9]))
    check_results(results, requests, engine.limits, engine.eos_weight)
    assert len(engine.allocated) == 1
    assert [rows for rows, _ in engine.moves] == [1, 4, 1]


def test_a_batch_drains_for_a_sentence_that_is_too_wide_or_needs_logits() -> None:
    for late in (sources([12])[0], Request([5, TOKENS.eos], 20, min_length=3)):
        engine = MemoryEngine(Limits(4, 12, 100), eos_weight=-99.0)
        requests = [*sources([6, 6]), late]
        results = list(fed(scheduler_of(engine), [requests[:2], requests[2:]], [0, 3]))
        check_results(results, requests, engine.limits, engine.eos_weight)
        assert len(engine.allocated) == 2


def test_workers_share_one_queue() -> None:
    """A worker whose sentences are short takes more of them: no share is fixed before."""
    waiting = Event()

    class Uneven(MemoryEngine):
        def encode(self, input_ids: Int64, source_lengths: Int64) -> list[tuple[int, ...]]:
            if len(self.encoded) == 0:
                self.encoded.append(len(input_ids))
                assert waiting.wait(60), "the other worker answers all others meanwhile"
                self.encoded.pop()
            return super().encode(input_ids, source_lengths)

    engine = Uneven(Limits(2, 12, 100), eos_weight=-99.0)
    scheduler = scheduler_of(engine, workers=2)
    requests = [Request(request.source_ids, 9) for request in sources([12] * 21)]
    scheduler.submit(requests)

    def drained() -> list[Result]:
        results = []
        for result in scheduler.drain():
            results.append(result)
            if len(results) == 20:
                waiting.set()
        return results

    with ThreadPoolExecutor(2) as pool:
        shares = [future.result() for future in [pool.submit(drained) for _ in range(2)]]
    check_results([result for share in shares for result in share], requests, engine.limits, engine.eos_weight)
    assert sorted(map(len, shares)) == [1, 20]


def test_a_worker_leaves_others_their_share_of_few_sentences() -> None:
    """Although each of the two batches has room for all."""
    scheduler = scheduler_of(MemoryEngine(Limits(8, 12, 100), eos_weight=-99.0), workers=2)
    scheduler.submit([Request((5, 6, 3), 9)] * 3)
    first, second = scheduler.steps(), scheduler.steps()
    assert [len(next(first)), len(next(second))] == [2, 1]


def test_rows_that_finish_are_refilled() -> None:
    engine = MemoryEngine(Limits(4, 12, 100), eos_weight=-99.0)
    requests = [Request(request.source_ids, 10 if i % 4 else 40) for i, request in enumerate(sources([12] * 16))]
    decode_all(engine, requests)
    # 4 x 40 + 12 x 10 tokens: 70 full steps if no row ever idled, 160 if each batch waited for its longest.
    assert len(engine.steps) < 100
    assert engine.encoded == [4, 4, 4, 4]


@pytest.mark.parametrize("poll", [1, 2, 4, 8])
def test_a_device_works_on_a_group_of_steps_while_the_host_reads_another(poll: int) -> None:
    engine = MemoryEngine(LIMITS, poll, -99.0)
    decode_all(engine, [Request(request.source_ids, 32) for request in sources([3, 3])])  # as long as the first caches
    assert len(engine.steps) == 32, "the maximum length is known"
    assert engine.ahead == ([] if poll == 1 else [poll // 2] * (32 // (poll // 2) - 1))
    engine.ahead.clear()
    assert len(list(stream(engine, Request([4, TOKENS.eos], 5)))) == 5
    assert engine.ahead == ([] if poll == 1 else [1] * 4)
    # Of an end that is not known, fewer steps than poll are lost.
    for length in range(1, 13):
        ending = MemoryEngine(LIMITS, poll, 1.0)
        (result,) = decode_all(ending, [Request(sources([length])[0].source_ids)])
        assert len(ending.steps) - len(result.ids) < poll


def test_the_batch_shrinks_when_nothing_waits() -> None:
    engine = MemoryEngine(Limits(8, 12, 100), eos_weight=-99.0)
    requests = [Request(request.source_ids, 5 * (i + 1)) for i, request in enumerate(sources([12] * 8))]
    decode_all(engine, requests)
    assert engine.steps == sorted(engine.steps, reverse=True)
    assert engine.steps[-1] == 1 and engine.steps[0] == 8
    assert len(engine.steps) == 40


def test_caches_start_short_and_double() -> None:
    engine = MemoryEngine(Limits(1, 12, 100), eos_weight=-99.0)
    decode_all(engine, [Request([4, TOKENS.eos])])
    assert engine.allocated == [(1, 2, 32)]
    assert engine.moves == [(1, 64), (1, 100)]


def test_narrow_sentences_get_a_batch_of_their_own_when_they_fill_it() -> None:
    engine = MemoryEngine(Limits(4, 12, 100))
    decode_all(engine, sources([12, 12, 12, 12, 4, 4, 4, 4]))
    assert [width for _, width, _ in engine.allocated] == [12, 4]
    engine = MemoryEngine(Limits(4, 12, 100))
    decode_all(engine, sources([12, 12, 12, 12, 4, 4]))
    assert [width for _, width, _ in engine.allocated] == [12]


def test_batch_tokens_bound_the_rows() -> None:
    engine = MemoryEngine(Limits(8, 12, 100))
    decode_all(engine, sources([12] * 8), batch_tokens=36)
    assert engine.allocated[0][:2] == (3, 12)


def test_an_answer_that_fills_its_cache_may_end_before_its_neighbours() -> None:
    first = Request([*[5] * 9, TOKENS.eos], 32, prefix=[6] * 32)
    asked = [first, *(replace(request, max_length=5) for request in sources([10, 10, 10])), *sources([9, 9, 9])]
    results = decode_all(MemoryEngine(eos_weight=-99.0), asked)
    assert [len(result.ids) for result in results] == [32, 5, 5, 5, 40, 40, 40]
