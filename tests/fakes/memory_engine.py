"""A decoder in plain numpy that checks that its callers keep the rules of `txport.runtime.engine`.

The model is a hash. The logits of a step depend on the source ids and on all tokens of the row so far. A token in a
wrong row, at a wrong position, or from an old cache therefore changes the rest of the answer. Tokens are stored in the
caches, and each step reads them from there.
"""

import hashlib
from collections import deque
from collections.abc import Sequence
from threading import Event

import numpy as np
from txport.runtime.bundle.schema import Limits, SpecialTokens
from txport.runtime.engine import (
    FIRST_TARGET,
    DecoderState,
    Float32,
    Int64,
    Memory,
    Sources,
    StepOutput,
    Top,
    of_rows,
    top_of,
)

TOKENS = SpecialTokens(pad=0, unk=1, bos=2, eos=3)
LIMITS = Limits(4, 12, 100)
VOCABULARY = 12
SIZE = 3  # size of a vector


def vectors_of(ids: Sequence[int]) -> Float32:
    """Return float32 `[n, SIZE]` vectors that the model reads as these ids."""
    return np.repeat(np.array([ids], np.float32).T, SIZE, axis=1)


def logits_after(source: Sequence[int], fed: Sequence[int], eos_weight: float) -> Float32:
    """Return float32 `[VOCABULARY]` logits after bos and the tokens so far."""
    digest = hashlib.sha256(repr((list(map(int, source)), list(map(int, fed)))).encode()).digest()
    seed = int.from_bytes(digest[:8], "little")
    logits = np.random.default_rng(seed).standard_normal(VOCABULARY).astype(np.float32)
    logits[[TOKENS.pad, TOKENS.bos]] = -9.0
    logits[TOKENS.eos] += eos_weight
    return logits


class MemoryEngine:
    """An `Engine` that checks and records all calls."""

    name = "memory"
    vocabulary = VOCABULARY
    ragged = False
    restricts = True
    recomputes_logits = False

    def __init__(self, limits: Limits = LIMITS, poll: int = 1, eos_weight: float = 0.0) -> None:
        self.limits, self.tokens, self.poll, self.eos_weight = limits, TOKENS, poll, eos_weight
        self.steps: list[int] = []  # rows of each step
        self.ahead: list[int] = []  # steps of each group that began before another was read
        self.encoded: list[int] = []  # sentences of each encoder run
        self.allocated: list[tuple[int, int, int]] = []  # rows, source, target
        self.moves: list[tuple[int, int]] = []  # rows, target

    def first_target(self, source: int) -> int:
        assert 1 <= source <= self.limits.source
        return FIRST_TARGET

    def encode(self, input_ids: Sources, source_lengths: Int64) -> list[tuple[int, ...]]:
        if input_ids.ndim == 3:  # vectors: of ids, which `vectors_of` made
            input_ids = input_ids[:, :, 0].astype(np.int64)
        rows, width = input_ids.shape
        assert input_ids.dtype == source_lengths.dtype == np.int64 and source_lengths.shape == (rows,)
        assert 1 <= rows <= self.limits.batch and 1 <= width <= self.limits.source
        assert source_lengths.max() == width and source_lengths.min() >= 1
        for ids, length in zip(input_ids, source_lengths, strict=True):
            assert (ids[length:] == TOKENS.pad).all()
        self.encoded.append(rows)
        return [tuple(ids[:length].tolist()) for ids, length in zip(input_ids, source_lengths, strict=True)]

    def allocate(
        self, rows: int, source: int, target: int, *, logits: bool = False, top: int = 0, beams: int = 1
    ) -> "MemoryState":
        assert 0 <= top <= VOCABULARY
        self.allocated.append((rows, source, target))
        return MemoryState(self, rows, source, target, logits, top)


class Gate(MemoryEngine):
    """An engine whose encoder waits for permission to continue."""

    def __init__(self, rows: int = 4, eos_weight: float = -99.0) -> None:
        super().__init__(Limits(rows, 12, 100), eos_weight=eos_weight)
        self.arrived, self.open = Event(), Event()

    def encode(self, input_ids: Int64, source_lengths: Int64) -> list[tuple[int, ...]]:
        self.arrived.set()
        assert self.open.wait(60)
        return super().encode(input_ids, source_lengths)


