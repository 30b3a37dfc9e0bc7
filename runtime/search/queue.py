"""A queue of requests from any thread, which join the running batch.

A request takes the next free rows of the running batch. Requests with the same search settings share a batch. Batches
of different searches take turns in the thread of the queue, one group of steps each: the steps that the device runs
before the host reads their tokens. A forked process has none of its parent's threads: there, the queue starts a new
thread, and requests of the parent fail.
"""

import os
import time
import weakref
from collections import deque
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from threading import Condition, Thread, current_thread
from typing import Any

from txport.runtime.engine import Engine
from txport.runtime.errors import EngineError, InputError, ResourceError, TxportError
from txport.runtime.search.decoding import policy_of
from txport.runtime.search.requests import Request, Result, Slot, Token
from txport.runtime.search.scheduler import BATCH_TOKENS, Scheduler
from txport.runtime.search.settings import Search

# Default of the maximum number of unanswered requests.
MAX_WAITING = 1024
CLOSED = "the queue was closed: open the bundle again"


class DeadlineExceeded(TxportError):
    """A request was not answered before its deadline."""


class Pending(Future[Any]):
    """A `Future` that can also be awaited. Cancelling it frees its row."""

    def __init__(self) -> None:
        super().__init__()
        _PENDING.add(self)

    def fail_after_fork(self) -> None:
        """Fail in a forked process, which has no thread for it and may inherit a locked lock."""
        self._condition = Condition()
        if not self.done():
            self.__dict__["_done_callbacks"].clear()  # the callbacks belong to the parent process
            self.set_exception(EngineError("the request belongs to the parent process: submit it again in this one"))

    def __await__(self) -> Generator[Any, None, Any]:
        from asyncio import wrap_future  # asyncio takes 4 MB; a caller that awaits has already loaded it

        return wrap_future(self).__await__()


def answered(result: object) -> Pending:
    """Return a finished `Pending` with this result."""
    answer = Pending()
    answer.set_result(result)
    return answer


@dataclass(frozen=True)
class Load:
    """Work of a queue.

    Attributes:
        unanswered: number of requests that have no answer yet.
        steps: number of groups of steps of all batches.
        rows: number of active rows, summed over these groups. A sentence has several rows in a beam search.
    """

    unanswered: int = 0
    steps: int = 0
    rows: int = 0


@dataclass
class _Ticket:
    """A request that has no answer yet.

    Attributes:
        future: receives the answer.
        deadline: in seconds of `time.monotonic`; None if there is none.
        convert: converts the result to the answer.
        on_token: called with each token; None if there is no callback.
        tokens_sent: number of tokens that `on_token` has received.
    """

    future: Pending
    deadline: float | None
    convert: Callable[[Result], object]
    on_token: Callable[[Token], object] | None
    tokens_sent: int = 0


