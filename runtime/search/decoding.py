"""Decode requests with the policy of their search."""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from txport.runtime.engine import Engine
from txport.runtime.errors import InputError
from txport.runtime.search.beam import BeamSearch
from txport.runtime.search.forks import Forks
from txport.runtime.search.greedy import Greedy
from txport.runtime.search.policy import Policy, SearchingEngine
from txport.runtime.search.requests import Request, Result, Token
from txport.runtime.search.scheduler import BATCH_TOKENS, Scheduler
from txport.runtime.search.settings import GREEDY, Search


def policy_of(engine: Engine, search: Search) -> Policy:
    """Return the policy of a search.

    Raises:
        InputError: the engine cannot restrict rows to a shortlist.
    """
    if search.shortlist and not engine.restricts:
        raise InputError(f"a shortlist needs the fused engine, and {engine.name} runs this bundle: leave it out")
    if search.beam > 1:
        if isinstance(engine, SearchingEngine):
            return engine.beam_policy(search)
        return BeamSearch(engine.tokens, search, engine.vocabulary)
    if search.sampling or search.alternatives:
        return Forks(engine.tokens, search, engine.recomputes_logits)
    return Greedy(engine.tokens, search, engine.recomputes_logits)


def decode_all(
    engine: Engine,
    requests: Sequence[Request],
    *,
    rows: int | None = None,
    batch_tokens: int = BATCH_TOKENS,
    workers: int = 1,
) -> list[Result]:
    """Answer all requests, the longest sources first.

    Args:
        engine: the engine that runs the model.
        requests: the sentences, all with the same search; pass a long text in windows of a few hundred.
        rows: maximum number of sentences of a batch; None for as many as `Limits.batch` rows hold.
        batch_tokens: maximum number of source tokens of a batch, padding included; a single sentence may have more.
        workers: number of threads that decode in parallel. Each gets an equal share of the sentences, and of the rows
            and tokens of a batch. CPU engines support more than one.

    Returns:
        one result for each request, in the order of the requests.

    Raises:
        InputError: a source is empty or too long for the engine, a length is not positive, a sentence needs more
            rows than the bundle supports, or the engine does not support shortlists.
    """
    search = requests[0].search if requests else GREEDY
    assert all(request.search is search or request.search == search for request in requests)
    workers = max(1, min(workers, len(requests)))
    rows = max(1, (rows or engine.limits.batch) // workers)
    # The composition of a batch can change the last digits of a score. With one queue for all workers, it would depend
    # on their speed, and results would vary between runs. So each worker has a separate queue.
    order = sorted(range(len(requests)), key=lambda index: -len(requests[index].source_ids))
    shares = [order[first::workers] for first in range(workers)]
    policy = policy_of(engine, search)
    schedulers = [Scheduler(engine, policy, rows=rows, batch_tokens=batch_tokens // workers) for _ in shares]
    for scheduler, share in zip(schedulers, shares, strict=True):
        scheduler.submit([requests[index] for index in share])

    def answers(scheduler: Scheduler, share: Sequence[int]) -> list[Result]:
        with _stopped_by_errors(schedulers):
            return [Result(share[result.index], result.hypotheses) for result in scheduler.drain()]

    if workers == 1:
        results = answers(schedulers[0], shares[0])
    else:
        # After an error in a thread, or Ctrl-C in this one, the results of the other threads are not needed.
        with ThreadPoolExecutor(workers) as pool, _stopped_by_errors(schedulers):
            futures = [pool.submit(answers, *each) for each in zip(schedulers, shares, strict=True)]
            results = [result for future in futures for result in future.result()]
    return sorted(results, key=lambda result: result.index)


def stream(engine: Engine, request: Request) -> Iterator[Token]:
    """Decode one request and yield each token, eos included, as soon as it is generated."""
    check_streams(request.search)
    scheduler = Scheduler(engine, policy_of(engine, request.search), rows=1, poll=1)
    scheduler.submit([request])
    count = 0
    for (slot,) in scheduler.steps():
        for position in range(count, len(slot.ids)):
            last = slot.done and position == len(slot.ids) - 1
            yield Token(slot.ids[position], slot.scores[position] if request.scores else None, last)
        count = len(slot.ids)


def check_streams(search: Search) -> None:
    """Check that each token of a search is final when it is generated, so that it can be streamed.

    Raises:
        InputError: the search is not greedy.
    """
    if search.beam > 1 or search.sampling is not None or search.alternatives > 0:
        raise InputError("a stream is greedy: beams, samples and alternatives need `translate`")


@contextmanager
def _stopped_by_errors(schedulers: Sequence[Scheduler]) -> Iterator[None]:
    try:
        yield
    except BaseException:
        for scheduler in schedulers:
            scheduler.stop()
        raise
