"""One batch for concurrent calls: one of the waiting threads decodes for all of them until it has its answers.

That is the pattern Leader/Followers (Schmidt, Stal, Rohnert and Buschmann, Pattern-Oriented Software Architecture 2).
It needs no background thread, so a process may fork, and an error affects only its own call.
"""

import os
from collections.abc import Sequence
from threading import Event, Lock, local

from txport.runtime.engine import Engine
from txport.runtime.errors import TxportError
from txport.runtime.search.decoding import decode_all, policy_of
from txport.runtime.search.requests import Request, Result
from txport.runtime.search.scheduler import BATCH_TOKENS, Scheduler
from txport.runtime.search.settings import Search


class SharedBatches:
    """Batches for the calls of many threads. Answers are those of `decode_all`.

    Calls share a batch only on engines that compute each row independently, so that results do not change. A call that
    would fill a batch decodes alone. So does a call whose search settings differ from those of the running batches.

    Args:
        rows, batch_tokens, workers: as for `decode_all`; with several workers each call decodes alone.
        parallel_batches: number of batches that run in parallel before calls share them.
    """

    def __init__(
        self, *, rows: int | None = None, batch_tokens: int = BATCH_TOKENS, workers: int = 1, parallel_batches: int = 1
    ) -> None:
        self._rows = rows
        self._batch_tokens = batch_tokens
        self._workers = workers
        self._parallel_batches = parallel_batches
        self._groups = _Groups()
        self._thread = local()  # a signal handler may call `decode` inside a call; waiting for that call would hang

    def decode(self, engine: Engine, requests: Sequence[Request]) -> list[Result]:
        """Answer requests with the same search; all calls pass the same engine. See `decode_all`."""
        shares = engine.ragged and self._workers == 1 and not getattr(self._thread, "within", False)
        if shares and 0 < len(requests) < (self._rows or engine.limits.batch):
            self._thread.within = True
            try:
                results = self._decode_shared(engine, requests)
            finally:
                self._thread.within = False
            if results is not None:
                return results
        return decode_all(engine, requests, rows=self._rows, batch_tokens=self._batch_tokens, workers=self._workers)

    def _decode_shared(self, engine: Engine, requests: Sequence[Request]) -> list[Result] | None:
        """Decode in a shared batch; return None if there is none for this call, or if the batch failed."""
        if self._groups.process != os.getpid():
            self._groups = _Groups()
        groups = self._groups
        with groups.lock:
            group = self._group_of(groups, engine, requests[0].search)
            if group is None:
                return None
            call = group.add(requests)
            groups.begin(group)
        try:
            while not call.is_finished:
                if group.leader is call:
                    group.lead(call)
                else:
                    call.changed.wait()
                    call.changed.clear()
        except BaseException as error:
            with groups.lock:
                if group.leader is call:  # its step may be incomplete
                    groups.end(group)
                    group.fail_all()
            if not (call.batch_failed and isinstance(error, TxportError)):  # Ctrl-C, or a bug
                raise
        finally:
            with groups.lock:
                if not group.leave(call):
                    groups.end(group)
        if call.batch_failed:
            return None
        return [result for result in call.results if result is not None]

    def _group_of(self, groups: "_Groups", engine: Engine, search: Search) -> "_Group | None":
        if len(groups.running) < self._parallel_batches:
            return _Group(engine, search, self._rows, self._batch_tokens, groups.lock)
        candidates = [group for group in groups.running if group.search == search]
        return min(candidates, key=lambda group: len(group.owners), default=None)


class _Call:
    """A call that waits for its answers.

    Attributes:
        results: the answers; None for missing ones.
        unanswered: number of missing answers.
        batch_failed: whether the shared batch failed; the call then decodes alone, and raises its own errors.
        changed: set when the call has ended, and when it becomes the leader.
    """

    def __init__(self, count: int) -> None:
        self.results: list[Result | None] = [None] * count
        self.unanswered = count
        self.batch_failed = False
        self.changed = Event()

    @property
    def is_finished(self) -> bool:
        return self.batch_failed or not self.unanswered


class _Group:
    """Calls of one search that share batches.

    Attributes:
        search: the search settings of the requests.
        owners: for each unanswered request, its call and its index there.
        leader: the call whose thread decodes; None if all have left.
    """

    def __init__(self, engine: Engine, search: Search, rows: int | None, batch_tokens: int, lock: Lock) -> None:
        self.search = search
        self.owners: dict[int, tuple[_Call, int]] = {}
        self.leader: _Call | None = None
        self._lock = lock  # guards everything except the steps, which only the leader runs
        policy = policy_of(engine, search)
        self._scheduler = Scheduler(engine, policy, rows=rows, batch_tokens=batch_tokens)
        self._steps = self._scheduler.steps()

    def add(self, requests: Sequence[Request]) -> _Call:
        call = _Call(len(requests))
        for position, index in enumerate(self._scheduler.submit(requests)):
            self.owners[index] = call, position
        self.leader = self.leader or call
        return call

    def lead(self, call: _Call) -> None:
        """Decode for all until this call has ended."""
        while not call.is_finished:
            slots = next(self._steps, None)
            if slots is None:  # the waiting requests came after the end of the last batch
                self._steps = self._scheduler.steps()
                continue
            with self._lock:
                for slot in slots:
                    if slot.done and slot.index in self.owners:
                        self._answer(slot.result())

    def leave(self, call: _Call) -> bool:
        """Remove a call and choose another leader if it was the leader; return False if no call is left."""
        for index in [index for index, (owner, _) in self.owners.items() if owner is call]:
            del self.owners[index]
            self._scheduler.cancel(index)
        if self.leader is call:
            self.leader = next((owner for owner, _ in self.owners.values()), None)
            if self.leader is not None:
                self.leader.changed.set()
        return self.leader is not None

    def fail_all(self) -> None:
        """Let each call decode alone."""
        for call, _ in self.owners.values():
            call.batch_failed = True
            call.changed.set()
        self.owners.clear()

    def _answer(self, result: Result) -> None:
        call, position = self.owners.pop(result.index)
        call.results[position] = Result(position, result.hypotheses)
        call.unanswered -= 1
        if call.is_finished:
            call.changed.set()


class _Groups:
    """The groups of a process. A forked process needs new ones, since it has none of their threads."""

    def __init__(self) -> None:
        self.process = os.getpid()
        self.lock = Lock()
        self.running: list[_Group] = []

    def begin(self, group: _Group) -> None:
        if group not in self.running:
            self.running.append(group)

    def end(self, group: _Group) -> None:
        if group in self.running:
            self.running.remove(group)