class _Lane:
    """Requests with the same search settings, and the scheduler that runs their batches."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self.tickets: dict[int, _Ticket] = {}
        self.steps: Iterator[list[Slot]] = scheduler.steps()


class Queue:
    """A queue that answers requests in a background thread. The first request starts the thread.

    Args:
        engine: the engine that runs the model.
        rows, batch_tokens: as for `txport.runtime.search.scheduler.Scheduler`.
        max_waiting: maximum number of unanswered requests; more are refused.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        rows: int | None = None,
        batch_tokens: int = BATCH_TOKENS,
        max_waiting: int = MAX_WAITING,
    ) -> None:
        self._engine = engine
        self._rows = rows
        self._batch_tokens = batch_tokens
        self._max_waiting = max_waiting
        self._closing = False
        self._reset()
        _QUEUES.add(self)

    def _reset(self) -> None:
        """Set up an empty queue without a thread: for a new queue, and for the queue of a forked process."""
        # Held to change the attributes below, `_closing` or the tickets of a lane, except that only the thread of the
        # queue changes `_steps` and `_rows_worked`. `load` and that thread read single values without it.
        self._changed = Condition()
        self._lanes: dict[Search, _Lane] = {}
        self._cancelled: deque[tuple[_Lane, int]] = deque()
        self._unanswered = self._steps = self._rows_worked = 0
        self._failed = False
        self._thread = Thread(target=self._run, name="txport-queue", daemon=True)

    def submit(
        self,
        request: Request,
        *,
        seconds: float | None = None,
        on_token: Callable[[Token], object] | None = None,
        convert: Callable[[Result], object] = lambda result: result,
        admitted: bool = False,
    ) -> Pending:
        """Queue a request. Any thread may call this at any time.

        Args:
            request: the sentence.
            seconds: the time until its deadline; None if there is none.
            on_token: called in the queue's thread with each token; it must return at once. If it raises an exception,
                the request fails with it.
            convert: converts the `Result` to the answer, in the queue's thread.
            admitted: the request continues one that was already accepted, such as the next sentence of a document. It
                is accepted even if the queue is full and, in the thread of the queue, while the queue drains.

        Returns:
            the pending answer.

        Raises:
            InputError: the request cannot be answered, or the queue was closed.
            ResourceError: the queue is full.
            EngineError: the thread of the queue has failed.
        """
        deadline = None if seconds is None else time.monotonic() + seconds
        future = Pending()
        with self._changed:
            if self._failed:
                raise EngineError("the queue failed: open the bundle again")
            if self._closing and not (admitted and current_thread() is self._thread):
                raise InputError(CLOSED)
            if self._unanswered >= self._max_waiting and not admitted:
                raise ResourceError(
                    f"{self._unanswered} requests are unanswered, which is the maximum: try again later"
                )
            if self._thread.ident is None:
                self._thread.start()
            lane = self._lanes.get(request.search) or self._new_lane(request.search)
            (index,) = lane.scheduler.submit([request])
            self._lanes[request.search] = lane
            lane.tickets[index] = _Ticket(future, deadline, convert, on_token)
            self._unanswered += 1
            self._changed.notify()
        future.add_done_callback(lambda done: self._cancel(lane, index) if done.cancelled() else None)
        return future

    @property
    def load(self) -> Load:
        """The work of the queue until now."""
        return Load(self._unanswered, self._steps, self._rows_worked)

    def close(self, *, drain: bool = True) -> None:
        """Refuse further requests, and return when all accepted requests have ended. A queue may be closed again.

        Args:
            drain: answer the accepted requests. False cancels them, also if an earlier call drains.
        """
        with self._changed:
            self._closing = True
            if drain:
                to_cancel = []
            else:
                to_cancel = [each.future for lane in self._lanes.values() for each in lane.tickets.values()]
            self._changed.notify()
        for future in to_cancel:
            future.cancel()
        # A destructor may call this in the thread of the queue, which cannot join itself.
        if self._thread.ident is not None and current_thread() is not self._thread:
            self._thread.join()

    def _new_lane(self, search: Search) -> _Lane:
        lane = _Lane(
            Scheduler(
                self._engine,
                policy_of(self._engine, search),
                rows=self._rows,
                batch_tokens=self._batch_tokens,
                on_failure=lambda indices, error: self._fail(lane, indices, error),
            )
        )
        return lane

    def _cancel(self, lane: _Lane, index: int) -> None:
        with self._changed:
            self._cancelled.append((lane, index))
            self._changed.notify()

    def _run(self) -> None:
        try:
            self._work()
        except Exception as error:  # a bug: callers must not wait forever
            with self._changed:
                self._closing = self._failed = True
                unanswered = [(lane, index) for lane in self._lanes.values() for index in lane.tickets]
                self._lanes.clear()
            for lane, index in unanswered:
                self._fail(lane, [index], error)

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closing or self._lanes)
                if not self._lanes:
                    return
                self._drop_cancelled()
                lanes = list(self._lanes.items())
            for search, lane in lanes:
                if not self._step(lane):
                    self._end(search, lane)

    def _drop_cancelled(self) -> None:
        while self._cancelled:
            lane, index = self._cancelled.popleft()
            if (ticket := self._remove_ticket(lane, index)) is not None:
                ticket.future.set_running_or_notify_cancel()  # `concurrent.futures.wait` waits for this
                lane.scheduler.cancel(index)

    def _remove_ticket(self, lane: _Lane, index: int) -> _Ticket | None:
        ticket = lane.tickets.pop(index, None)
        self._unanswered -= ticket is not None
        return ticket

    def _end(self, search: Search, lane: _Lane) -> None:
        """Remove a lane whose batches have ended, unless a new request has arrived."""
        with self._changed:
            if lane.scheduler.waiting.empty:
                del self._lanes[search]
            else:
                lane.steps = lane.scheduler.steps()

    def _step(self, lane: _Lane) -> bool:
        """Run one group of steps of a lane's batch; return False if the lane has no more requests."""
        slots = next(lane.steps, None)
        if slots is None:
            return False
        self._steps += 1
        self._rows_worked += len(slots) * lane.scheduler.policy.rows
        now = time.monotonic()
        for slot in slots:
            ticket = lane.tickets.get(slot.index)
            if ticket is None:
                continue
            try:
                self._give_tokens(slot, ticket)
            except Exception as error:  # raised by the caller's `on_token`
                self._give_up(lane, slot.index, error)
                continue
            if slot.done:
                self._finish(lane, slot.index, slot.result())
        with self._changed:
            deadlines = [(index, ticket.deadline) for index, ticket in lane.tickets.items()]
        for index, deadline in deadlines:
            if deadline is not None and deadline <= now:
                self._give_up(lane, index, DeadlineExceeded("the request was not finished at its deadline"))
        return True

    def _give_up(self, lane: _Lane, index: int, error: Exception) -> None:
        """End a request with an error before it is finished."""
        self._fail(lane, [index], error)
        lane.scheduler.cancel(index)

    @staticmethod
    def _give_tokens(slot: Slot, ticket: _Ticket) -> None:
        if ticket.on_token is None:
            return
        for position in range(ticket.tokens_sent, len(slot.ids)):
            last = slot.done and position == len(slot.ids) - 1
            if slot.request.scores:
                score = slot.scores[position]
            else:
                score = None
            ticket.on_token(Token(slot.ids[position], score, last))
        ticket.tokens_sent = len(slot.ids)

    def _finish(self, lane: _Lane, index: int, result: Result) -> None:
        with self._changed:
            ticket = self._remove_ticket(lane, index)
        if ticket is None or not ticket.future.set_running_or_notify_cancel():
            return
        try:
            ticket.future.set_result(ticket.convert(result))
        except Exception as error:
            ticket.future.set_exception(error)

    def _fail(self, lane: _Lane, indices: list[int], error: Exception) -> None:
        for index in indices:
            with self._changed:
                ticket = self._remove_ticket(lane, index)
            if ticket is not None and ticket.future.set_running_or_notify_cancel():
                ticket.future.set_exception(error)


_PENDING: "weakref.WeakSet[Pending]" = weakref.WeakSet()
_QUEUES: "weakref.WeakSet[Queue]" = weakref.WeakSet()


def _begin_after_fork() -> None:
    for queue in list(_QUEUES):
        queue._reset()
    for pending in list(_PENDING):
        pending.fail_after_fork()


if hasattr(os, "register_at_fork"):  # Windows has no fork
    os.register_at_fork(after_in_child=_begin_after_fork)
