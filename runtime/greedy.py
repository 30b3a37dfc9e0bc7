"""Greedy search over any engine, with continuous batching.

Rows are independent: one that finishes takes the next waiting sentence while the others go on, so a batch never waits
for its longest sentence. When none waits, the rows that are left move together once they are half of the batch. Caches
start short and double, so that a short answer does not pay for the longest cache.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain

import numpy as np
from txport.runtime.engine import DecoderState, Engine, Float32, Int64, Memory, SpecialTokens
from txport.runtime.errors import InputError

# The most source tokens (padding included) that rows of one batch hold by default.
BATCH_TOKENS = 4096
# A model that has learned little does not end its answers. Few real ones have more tokens than so many for each of the
# source's, and so many more.
PER_SOURCE, MORE = 2, 20


@dataclass(frozen=True)
class Request:
    """One sentence to translate.

    Attributes:
        source_ids: the encoder's input, eos included; 1 to `Limits.source` ids.
        max_length: the most tokens to make, eos included; at most `Limits.target`, which is also the meaning of None.
        min_length: tokens that must be made before eos may be.
        prefix: target ids that the answer must begin with.
    """

    source_ids: Sequence[int]
    max_length: int | None = None
    min_length: int = 0
    prefix: Sequence[int] = ()


@dataclass(frozen=True)
class Result:
    """The answer to a request.

    Attributes:
        index: which request, counted from 0.
        ids: target ids, prefix included, without bos; ends with eos unless the maximum length came first.
        scores: the natural logarithm of each id's probability, or None.
    """

    index: int
    ids: list[int]
    scores: list[float] | None


@dataclass(frozen=True)
class Token:
    """One step of a stream: the id that was made, its log-probability or None, and whether it is the last."""

    id: int
    score: float | None
    last: bool


def decode_all(
    engine: Engine,
    requests: Sequence[Request],
    *,
    rows: int | None = None,
    batch_tokens: int = BATCH_TOKENS,
    scores: bool = False,
    workers: int = 1,
) -> list[Result]:
    """Answer all requests, the longest sources first.

    Args:
        engine: what runs the model.
        requests: the sentences; pass a long text in windows of some hundred.
        rows: the most rows of a batch; at most `Limits.batch`, which is also the meaning of None.
        batch_tokens: the most source tokens, padding included, that the rows of a batch hold, but one row at least.
        scores: compute `Result.scores`, for which the host reads the logits of every step.
        workers: threads that decode side by side. Each takes a share of the sentences, of the rows and of the tokens of
            a batch; the engine must allow it, as those of the CPU do.

    Returns:
        one result for each request, in their order.

    Raises:
        InputError: a source is empty or longer than the engine takes, or a length is not positive.
    """
    for request in requests:
        _check(engine, request)
    count = max(1, min(workers, len(requests)))
    rows, batch_tokens = max(1, (rows or engine.limits.batch) // count), max(1, batch_tokens // count)
    ordered = sorted(enumerate(requests), key=lambda numbered: -len(numbered[1].source_ids))

    given_up = False

    def share(first: int) -> list[Result]:
        waiting, results = deque(ordered[first::count]), list[Result]()
        while waiting and not given_up:  # one batch after the other
            source = len(waiting[0][1].source_ids)
            most = max(1, min(rows, engine.limits.batch, batch_tokens // source, len(waiting)))
            logits = scores or any(request.min_length > 0 for _, request in waiting)
            for result in _Batch(engine, waiting, most, source, logits, scores).run():
                results.append(result)
                if given_up:
                    break
        return results

    if count == 1:
        results = share(0)
    else:
        with ThreadPoolExecutor(count) as pool:
            try:
                results = list(chain.from_iterable(pool.map(share, range(count))))
            except BaseException:  # an error, or Ctrl-C: nobody will take what the other threads would make
                given_up = True
                raise
    return sorted(results, key=lambda result: result.index)


def stream(engine: Engine, request: Request, *, scores: bool = False) -> Iterator[Token]:
    """Answer one request and yield its tokens as they are made, eos too."""
    _check(engine, request)
    logits = scores or request.min_length > 0
    batch = _Batch(engine, deque([(0, request)]), 1, len(request.source_ids), logits, scores, poll=1)
    count = 0
    for slots in batch.steps():
        slot = slots[0]
        for position in range(count, len(slot.ids)):
            last = slot.done and position == len(slot.ids) - 1
            yield Token(slot.ids[position], slot.scores[position] if scores else None, last)
        count = len(slot.ids)


def _check(engine: Engine, request: Request) -> None:
    count, most = len(request.source_ids), engine.limits.source
    if not 1 <= count <= most:
        raise InputError(f"a source of {count} tokens does not fit: give 1 to {most} tokens, eos included")
    if request.max_length is not None and request.max_length < 1:
        raise InputError(f"a maximum length of {request.max_length} makes nothing: give 1 or more")


@dataclass
class _Slot:
    """A request that a row is working on."""

    index: int
    request: Request
    limit: int
    ids: list[int]
    scores: list[float]
    done: bool = False

    @property
    def constrained(self) -> bool:
        """Whether the host must read the next token before the one after it is made."""
        return len(self.ids) < max(len(self.request.prefix), self.request.min_length)


class _Batch:
    """One decoder state and the request of each row; `None` for a row that is free."""

    def __init__(
        self,
        engine: Engine,
        waiting: deque[tuple[int, Request]],
        rows: int,
        source: int,
        logits: bool,
        scores: bool,
        poll: int | None = None,
    ) -> None:
        self._engine, self._waiting, self._scores = engine, waiting, scores
        # How many steps the device may run before the host reads; engines where reading is free leave it at 1.
        self._poll = poll or engine.poll
        self._begun = 0  # steps of the group that is under way, which the device began while the host read
        self._encoded: deque[tuple[int, Request, Memory, int]] = deque()
        self._slots: list[_Slot | None] = [None] * rows
        self._closed = False  # sentences still wait, but for the next batch
        longest = max(self._limit(request) for _, request in waiting)
        first = min(engine.first_target(source), longest)
        self._state: DecoderState = engine.allocate(rows, source, first, logits=logits)

    def run(self) -> Iterator[Result]:
        """Answer the requests that belong in this batch."""
        for slots in self.steps():
            for slot in slots:
                if slot.done:
                    yield Result(slot.index, slot.ids, slot.scores if self._scores else None)

    def steps(self) -> Iterator[list[_Slot]]:
        """Step, and yield the slots that worked; those that are done have left the batch already."""
        while True:
            self._refill()
            working = [slot for slot in self._slots if slot is not None]
            if not working:
                return
            self._make_room(working)
            self._step(working)
            self._slots = [None if slot is None or slot.done else slot for slot in self._slots]
            yield working

    def _limit(self, request: Request) -> int:
        most = self._engine.limits.target
        return most if request.max_length is None else min(request.max_length, most)

    def _refill(self) -> None:
        """Place waiting sentences in the free rows, a group from one encoder run at a time."""
        free = [row for row, slot in enumerate(self._slots) if slot is None]
        while free and (self._encoded or self._encode_group()):
            memory = self._encoded[0][2]
            rows, memory_rows, limits = [], [], []
            while free and self._encoded and self._encoded[0][2] is memory:
                index, request, _, memory_row = self._encoded.popleft()
                slot = _Slot(index, request, self._limit(request), [], [])
                rows.append(free.pop(0))
                memory_rows.append(memory_row)
                limits.append(slot.limit)
                self._slots[rows[-1]] = slot
            self._state.place(rows, memory, memory_rows, limits)

    def _encode_group(self) -> bool:
        """Encode as many sentences as there are rows, ahead of need; False if none is left for this batch."""
        if not self._takes_more():
            return False
        count = min(len(self._waiting), len(self._slots))
        group = [self._waiting.popleft() for _ in range(count)]
        lengths = np.array([len(request.source_ids) for _, request in group], np.int64)
        ids = np.full((count, int(lengths.max())), self._engine.tokens.pad, np.int64)
        for row, (_, request) in enumerate(group):
            ids[row, : lengths[row]] = request.source_ids
        memory = self._engine.encode(ids, lengths)
        self._encoded.extend((index, request, memory, row) for row, (index, request) in enumerate(group))
        return True

    def _takes_more(self) -> bool:
        """Whether the next sentence belongs here: not if sentences of half this width can fill a batch of their own."""
        if not self._waiting:
            return False
        narrow = 2 * len(self._waiting[0][1].source_ids) <= self._state.source
        self._closed = self._closed or (narrow and len(self._waiting) >= len(self._slots))
        return not self._closed

    def _over(self) -> bool:
        """Whether no sentence will be placed any more."""
        return not self._encoded and (self._closed or not self._waiting)

    def _half_free(self, working: list[_Slot]) -> bool:
        return self._over() and 2 * len(working) <= len(self._slots)

    def _make_room(self, working: list[_Slot]) -> None:
        """Move to longer caches if a row has filled them, and to fewer rows if half of them are free for good."""
        made = max(len(slot.ids) for slot in working)
        if self._begun or (made < self._state.target and not self._half_free(working)):
            return
        keep = self._closed_ranks() if self._over() else list(range(len(self._slots)))
        target = self._state.target
        while target <= made:
            target = min(2 * target, max(slot.limit for slot in working))
        self._state = self._state.moved(keep, target)
        self._slots = [self._slots[row] for row in keep]

    def _closed_ranks(self) -> list[int]:
        """The rows that work; those at the end fill the gaps at the front, so that few rows have to move."""
        rows = [row for row, slot in enumerate(self._slots) if slot is not None]
        behind = deque(row for row in rows if row >= len(rows))
        return [row if self._slots[row] is not None else behind.popleft() for row in range(len(rows))]

    def _step(self, working: list[_Slot]) -> None:
        careful = self._scores or any(slot.constrained for slot in working)
        # Where rows stay as they are, a device goes on while the host reads: with half as many steps in a group, since
        # those of two groups are lost after the last row has finished. Finished rows are inert meanwhile.
        ahead = self._engine.poll > 1 and not careful and self._over() and not self._half_free(working)
        group = 1 if careful else max(self._poll // 2, 1) if ahead else self._poll
        self._begun = self._begun or self._begin(group, working)
        following = self._begin(group, working) if ahead else 0
        made = self._state.read().token_ids
        self._begun = following
        if careful:
            _constrain(self._state, self._slots, made[0], self._scores, self._engine.tokens)
        else:
            self._take(made)

    def _begin(self, count: int, working: list[_Slot]) -> int:
        """Begin a group of up to `count` steps, behind the one that is under way; return how many they are."""
        room = self._state.target - max(len(slot.ids) for slot in working) - self._begun
        most = max(slot.limit - len(slot.ids) for slot in working) - self._begun
        steps = max(0, min(count, room, most))
        if steps:
            self._state.step(steps)
        return steps

    def _take(self, made: Int64) -> None:
        eos = self._engine.tokens.eos
        for row, slot in enumerate(self._slots):
            if slot is None:
                continue
            for token in made[:, row].tolist():
                slot.ids.append(token)
                if token == eos or len(slot.ids) >= slot.limit:
                    slot.done = True
                    break


def _constrain(
    state: DecoderState, slots: Sequence[_Slot | None], made: Int64, scores: bool, tokens: SpecialTokens
) -> None:
    """Take one token for each row with its score; a prefix or the minimum length may replace it."""
    logits: Float32 | None = state.logits() if scores else None
    changed: list[tuple[int, int, bool]] = []
    for row, slot in enumerate(slots):
        if slot is None:
            continue
        position, token = len(slot.ids), int(made[row])
        if position < len(slot.request.prefix):
            token = int(slot.request.prefix[position])
        elif token == tokens.eos and position < slot.request.min_length:
            logits = state.logits() if logits is None else logits
            token = _best_but(logits[row], tokens.eos)
        slot.ids.append(token)
        slot.done = token == tokens.eos or len(slot.ids) >= slot.limit
        if token != made[row]:
            changed.append((row, token, slot.done))
        if scores and logits is not None:
            slot.scores.append(_log_probability(logits[row], token))
    if changed:
        state.override(*map(list, zip(*changed, strict=True)))


def _best_but(logits: Float32, excluded: int) -> int:
    """The best id except one; the first of equals, as with ArgMax."""
    allowed = logits.astype(np.float32)
    allowed[excluded] = -np.inf
    return int(allowed.argmax())


def _log_probability(logits: Float32, token: int) -> float:
    shifted = logits.astype(np.float64) - float(logits.max())
    return float(shifted[token] - np.log(np.exp(shifted).sum()))
