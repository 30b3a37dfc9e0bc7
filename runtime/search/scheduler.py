"""Continuous batching over any engine. A policy chooses the tokens.

Rows are independent: a finished row gets the next waiting sentence while the others continue, so a batch never waits
for its longest sentence. Sentences may be submitted while batches run. A batch grows when more sentences wait than it
has free rows. When no sentence waits and half of the rows are free, the other rows move together into a smaller batch.
Caches start short and double, so that short answers do not pay for the longest cache.

Threads that drain one scheduler share its queue. Each runs a separate batch.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import islice, takewhile
from threading import Lock
from typing import NamedTuple, Protocol, runtime_checkable

from txport.runtime.engine import DecoderState, Engine, Int64, Memory, RestrictingState, padded
from txport.runtime.errors import InputError, TxportError
from txport.runtime.search.allocation import allocate
from txport.runtime.search.requests import Request, Result, Slot
from txport.runtime.search.settings import Search

# Default of the maximum number of source tokens of a batch, padding included.
BATCH_TOKENS = 4096


class Policy(Protocol):
    """Choice of tokens.

    Attributes:
        rows: number of rows of a request. Its sentence is placed in the first of them; the others are marked as
            finished until the policy reorders the rows.
        top: maximum number of tokens that the policy requests from `DecoderState.top`.
    """

    rows: int
    top: int

    def slot(self, index: int, request: Request, limit: int) -> Slot:
        """Return the slot of a request whose answer may have at most `limit` tokens."""

    def needs_logits(self, request: Request) -> bool:
        """Return whether the state of this request must be allocated with logits."""

    def steps_one_by_one(self, slots: Sequence[Slot]) -> bool:
        """Return whether `choose` must see the next step of these slots before the step after it starts."""

    def choose(self, state: DecoderState, slots: Sequence[Slot | None], token_ids: Int64, one_by_one: bool) -> None:
        """Append the tokens of a group of steps to the answers.

        Args:
            state: the state that generated them.
            slots: the slot of each row, or of each `rows` rows; None for free rows.
            token_ids: int64 `[steps, rows]` that the device chose.
            one_by_one: the result of `steps_one_by_one`. If True, `token_ids` has one step, and no step is in flight.
        """


@runtime_checkable
class SearchingEngine(Protocol):
    """An engine whose library has a beam search with the same results as `txport.runtime.search.beam`."""

    def beam_policy(self, search: Search) -> Policy:
        """Return the policy of a search with beams."""


class _Entry(NamedTuple):
    """A waiting request."""

    number: int
    request: Request
    width: int  # source length


class Scheduler:
    """A queue of requests, and batches that answer them.

    Args:
        engine: the engine that runs the model.
        policy: the policy that chooses the tokens.
        rows: maximum number of sentences of a batch; None for as many as `Limits.batch` rows hold.
        batch_tokens: maximum number of source tokens of a batch, padding included; a single sentence may have more.
        workers: number of threads that drain the queue at the same time. The batch of each thread gets its share of
            `rows` and `batch_tokens`.
        poll: maximum number of steps that the device may be ahead of the host; None for the default of the engine.
        on_failure: called with the requests of a failed batch and the error; then the next batch starts. None: raise.
    """

    def __init__(
        self,
        engine: Engine,
        policy: Policy,
        *,
        rows: int | None = None,
        batch_tokens: int = BATCH_TOKENS,
        workers: int = 1,
        poll: int | None = None,
        on_failure: Callable[[list[int], TxportError], object] | None = None,
    ) -> None:
        self.engine = engine
        self._on_failure = on_failure
        self.policy = policy
        self.poll = poll or engine.poll
        maximum = engine.limits.batch // policy.rows
        if maximum < 1:
            limit = engine.limits.batch
            raise InputError(f"a sentence needs {policy.rows} rows, but this bundle supports at most {limit}")
        self._rows = max(1, min(rows or maximum, maximum) // workers)
        self._batch_tokens = max(1, batch_tokens // workers)
        self._workers = workers
        self._lock = Lock()  # guards all attributes below
        self._queue: deque[_Entry] = deque()
        self._submissions = 0
        self._batches = 0
        self._cancelled: set[int] = set()
        self._stopped = False

    def submit(self, requests: Sequence[Request]) -> range:
        """Append requests to the queue, the longest sources first. Any thread may call this at any time.

        Returns:
            the `Result.index` of each request.

        Raises:
            InputError: a source is empty or too long for the engine, or a length is not positive.
        """
        for request in requests:
            request.check(self.engine.limits)
        with self._lock:
            indices = range(self._submissions, self._submissions + len(requests))
            self._submissions += len(requests)
            entries = map(_Entry, indices, requests, (len(request.source_ids) for request in requests))
            self._queue.extend(sorted(entries, key=lambda entry: -entry.width))
        return indices

    def drain(self) -> Iterator[Result]:
        """Run batches until no request waits, and yield each result when it is finished."""
        for slots in self.steps():
            for slot in slots:
                if slot.done:
                    yield slot.result()

    def steps(self) -> Iterator[list[Slot]]:
        """Run batches until no request waits, and yield the active slots after each group of steps."""
        while (sizes := self._next_batch_sizes()) is not None:
            batch: _Batch | None = None
            try:
                batch = _Batch(self, *sizes)
                yield from batch.steps()
            except TxportError as error:
                if self._on_failure is None:
                    raise
                self._on_failure(batch.unanswered() if batch is not None else self._drop_batch(), error)
            finally:
                with self._lock:
                    self._batches -= 1

    def stop(self) -> None:
        """Let all draining threads end after their current step; unfinished requests get no result."""
        self._stopped = True

    def cancel(self, index: int) -> bool:
        """Cancel a request without a result: remove it from the queue, or free its row after the current step.

        Args:
            index: index of an unfinished request.

        Returns:
            whether it was still waiting.
        """
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
    def idle(self) -> bool:
        """True if no request waits."""
        return not self._queue

    def _drop_batch(self) -> list[int]:
        """Remove and return the requests of a batch that does not fit into memory."""
        with self._lock:
            return [self._queue.popleft().number for _ in range(min(len(self._queue), self._rows))]

    @property
    def stopped(self) -> bool:
        return self._stopped

    def _next_batch_sizes(self) -> tuple[int, int, int, bool] | None:
        """Return sentences, source length, target length and logits of the next batch; None if no request waits."""
        with self._lock:
            if not self._queue or self._stopped:
                return None
            source = max(entry.width for entry in self._head())
            rows = min(self.max_sentences(source), self._share(self._workers - self._batches))
            longest = max(entry.request.limit(self.engine.limits) for entry in self._queue)
            # Of the whole queue, since the requests behind the first batch join it as soon as rows are free.
            logits = any(self.policy.needs_logits(entry.request) for entry in self._queue)
            self._batches += 1
        return rows, source, min(self.engine.first_target(source), longest), logits

    def max_sentences(self, source: int) -> int:
        """Return the maximum number of sentences of a batch with sources of this length."""
        return max(1, min(self._rows, self._batch_tokens // source))

    def _head(self) -> Iterator[_Entry]:
        """Return the waiting requests that would start the next batch; the longest determines its source length."""
        return islice(self._queue, self._rows)

    def _share(self, workers: int) -> int:
        """Return the number of waiting requests per worker, rounded up."""
        return -(-len(self._queue) // max(1, workers))

    def take(self, state: DecoderState, logits: bool) -> list[_Entry]:
        """Remove and return the next requests for a running batch, at most as many as it has slots."""
        with self._lock:
            return [
                self._queue.popleft()
                for _ in range(self._count_admissible(state, logits, state.rows // self.policy.rows))
            ]

    def waiting(self, state: DecoderState, logits: bool, maximum: int) -> int:
        """Return the number of waiting requests that a running batch may take now, at most `maximum`."""
        if not self._queue:
            return 0
        with self._lock:
            return self._count_admissible(state, logits, maximum)

    def _count_admissible(self, state: DecoderState, logits: bool, maximum: int) -> int:
        """Return the number of requests at the head of the queue that a running batch may admit.

        A request that does not fit (its source is too long for an engine that pads, or it needs logits) is not
        admitted: the batch then drains, and the request starts the next batch. That is rare in a long queue, since the
        longest requests come first. Sentences of at most half the batch's source length get a batch of their own if
        they can fill it, so that they do not pay for the padding.
        """
        if not self._queue:
            return 0
        ragged = self.engine.ragged
        narrow = not ragged and all(2 * entry.width <= state.source for entry in self._head())
        if narrow and len(self._queue) * self.policy.rows >= state.rows:
            return 0
        head = islice(self._queue, min(maximum, self._share(self._workers)))

        def is_admissible(entry: _Entry) -> bool:
            return (ragged or entry.width <= state.source) and (logits or not self.policy.needs_logits(entry.request))

        return sum(1 for _ in takewhile(is_admissible, head))


class _Batch:
    """One decoder state, with a slot for each `Policy.rows` rows; a free slot is `None`."""

    def __init__(self, scheduler: Scheduler, rows: int, source: int, target: int, logits: bool) -> None:
        self._scheduler = scheduler
        self._engine = scheduler.engine
        self._policy = scheduler.policy
        self._rows_per_slot = self._policy.rows
        self._source = source
        self._logits = logits
        if self._engine.ragged:
            widest = self._engine.limits.source
        else:
            widest = source
        self._state = allocate(self._engine, (rows, self._rows_per_slot, widest, target), logits, self._policy.top)
        self._slots: list[Slot | None] = [None] * rows
        self._encoded: deque[tuple[_Entry, Memory, int]] = deque()  # the int is the row of the memory
        self._encoding: list[_Entry] = []
        self._in_flight = 0  # number of steps that were started on the device and not read yet

    def steps(self) -> Iterator[list[Slot]]:
        """Run groups of steps, and yield the slots of each, including slots that have just finished."""
        while not self._scheduler.stopped:
            if not self._in_flight:
                self._free_cancelled()
                self._add_rows()
                self._refill()
            active = self._active()
            if not active:
                return
            self._grow_or_shrink(active)
            self._step(active)
            self._slots = [None if slot is None or slot.done else slot for slot in self._slots]
            yield active

    def _free_cancelled(self) -> None:
        """Free the rows of requests that were cancelled."""
        if not self._scheduler.has_cancelled:
            return
        for index, slot in enumerate(self._slots):
            if slot is not None and self._scheduler.cancelled(slot.index):
                rows = range(index * self._rows_per_slot, (index + 1) * self._rows_per_slot)
                self._finish(rows)
                self._slots[index] = None
        self._encoded = deque(each for each in self._encoded if not self._scheduler.cancelled(each[0].number))

    def _finish(self, rows: range) -> None:
        """Mark rows as finished."""
        self._state.override(rows, [self._engine.tokens.pad] * len(rows), [True] * len(rows))

    def unanswered(self) -> list[int]:
        """Return the requests that this batch has taken and not answered."""
        waiting = [*(entry for entry, _, _ in self._encoded), *self._encoding]
        return [slot.index for slot in self._active()] + [entry.number for entry in waiting]

    def _active(self) -> list[Slot]:
        return [slot for slot in self._slots if slot is not None]

    def _waiting(self, maximum: int = 1) -> int:
        """Return the number of sentences that could be placed now, encoded ones included."""
        return len(self._encoded) + self._scheduler.waiting(self._state, self._logits, maximum)

    def _add_rows(self) -> None:
        """Take at least twice as many rows if more sentences wait than slots are free."""
        count = len(self._slots)
        maximum = self._scheduler.max_sentences(self._source)
        if count < maximum:
            waiting = self._waiting(maximum)
        else:
            waiting = 0
        if not waiting or (slot_count := len(self._active()) + waiting) <= count:
            return
        # `DecoderState.resized` cannot create free rows: copy those of the first slot and mark the copies as finished.
        count = min(maximum, max(2 * count, slot_count))
        rows = range(self._state.rows, count * self._rows_per_slot)
        source_rows = [*range(self._state.rows), *(row % self._rows_per_slot for row in rows)]
        self._state = self._state.resized(source_rows, self._target(self._active()))
        self._finish(rows)
        self._slots += [None] * (count - len(self._slots))

    def _refill(self) -> None:
        """Place waiting sentences in the free slots, one encoded group at a time."""
        free = [index for index, slot in enumerate(self._slots) if slot is None]
        while free and (self._encoded or self._encode_group()):
            memory = self._encoded[0][1]
            rows = []
            memory_rows = []
            limits = []
            while free and self._encoded and self._encoded[0][1] is memory:
                entry, _, memory_row = self._encoded.popleft()
                slot = self._policy.slot(entry.number, entry.request, entry.request.limit(self._engine.limits))
                rows.append(free[0] * self._rows_per_slot)
                memory_rows.append(memory_row)
                limits.append(slot.limit)
                self._slots[free.pop(0)] = slot
            self._state.place(rows, memory, memory_rows, limits)
            self._restrict(rows)

    def _restrict(self, rows: Sequence[int]) -> None:
        """Restrict newly placed rows to the shortlists of their requests."""
        requests = [
            (row, slot.request) for row in rows if (slot := self._slots[row // self._rows_per_slot]) is not None
        ]
        words = {row: request.words for row, request in requests if request.words is not None}
        if words:
            assert isinstance(self._state, RestrictingState)
            self._state.restrict(list(words), list(words.values()))

    def _encode_group(self) -> bool:
        """Encode as many waiting sentences as there are slots; return False if none can join this batch."""
        group = self._scheduler.take(self._state, self._logits)
        if not group:
            return False
        sources, lengths = padded([entry.request.source_ids for entry in group], self._engine.tokens.pad)
        self._encoding = group  # unanswered if `encode` fails
        memory = self._engine.encode(sources, lengths)
        self._encoding = []
        self._encoded.extend((entry, memory, row) for row, entry in enumerate(group))
        return True

    def _drained(self) -> bool:
        """Return whether no sentence is waiting now; new ones may still be submitted."""
        return not self._waiting()

    def _half_free(self, active: list[Slot]) -> bool:
        return 2 * len(active) <= len(self._slots)

    def _grow_or_shrink(self, active: list[Slot]) -> None:
        """Move to longer caches if a row has filled them; move to fewer rows if half are free and no sentence waits."""
        full = _longest(active) >= self._state.target
        if self._in_flight or not (full or self._half_free(active)):
            return
        drained = self._drained()
        if not (full or drained):
            return
        if drained:
            slot_order = self._compacted_slots()
        else:
            slot_order = list(range(len(self._slots)))
        rows = [slot * self._rows_per_slot + row for slot in slot_order for row in range(self._rows_per_slot)]
        self._state = self._state.resized(rows, self._target(active))
        self._slots = [self._slots[slot] for slot in slot_order]

    def _target(self, active: list[Slot]) -> int:
        """Return a cache length with room for at least one more token in every active row."""
        length = _longest(active)
        target = self._state.target
        while target <= length:
            target = min(2 * target, max(slot.limit for slot in active))
        return target

    def _compacted_slots(self) -> list[int]:
        """Return the active slots. Slots from the end fill the gaps at the front, so that few rows move."""
        active = [index for index, slot in enumerate(self._slots) if slot is not None]
        behind = deque(index for index in active if index >= len(active))
        return [index if self._slots[index] is not None else behind.popleft() for index in range(len(active))]

    def _step(self, active: list[Slot]) -> None:
        one_by_one = self._policy.steps_one_by_one(active)
        # If no row will be added or moved, start the next group of steps before reading the current one. Groups are
        # then half as long, because up to two of them are wasted after the last row has finished.
        ahead = self._engine.poll > 1 and not one_by_one and not self._half_free(active) and self._drained()
        group = self._scheduler.poll
        if one_by_one:
            group = 1
        elif ahead:
            group = max(group // 2, 1)
        room = self._state.target - _longest(active)
        max_steps = min(room, max([slot.limit - slot.length for slot in active]))
        self._in_flight = self._in_flight or self._start_steps(min(group, max_steps))
        if ahead:
            following = self._start_steps(min(group, max_steps - self._in_flight))
        else:
            following = 0
        token_ids = self._state.read().token_ids
        self._in_flight = following
        self._policy.choose(self._state, self._slots, token_ids, one_by_one)

    def _start_steps(self, steps: int) -> int:
        """Start a group of at most this number of steps behind the group in flight, and return its number of steps."""
        if steps > 0:
            self._state.step(steps)
        return max(steps, 0)


def _longest(slots: Sequence[Slot]) -> int:
    return max([slot.length for slot in slots], default=0)
