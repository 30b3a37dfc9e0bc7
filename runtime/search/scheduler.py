"""Continuous batching over any engine. A policy chooses the tokens.

Rows are independent: a finished row gets the next waiting sentence while the others continue, so a batch never waits
for its longest sentence. Sentences may be submitted while batches run. A batch grows when more sentences wait than it
has free rows. When no sentence waits and half of the rows are free, the other rows move together into a smaller batch.
Caches start short and double, so that short answers do not pay for the longest cache.

Threads that drain one scheduler share its queue. Each runs a separate batch.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence

from txport.runtime.engine import Engine, Memory, RestrictingState, padded
from txport.runtime.errors import TxportError
from txport.runtime.search.allocation import allocate
from txport.runtime.search.policy import Policy
from txport.runtime.search.requests import Request, Result, Slot
from txport.runtime.search.waiting import BatchSize, Entry, WaitingRequests

# Default of the maximum number of source tokens of a batch, padding included.
BATCH_TOKENS = 4096


class Scheduler:
    """Batches that answer requests.

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
        self.policy = policy
        self.poll = poll or engine.poll
        self.waiting = WaitingRequests(engine, policy, rows, batch_tokens, workers)
        self.stopped = False
        self._on_failure = on_failure

    def submit(self, requests: Sequence[Request]) -> range:
        """Append requests to the queue, the longest sources first. Any thread may call this at any time.

        Returns:
            the `Result.index` of each request.

        Raises:
            InputError: a source is empty or too long for the engine, or a length is not positive.
        """
        return self.waiting.submit(requests)

    def drain(self) -> Iterator[Result]:
        """Run batches until no request waits, and yield each result when it is finished."""
        for slots in self.steps():
            for slot in slots:
                if slot.done:
                    yield slot.result()

    def steps(self) -> Iterator[list[Slot]]:
        """Run batches until no request waits, and yield the active slots after each group of steps."""
        while not self.stopped and (size := self.waiting.start_batch()) is not None:
            batch: _Batch | None = None
            try:
                batch = _Batch(self, size)
                yield from batch.steps()
            except TxportError as error:
                if self._on_failure is None:
                    raise
                self._on_failure(batch.unanswered() if batch is not None else self.waiting.drop_batch(), error)
            finally:
                self.waiting.end_batch()

    def stop(self) -> None:
        """Let all draining threads end after their current step; unfinished requests get no result."""
        self.stopped = True

    def cancel(self, index: int) -> bool:
        """Cancel a request without a result: remove it from the queue, or free its row after the current step.

        Args:
            index: index of an unfinished request.

        Returns:
            whether it was still waiting.
        """
        return self.waiting.cancel(index)


class _Batch:
    """One decoder state, with a slot for each `Policy.rows` rows; a free slot is `None`."""

    def __init__(self, scheduler: Scheduler, size: BatchSize) -> None:
        self._scheduler = scheduler
        self._waiting = scheduler.waiting
        self._engine = scheduler.engine
        self._policy = scheduler.policy
        self._rows_per_slot = self._policy.rows
        self._source = size.source
        self._logits = size.logits
        if self._engine.ragged:
            widest = self._engine.limits.source
        else:
            widest = size.source
        shape = (size.sentences, self._rows_per_slot, widest, size.target)
        self._state = allocate(self._engine, shape, size.logits, self._policy.top)
        self._slots: list[Slot | None] = [None] * size.sentences
        self._encoded: deque[tuple[Entry, Memory, int]] = deque()  # the int is the row of the memory
        self._encoding: list[Entry] = []
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
        if not self._waiting.has_cancelled:
            return
        for index, slot in enumerate(self._slots):
            if slot is not None and self._waiting.cancelled(slot.index):
                rows = range(index * self._rows_per_slot, (index + 1) * self._rows_per_slot)
                self._finish(rows)
                self._slots[index] = None
        self._encoded = deque(each for each in self._encoded if not self._waiting.cancelled(each[0].number))

    def _finish(self, rows: range) -> None:
        """Mark rows as finished."""
        self._state.override(rows, [self._engine.tokens.pad] * len(rows), [True] * len(rows))

    def unanswered(self) -> list[int]:
        """Return the requests that this batch has taken and not answered."""
        waiting = [*(entry for entry, _, _ in self._encoded), *self._encoding]
        return [slot.index for slot in self._active()] + [entry.number for entry in waiting]

    def _active(self) -> list[Slot]:
        return [slot for slot in self._slots if slot is not None]

    def _count_waiting(self, maximum: int = 1) -> int:
        """Return the number of sentences that could be placed now, encoded ones included."""
        return len(self._encoded) + self._waiting.count(self._state, self._logits, maximum)

    def _add_rows(self) -> None:
        """Take twice as many rows or more, up to the maximum, if more sentences wait than slots are free."""
        count = len(self._slots)
        maximum = self._waiting.max_sentences(self._source)
        if count < maximum:
            waiting = self._count_waiting(maximum)
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
        group = self._waiting.take(self._state, self._logits)
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
        return not self._count_waiting()

    def _half_free(self, active: list[Slot]) -> bool:
        return 2 * len(active) <= len(self._slots)

    def _grow_or_shrink(self, active: list[Slot]) -> None:
        """Move to longer caches if a row has filled them, or to fewer rows if half are free and no sentence waits.

        Whenever rows move and no sentence waits, free rows are dropped.
        """
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
