"""One batch for the calls of many threads: one of these decodes for all, and hands over when it has its own answers.

That is the pattern Leader/Followers (Schmidt, Stal, Rohnert and Buschmann, Pattern-Oriented Software Architecture 2).
It needs no thread of its own, so that a process may fork, and no call has another's failure.
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

    Calls share a batch where that changes nothing but the time: on an engine whose rows are computed each by itself. A
    call that would fill a batch decodes alone, and so does one that finds others of another search only.

    Args:
        rows, batch_tokens, workers: as for `decode_all`; with several workers each call decodes alone.
        most: batches that run side by side before calls share them.
    """

    def __init__(
        self, *, rows: int | None = None, batch_tokens: int = BATCH_TOKENS, workers: int = 1, most: int = 1
    ) -> None:
        self._rows = rows
        self._batch_tokens = batch_tokens
        self._workers = workers
        self._most = most
        self._groups = _Groups()
        self._thread = local()  # a signal's handler may call in the midst of a call, which it must not wait for

    def decode(self, engine: Engine, requests: Sequence[Request]) -> list[Result]:
        """Answer requests of one search by the engine, the same in all calls; see `decode_all`."""
        shares = engine.ragged and self._workers == 1 and not getattr(self._thread, "within", False)
        if shares and 0 < len(requests) < (self._rows or engine.limits.batch):
            self._thread.within = True
            try:
                results = self._joined(engine, requests)
            finally:
                self._thread.within = False
            if results is not None:
                return results
        return decode_all(engine, requests, rows=self._rows, batch_tokens=self._batch_tokens, workers=self._workers)

    def _joined(self, engine: Engine, requests: Sequence[Request]) -> list[Result] | None:
        """Return the answers by a batch of several calls; None if there is none for this call, or it failed."""
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
            while not call.ended:
                if group.leader is call:
                    group.lead(call)
                else:
                    call.changed.wait()
                    call.changed.clear()
        except BaseException as error:
            with groups.lock:
                if group.leader is call:  # what it did in the batch may be half done
                    groups.end(group)
                    group.lose_all()
            if not (call.lost and isinstance(error, TxportError)):  # Ctrl-C, or a bug
                raise
        finally:
            with groups.lock:
                if not group.leave(call):
                    groups.end(group)
        if call.lost:
            return None
        return [result for result in call.results if result is not None]

    def _group_of(self, groups: "_Groups", engine: Engine, search: Search) -> "_Group | None":
        if len(groups.running) < self._most:
            return _Group(engine, search, self._rows, self._batch_tokens, groups.lock)
        same = [group for group in groups.running if group.search == search]
        return min(same, key=lambda group: len(group.owners), default=None)


class _Call:
    """A call that waits for its answers.

    Attributes:
        results: the answers; None for those to come.
        unanswered: how many are to come.
        lost: whether the batch failed: the call decodes alone then, and has what becomes of that.
        changed: is set when the call has ended, and when it is to lead.
    """

    def __init__(self, count: int) -> None:
        self.results: list[Result | None] = [None] * count
        self.unanswered = count
        self.lost = False
        self.changed = Event()

    @property
    def ended(self) -> bool:
        return self.lost or not self.unanswered


class _Group:
    """Calls of one search that share batches.

    Attributes:
        search: of their requests.
        owners: the call of each request to be answered, and its place there.
        leader: the call whose thread decodes; None if all have left.
    """

    def __init__(self, engine: Engine, search: Search, rows: int | None, batch_tokens: int, lock: Lock) -> None:
        self.search = search
        self.owners: dict[int, tuple[_Call, int]] = {}
        self.leader: _Call | None = None
        self._lock = lock  # of all but the steps, which are the leader's
        policy = policy_of(engine, search)
        self._scheduler = Scheduler(engine, policy, rows=rows, batch_tokens=batch_tokens)
        self._steps = self._scheduler.steps()

    def add(self, requests: Sequence[Request]) -> _Call:
        call = _Call(len(requests))
        for place, index in enumerate(self._scheduler.submit(requests)):
            self.owners[index] = call, place
        self.leader = self.leader or call
        return call

    def lead(self, call: _Call) -> None:
        """Decode for all until this call has ended."""
        while not call.ended:
            slots = next(self._steps, None)
            if slots is None:  # what waits came after the last batch had ended
                self._steps = self._scheduler.steps()
                continue
            with self._lock:
                for slot in slots:
                    if slot.done and slot.index in self.owners:
                        self._answer(slot.result())

    def leave(self, call: _Call) -> bool:
        """Take a call out, and another one as the leader; False if there is none."""
        for index in [index for index, (owner, _) in self.owners.items() if owner is call]:
            del self.owners[index]
            self._scheduler.cancel(index)
        if self.leader is call:
            self.leader = next((owner for owner, _ in self.owners.values()), None)
            if self.leader is not None:
                self.leader.changed.set()
        return self.leader is not None

    def lose_all(self) -> None:
        """Let each call decode alone."""
        for call, _ in self.owners.values():
            call.lost = True
            call.changed.set()
        self.owners.clear()

    def _answer(self, result: Result) -> None:
        call, place = self.owners.pop(result.index)
        call.results[place] = Result(place, result.hypotheses)
        call.unanswered -= 1
        if call.ended:
            call.changed.set()


class _Groups:
    """The groups of a process. One that was forked from it has none of their threads."""

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
