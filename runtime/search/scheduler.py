"""Continuous batching over any engine: groups of steps and refills. A policy chooses the tokens.

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
from typing import NamedTuple, Protocol

from txport.runtime.engine import DecoderState, Engine, Int64, Memory, RestrictingState, padded
from txport.runtime.errors import InputError, TxportError
from txport.runtime.search.allocation import allocate
from txport.runtime.search.requests import Request, Result, Slot

# The most source tokens (padding included) that rows of one batch hold by default.
BATCH_TOKENS = 4096


class Policy(Protocol):
    """Choice of tokens.

    Attributes:
        rows: rows of a state that a request takes. Its sentence is placed in the first of them; the others wait,
            finished, for the policy to reorder them.
        top: maximum number of tokens that it asks `DecoderState.top` for.
    """

    rows: int
    top: int

    def slot(self, index: int, request: Request, limit: int) -> Slot:
        """Return the slot of a request, and the maximum number of tokens of its answer."""

    def needs_logits(self, request: Request) -> bool:
        """Return whether a state that answers this request must be allocated with logits."""

    def steps_one_by_one(self, slots: Sequence[Slot]) -> bool:
        """Return whether `choose` must see the next step of these slots before the one after it begins."""

    def choose(self, state: DecoderState, slots: Sequence[Slot | None], token_ids: Int64, one_by_one: bool) -> None:
        """Append the tokens of a group of steps to the answers.

        Args:
            state: the state that generated them.
            slots: the slot of each row, or of each `rows` rows; None for free rows.
            token_ids: int64 `[steps, rows]` that the device chose.
            one_by_one: result of `steps_one_by_one`; if true, this is one step, and all steps of the state have been
                read.
        """


class _Entry(NamedTuple):
    """A request that waits."""

    number: int
    request: Request
    width: int  # tokens of its source


class Scheduler:
    """A queue of requests, and batches that answer them.

    Args:
        engine: the engine that runs the model.
        policy: the policy that chooses the tokens.
        rows: maximum number of sentences that run together; at most `Limits.batch`, which is also the meaning of None.
            The rows of all are also at most `Limits.batch`.
        batch_tokens: maximum number of source tokens that run together, including padding, but at least one row.
        workers: threads that will drain the queue at once: the batch of each has a share of `rows` and `batch_tokens`.
        poll: maximum number of steps that the device may be ahead of the host; None for the default of the engine.
        on_failure: called with the failed requests of a batch and the error; the next batch follows. None raises.
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
        most = engine.limits.batch // policy.rows
        if most < 1:
            raise InputError(f"{policy.rows} rows for a sentence are too many: this bundle runs {engine.limits.batch}")
        self._rows = max(1, min(rows or most, most) // workers)
        self._batch_tokens = max(1, batch_tokens // workers)
        self._workers = workers
        self._lock = Lock()  # of all that follows
        self._queue: deque[_Entry] = deque()
        self._submissions = 0
        self._batches = 0
        self._cancelled: set[int] = set()
        self._stopped = False

    def submit(self, requests: Sequence[Request]) -> range:
        """Append requests to the queue, the longest sources first. Any thread may call this at any time.

        Returns:
            the `Result.index` of each.

        Raises:
            InputError: a source is empty or longer than the engine takes, or a length is not positive.
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
        """Run batches until nothing waits, and yield each answer when it ends."""
        for slots in self.steps():
            for slot in slots:
                if slot.done:
                    yield slot.result()

    def steps(self) -> Iterator[list[Slot]]:
        """Run batches until nothing waits, and yield the slots that worked after each group of steps."""
        while (sizes := self._open()) is not None:
            batch: _Batch | None = None
            try:
                batch = _Batch(self, *sizes)
                yield from batch.steps()
            except TxportError as error:
                if self._on_failure is None:
                    raise
                self._on_failure(batch.unanswered() if batch is not None else self._dropped(), error)
            finally:
                with self._lock:
                    self._batches -= 1

    def stop(self) -> None:
        """Let every thread that drains end after its step; answers that have not ended are lost."""
        self._stopped = True

    def cancel(self, index: int) -> bool:
        """Give up a request: it leaves the queue, or its row after the step that is under way, without a result.

        Returns:
            whether it still waited; the index of one that does not must be that of a request that has not ended.
        """
        with self._lock:
            waiting = next((entry for entry in self._queue if entry.number == index), None)
            if waiting is None:
                self._cancelled.add(index)
                return False
            self._queue.remove(waiting)
            return True

    def cancelled(self, index: int) -> bool:
        """Return whether a request that runs was given up; asked once."""
        if index not in self._cancelled:
            return False
        self._cancelled.discard(index)
        return True

    @property
    def cancels(self) -> bool:
        """True if a request that runs was given up."""
        return bool(self._cancelled)

    @property
    def idle(self) -> bool:
        """True if no request waits."""
        return not self._queue

    def _dropped(self) -> list[int]:
        """Remove and return the requests of a batch that does not fit into memory."""
        with self._lock:
            return [self._queue.popleft().number for _ in range(min(len(self._queue), self._rows))]

    @property
    def stopped(self) -> bool:
        return self._stopped

    def _open(self) -> tuple[int, int, int, bool] | None:
        """Return rows, source, target and logits for a batch of the head of the queue; None if nothing waits."""
        with self._lock:
            if not self._queue or self._stopped:
                return None
            source = max(entry.width for entry in self._head())
            rows = min(self.most_rows(source), self._share(self._workers - self._batches))
            longest = max(entry.request.limit(self.engine.limits) for entry in self._queue)
            logits = any(self.policy.needs_logits(entry.request) for entry in self._queue)
            self._batches += 1
        return rows, source, min(self.engine.first_target(source), longest), logits

    def most_rows(self, source: int) -> int:
        """Return the maximum number of sentences of a batch of sources of this width."""
        return max(1, min(self._rows, self._batch_tokens // source))

    def _head(self) -> Iterator[_Entry]:
        """Entries from which a batch gets its width."""
        return islice(self._queue, self._rows)

    def _share(self, workers: int) -> int:
        """Return the share of the waiting entries for one of this number of workers."""
        return -(-len(self._queue) // max(1, workers))

    def take(self, state: DecoderState, logits: bool) -> list[_Entry]:
        """Return the next group for a running batch, at most as many as it has rows; empty if there is none for it."""
        with self._lock:
            return [self._queue.popleft() for _ in range(self._ready(state, logits, state.rows // self.policy.rows))]

    def waiting(self, state: DecoderState, logits: bool, most: int) -> int:
        """Return the number of waiting entries that a running batch may take now, at most `most`."""
        if not self._queue:
            return 0
        with self._lock:
            return self._ready(state, logits, most)

    def _ready(self, state: DecoderState, logits: bool, most: int) -> int:
        """Return the number of entries at the head of the queue that belong in a running batch.

        One that is too wide for an engine that pads, or needs logits, lets the batch drain, so that it begins the next
        one. That is rare where many wait, since the longest come first. Sentences of half the width get a batch of
        their own if they can fill it, so that they do not pay for the padding.
        """
        if not self._queue:
            return 0
        ragged = self.engine.ragged
        narrow = not ragged and all(2 * entry.width <= state.source for entry in self._head())
        if narrow and len(self._queue) * self.policy.rows >= state.rows:
            return 0
        head = islice(self._queue, min(most, self._share(self._workers)))

        def fits(entry: _Entry) -> bool:
            return (ragged or entry.width <= state.source) and (logits or not self.policy.needs_logits(entry.request))

        return sum(1 for _ in takewhile(fits, head))


class _Batch:
    """One decoder state and the slot of each `Policy.rows` rows; `None` for rows that are free."""

    def __init__(self, scheduler: Scheduler, rows: int, source: int, target: int, logits: bool) -> None:
        self._scheduler = scheduler
        self._engine = scheduler.engine
        self._policy = scheduler.policy
        self._width = self._policy.rows
        self._source = source
        self._logits = logits
        if self._engine.ragged:
            widest = self._engine.limits.source
        else:
            widest = source
        self._state = allocate(self._engine, (rows, self._width, widest, target), logits, self._policy.top)
        self._slots: list[Slot | None] = [None] * rows
        self._encoded: deque[tuple[_Entry, Memory, int]] = deque()  # with the row of the memory
        self._encoding: list[_Entry] = []
        self._in_flight = 0  # steps of the group that the device began while the host read another

    def steps(self) -> Iterator[list[Slot]]:
        """Run a step and yield its slots. Finished ones have already left the batch."""
        while not self._scheduler.stopped:
            if not self._in_flight:
                self._give_up()
                self._add_rows()
                self._refill()
            working = self._working()
            if not working:
                return
            self._grow_or_shrink(working)
            self._step(working)
            self._slots = [None if slot is None or slot.done else slot for slot in self._slots]
            yield working

    def _give_up(self) -> None:
        """Free the rows of requests that were cancelled."""
        if not self._scheduler.cancels:
            return
        for index, slot in enumerate(self._slots):
            if slot is not None and self._scheduler.cancelled(slot.index):
                rows = range(index * self._width, (index + 1) * self._width)
                self._state.override(rows, [self._engine.tokens.pad] * self._width, [True] * self._width)
                self._slots[index] = None
        self._encoded = deque(each for each in self._encoded if not self._scheduler.cancelled(each[0].number))

    def unanswered(self) -> list[int]:
        """Return the requests that this batch has taken and not answered."""
        waiting = [*(entry for entry, _, _ in self._encoded), *self._encoding]
        return [slot.index for slot in self._working()] + [entry.number for entry in waiting]

    def _working(self) -> list[Slot]:
        return [slot for slot in self._slots if slot is not None]

    def _waiting(self, most: int = 1) -> int:
        """Return the number of sentences that may still be placed, as far as is known now, at most `most`."""
        return len(self._encoded) + self._scheduler.waiting(self._state, self._logits, most)

    def _add_rows(self) -> None:
        """Take at least twice as many rows if more sentences wait than rows are free."""
        count = len(self._slots)
        most = self._scheduler.most_rows(self._source)
        if count < most:
            waiting = self._waiting(most)
        else:
            waiting = 0
        if not waiting or (needed := len(self._working()) + waiting) <= count:
            return
        # The protocol makes no free rows: copies of the first slot's become free by ending them.
        count = min(most, max(2 * count, needed))
        rows = range(self._state.rows, count * self._width)
        taken = [*range(self._state.rows), *(row % self._width for row in rows)]
        self._state = self._state.resized(taken, self._target(self._working()))
        self._state.override(rows, [self._engine.tokens.pad] * len(rows), [True] * len(rows))
        self._slots += [None] * (count - len(self._slots))

    def _refill(self) -> None:
        """Place waiting sentences in the free rows, a group from one encoder run at a time."""
        free = [index for index, slot in enumerate(self._slots) if slot is None]
        while free and (self._encoded or self._encode_group()):
            memory = self._encoded[0][1]
            rows = []
            memory_rows = []
            limits = []
            while free and self._encoded and self._encoded[0][1] is memory:
                entry, _, memory_row = self._encoded.popleft()
                slot = self._policy.slot(entry.number, entry.request, entry.request.limit(self._engine.limits))
                rows.append(free[0] * self._width)
                memory_rows.append(memory_row)
                limits.append(slot.limit)
                self._slots[free.pop(0)] = slot
            self._state.place(rows, memory, memory_rows, limits)
            self._restrict(rows)

    def _restrict(self, rows: Sequence[int]) -> None:
        """Give rows that were just placed the words of their requests."""
        requests = [(row, slot.request) for row in rows if (slot := self._slots[row // self._width]) is not None]
        words = {row: request.words for row, request in requests if request.words is not None}
        if words:
            assert isinstance(self._state, RestrictingState)
            self._state.restrict(list(words), list(words.values()))

    def _encode_group(self) -> bool:
        """Encode as many sentences as there are rows, ahead of need; False if none is left for this batch."""
        group = self._scheduler.take(self._state, self._logits)
        if not group:
            return False
        sources, lengths = padded([entry.request.source_ids for entry in group], self._engine.tokens.pad)
        self._encoding = group  # lost if this fails
        memory = self._engine.encode(sources, lengths)
        self._encoding = []
        self._encoded.extend((entry, memory, row) for row, entry in enumerate(group))
        return True

    def _drained(self) -> bool:
        """Return whether no sentence waits for this batch; others may come."""
        return not self._waiting()

    def _half_free(self, working: list[Slot]) -> bool:
        return 2 * len(working) <= len(self._slots)

    def _grow_or_shrink(self, working: list[Slot]) -> None:
        """Move to longer caches if a row has filled them, and to fewer rows if half are free and none waits."""
        full = _longest(working) >= self._state.target
        if self._in_flight or not (full or self._half_free(working)):
            return
        drained = self._drained()
        if not (full or drained):
            return
        if drained:
            kept = self._compacted_slots()
        else:
            kept = list(range(len(self._slots)))
        rows = [slot * self._width + row for slot in kept for row in range(self._width)]
        self._state = self._state.resized(rows, self._target(working))
        self._slots = [self._slots[slot] for slot in kept]

    def _target(self, working: list[Slot]) -> int:
        """Return a length of caches that leaves each row that works room for a token."""
        length = _longest(working)
        target = self._state.target
        while target <= length:
            target = min(2 * target, max(slot.limit for slot in working))
        return target

    def _compacted_slots(self) -> list[int]:
        """Return the slots that work; those at the end fill the gaps at the front, so that few rows have to move."""
        working = [index for index, slot in enumerate(self._slots) if slot is not None]
        behind = deque(index for index in working if index >= len(working))
        return [index if self._slots[index] is not None else behind.popleft() for index in range(len(working))]

    def _step(self, working: list[Slot]) -> None:
        one_by_one = self._policy.steps_one_by_one(working)
        # If rows do not change, a device continues while the host reads: with half as many steps in a group, since
        # those of two groups are lost after the last row has finished. Finished rows are inert meanwhile.
        ahead = self._engine.poll > 1 and not one_by_one and not self._half_free(working) and self._drained()
        group = self._scheduler.poll
        if one_by_one:
            group = 1
        elif ahead:
            group = max(group // 2, 1)
        room = self._state.target - _longest(working)
        most = min(room, max([slot.limit - slot.length for slot in working]))
        self._in_flight = self._in_flight or self._begin(min(group, most))
        if ahead:
            following = self._begin(min(group, most - self._in_flight))
        else:
            following = 0
        token_ids = self._state.read().token_ids
        self._in_flight = following
        self._policy.choose(self._state, self._slots, token_ids, one_by_one)

    def _begin(self, steps: int) -> int:
        """Begin a group of this number of steps, after the group in flight."""
        if steps > 0:
            self._state.step(steps)
        return max(steps, 0)


def _longest(slots: Sequence[Slot]) -> int:
    return max([slot.length for slot in slots], default=0)
