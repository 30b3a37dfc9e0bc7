"""The requests that wait for a row of a batch. Threads that drain them, and threads that submit more, share them."""

from collections import deque
from collections.abc import Iterator, Sequence
from itertools import islice, takewhile
from threading import Lock
from typing import NamedTuple

from txport.runtime.engine import DecoderState, Engine
from txport.runtime.errors import InputError
from txport.runtime.search.policy import Policy
from txport.runtime.search.requests import Request


class Entry(NamedTuple):
    """A waiting request."""

    number: int
    request: Request
    width: int  # source length


class BatchSize(NamedTuple):
    """Sizes that a batch needs."""

    sentences: int
    source: int  # length of the longest source
    target: int  # first length of the caches
    logits: bool  # whether the policy needs logits


class WaitingRequests:
    """The requests without a row, in the order in which batches take them. The arguments are those of `Scheduler`."""

    def __init__(self, engine: Engine, policy: Policy, rows: int | None, batch_tokens: int, workers: int) -> None:
        self._engine = engine
        self._policy = policy
        maximum = engine.limits.batch // policy.rows
        if maximum < 1:
            limit = engine.limits.batch
            raise InputError(f"a sentence needs {policy.rows} rows, but this bundle supports at most {limit}")
        self._rows = max(1, min(rows or maximum, maximum) // workers)
        self._batch_tokens = max(1, batch_tokens // workers)
        self._workers = workers
        self._lock = Lock()  # guards all attributes below
        self._queue: deque[Entry] = deque()
        self._submissions = 0
        self._batches = 0
        self._cancelled: set[int] = set()

    def submit(self, requests: Sequence[Request]) -> range:
        """Append requests, the longest sources first, and return their numbers; see `Scheduler.submit`."""
        for request in requests:
            request.check(self._engine.limits)
        with self._lock:
            indices = range(self._submissions, self._submissions + len(requests))
            self._submissions += len(requests)
            entries = map(Entry, indices, requests, (len(request.source_ids) for request in requests))
            self._queue.extend(sorted(entries, key=lambda entry: -entry.width))
        return indices

    def cancel(self, index: int) -> bool:
        """Remove a request, or note that its row is to be freed; return whether it was still waiting."""
        with self._lock:
            waiting = next((entry for entry in self._queue if entry.number == index), None)
            if waiting is None:
                self._cancelled.add(index)
                return False
            self._queue.remove(waiting)
            return True

    def cancelled(self, index: int) -> bool:
        """Return whether a running request was cancelled, and forget it."""
        if index not in self._cancelled:
            return False
        self._cancelled.discard(index)
        return True

    @property
    def has_cancelled(self) -> bool:
        """True if a running request was cancelled."""
        return bool(self._cancelled)

    @property
    def empty(self) -> bool:
        """True if no request waits."""
        return not self._queue

    def start_batch(self) -> BatchSize | None:
        """Count one more running batch and return its size; None if no request waits."""
        with self._lock:
            if not self._queue:
                return None
            source = max(entry.width for entry in self._head())
            sentences = min(self.max_sentences(source), self._share(self._workers - self._batches))
            longest = max(entry.request.limit(self._engine.limits) for entry in self._queue)
            # Of the whole queue, since the requests behind the first batch join it as soon as rows are free.
            logits = any(self._policy.needs_logits(entry.request) for entry in self._queue)
            self._batches += 1
        return BatchSize(sentences, source, min(self._engine.first_target(source), longest), logits)

    def end_batch(self) -> None:
        """Count one running batch less."""
        with self._lock:
            self._batches -= 1

    def drop_batch(self) -> list[int]:
        """Remove and return as many requests as a batch may have, since the next batch does not fit into memory."""
        with self._lock:
            return [self._queue.popleft().number for _ in range(min(len(self._queue), self._rows))]

    def max_sentences(self, source: int) -> int:
        """Return the maximum number of sentences of a batch with sources of this length."""
        return max(1, min(self._rows, self._batch_tokens // source))

    def take(self, state: DecoderState, logits: bool) -> list[Entry]:
        """Remove and return the next requests for a running batch, at most as many as it has slots."""
        with self._lock:
            return [
                self._queue.popleft()
                for _ in range(self._count_admissible(state, logits, state.rows // self._policy.rows))
            ]

    def count(self, state: DecoderState, logits: bool, maximum: int) -> int:
        """Return the number of requests that a running batch may take now, at most `maximum`."""
        if not self._queue:
            return 0
        with self._lock:
            return self._count_admissible(state, logits, maximum)

    def _head(self) -> Iterator[Entry]:
        """Return the requests that would start the next batch; the longest determines its source length."""
        return islice(self._queue, self._rows)

    def _share(self, workers: int) -> int:
        """Return the number of requests per worker, rounded up."""
        return -(-len(self._queue) // max(1, workers))

    def _count_admissible(self, state: DecoderState, logits: bool, maximum: int) -> int:
        """Return the number of requests at the head of the queue that a running batch may admit.

        A request that does not fit (its source is too long for an engine that pads, or it needs logits) is not
        admitted: the batch then drains, and the request starts the next batch. That is rare in a long queue, since the
        longest requests come first. Sentences of at most half the batch's source length get a batch of their own if
        they can fill it, so that they do not pay for the padding.
        """
        if not self._queue:
            return 0
        ragged = self._engine.ragged
        narrow = not ragged and all(2 * entry.width <= state.source for entry in self._head())
        if narrow and len(self._queue) * self._policy.rows >= state.rows:
            return 0
        head = islice(self._queue, min(maximum, self._share(self._workers)))

        def is_admissible(entry: Entry) -> bool:
            return (ragged or entry.width <= state.source) and (logits or not self._policy.needs_logits(entry.request))

        return sum(1 for _ in takewhile(is_admissible, head))