class MemoryState(DecoderState):
    """A `DecoderState`: rows step by the semantics of the decoder_step graph."""

    def __init__(self, engine: MemoryEngine, rows: int, source: int, target: int, logits: bool, top: int) -> None:
        assert 1 <= rows <= engine.limits.batch and 1 <= source <= engine.limits.source
        assert 1 <= target <= engine.limits.target
        self.engine, self.rows, self.source, self.target = engine, rows, source, target
        self.valid, self.want_logits, self.most_top = True, logits, top
        self.token_ids = np.zeros(rows, np.int64)
        self.positions = np.zeros(rows, np.int64)
        self.finished = np.ones(rows, bool)
        self.limits = np.ones(rows, np.int64)
        self.sources: list[tuple[int, ...]] = [()] * rows
        self.words: list[Int64 | None] = [None] * rows
        self.cache = np.full((rows, target), -1, np.int64)
        self.last_logits: Float32 | None = None
        self.unread: deque[StepOutput] = deque()

    def place(
        self, rows: Sequence[int], memory: Memory, memory_rows: Sequence[int], target_limits: Sequence[int]
    ) -> None:
        assert self.valid and not self.unread, "place before the steps were read"
        assert len(rows) == len(memory_rows) == len(target_limits) == len(set(rows)) > 0
        for row, memory_row, limit in zip(rows, memory_rows, target_limits, strict=True):
            assert self.finished[row], f"row {row} still works"
            assert len(memory[memory_row]) <= self.source, "the sentence is wider than the buffers"
            assert 1 <= limit <= self.engine.limits.target
            self.sources[row], self.limits[row] = memory[memory_row], limit
            self.token_ids[row], self.positions[row], self.finished[row] = TOKENS.bos, 0, False
            self.words[row] = None

    def restrict(self, rows: Sequence[int], words: Sequence[Int64]) -> None:
        for row, each in zip(rows, words, strict=True):
            assert self.positions[row] == 0 and not self.finished[row] and (np.diff(each) > 0).all()
            self.words[row] = each

    def step(self, count: int = 1) -> None:
        assert self.valid and count >= 1
        assert len(self.unread) < (2 if self.engine.poll > 1 else 1), "more groups than the host may leave unread"
        # The host cannot know the results of an unread group.
        assert self.unread or not self.finished.all(), "a step in which no row works"
        if self.unread:
            self.engine.ahead.append(count)
        made = np.stack([self._step() for _ in range(count)])
        self.unread.append(StepOutput(made, self.finished.copy()))

    def _step(self) -> Int64:
        self.engine.steps.append(self.rows)
        self.last_logits = np.zeros((self.rows, VOCABULARY), np.float32)
        for row in range(self.rows):
            position = self.positions[row]
            assert position < self.target, f"row {row} is stepped past its cache of {self.target}"
            self.cache[row, position] = self.token_ids[row]
            fed = self.cache[row, : position + 1]
            logits = logits_after(self.sources[row], fed, self.engine.eos_weight)
            if (words := self.words[row]) is not None:
                logits[np.setdiff1d(np.arange(VOCABULARY), words)] = -np.inf
            self.last_logits[row] = logits
            token = TOKENS.pad if self.finished[row] else int(self.last_logits[row].argmax())
            self.finished[row] |= token == TOKENS.eos or position + 1 >= self.limits[row]
            self.positions[row] += not self.finished[row]
            self.token_ids[row] = token
        return self.token_ids.copy()

    def read(self) -> StepOutput:
        assert self.valid and self.unread, "nothing to read"
        return self.unread.popleft()

    def override(self, rows: Sequence[int], token_ids: Sequence[int], finished: Sequence[bool]) -> None:
        assert self.valid and not self.unread and len(rows) == len(token_ids) == len(finished) > 0
        for row, token, done in zip(rows, token_ids, finished, strict=True):
            full = self.positions[row] + self.finished[row] >= self.limits[row]
            # An end inside the prefix does not finish the row.
            assert token in (TOKENS.eos, TOKENS.pad) or done == full, "a row ends with eos, at its limit, or given up"
            assert done or not full
            self.positions[row] += int(self.finished[row]) - int(done)
            self.token_ids[row], self.finished[row] = token, done

    def logits(self, rows: Sequence[int] | None = None) -> Float32:
        assert self.valid and self.want_logits and self.last_logits is not None
        return of_rows(self.last_logits, rows)

    def top(self, k: int) -> Top:
        assert self.valid and 1 <= k <= self.most_top and self.last_logits is not None
        return top_of(self.last_logits, k)

    def reorder(self, rows: Sequence[int]) -> None:
        assert self.valid and not self.unread and len(rows) == self.rows
        keep = list(rows)
        for name in ("token_ids", "positions", "finished", "limits", "cache"):
            setattr(self, name, getattr(self, name)[keep])
        self.sources, self.words = ([each[row] for row in keep] for each in (self.sources, self.words))
        self.last_logits = None

    def resized(self, rows: Sequence[int], target: int) -> "MemoryState":
        assert self.valid and not self.unread and 1 <= len(rows) <= self.engine.limits.batch
        self.valid = False
        self.engine.moves.append((len(rows), target))
        new = MemoryState(self.engine, len(rows), self.source, target, self.want_logits, self.most_top)
        keep = list(rows)
        assert (self.positions[keep] < target).all(), "a row is longer than its new cache"
        for name in ("token_ids", "positions", "finished", "limits"):
            setattr(new, name, getattr(self, name)[keep])
        new.sources, new.words = ([each[row] for row in keep] for each in (self.sources, self.words))
        shared = min(target, self.target)
        new.cache[:, :shared] = self.cache[keep, :shared]
        return new
