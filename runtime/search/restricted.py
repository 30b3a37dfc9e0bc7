"""Restriction to a sentence's own words, over engines that have none themselves: the host masks their logits."""

from collections.abc import Sequence
from typing import TypeVar

import numpy as np
from txport.runtime.bundle.schema import Limits, SpecialTokens
from txport.runtime.engine import (
    DecoderState,
    Engine,
    Float32,
    Int64,
    Memory,
    Sources,
    StepOutput,
    Top,
    of_rows,
)

T = TypeVar("T")


def restricting(engine: Engine) -> Engine:
    """Return the engine itself if its states have `restrict`, else one over it whose states do."""
    if engine.restricts:
        return engine
    return RestrictedEngine(engine)


class RestrictedEngine:
    """An engine whose rows choose among words of their own; it reads all logits of each step."""

    restricts = True
    recomputes_logits = False
    poll = 1

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.name: str = engine.name
        self.limits: Limits = engine.limits
        self.tokens: SpecialTokens = engine.tokens
        self.vocabulary: int = engine.vocabulary
        self.ragged: bool = engine.ragged

    def encode(self, input_ids: Sources, source_lengths: Int64) -> Memory:
        """Run the encoder; see `txport.runtime.engine.Engine.encode`."""
        return self._engine.encode(input_ids, source_lengths)

    def first_target(self, source: int) -> int:
        """Length of the first caches; see `txport.runtime.engine.Engine.first_target`."""
        return self._engine.first_target(source)

    def allocate(
        self, rows: int, source: int, target: int, *, logits: bool = False, top: int = 0, beams: int = 1
    ) -> "RestrictedState":
        """Buffers of a batch; see `txport.runtime.engine.Engine.allocate`."""
        return RestrictedState(
            self._engine.allocate(rows, source, target, logits=True, beams=beams), _Rows(rows), self.tokens
        )


class _Rows:
    """Words, limit, tokens made and flag of each row."""

    def __init__(self, count: int) -> None:
        self.words: list[Int64 | None] = [None] * count
        self.limits = [0] * count
        self.made = [0] * count
        self.finished = [True] * count

    def taken(self, rows: Sequence[int]) -> "_Rows":
        """Return these rows, as often as each is named."""
        new = _Rows(0)
        for name in vars(self):
            setattr(new, name, [getattr(self, name)[row] for row in rows])
        return new


class RestrictedState(DecoderState):
    """A state whose logits outside a row's words are -inf; see `txport.runtime.engine.DecoderState`."""

    def __init__(self, state: DecoderState, rows: _Rows, tokens: SpecialTokens) -> None:
        self._state = state
        self._rows = rows
        self._tokens = tokens
        self.rows: int = state.rows
        self.source: int = state.source
        self.target: int = state.target
        self._logits: Float32 | None = None
        self._unread: StepOutput | None = None

    def place(
        self, rows: Sequence[int], memory: Memory, memory_rows: Sequence[int], target_limits: Sequence[int]
    ) -> None:
        """Start new sentences, of all words."""
        self._state.place(rows, memory, memory_rows, target_limits)
        for row, limit in zip(rows, target_limits, strict=True):
            self._rows.words[row] = None
            self._rows.limits[row] = limit
            self._rows.made[row] = 0
            self._rows.finished[row] = False

    def restrict(self, rows: Sequence[int], words: Sequence[Int64]) -> None:
        """Let these rows choose among these words only."""
        for row, each in zip(rows, words, strict=True):
            self._rows.words[row] = each

    def step(self, count: int = 1) -> None:
        """Advance every unfinished row by up to `count` tokens, each chosen here."""
        made = np.stack([self._step() for _ in range(count)])
        self._unread = StepOutput(made, np.array(self._rows.finished))

    def _step(self) -> Int64:
        rows = self._rows
        working = [row for row in range(self.rows) if not rows.finished[row]]
        if not working:
            return np.full(self.rows, self._tokens.pad, np.int64)
        self._state.step()
        token_ids: Int64 = self._state.read().token_ids[0].copy()
        self._logits = self._masked(self._state.logits())
        changed = list[int]()
        for row in working:
            rows.made[row] += 1
            token = int(self._logits[row].argmax())
            rows.finished[row] = token == self._tokens.eos or rows.made[row] >= rows.limits[row]
            if token != token_ids[row]:
                token_ids[row] = token
                changed.append(row)
        if changed:
            self._state.override(changed, token_ids[changed].tolist(), [rows.finished[row] for row in changed])
        return token_ids

    def _masked(self, logits: Float32) -> Float32:
        masked = logits.copy()
        for row, words in enumerate(self._rows.words):
            if words is not None:
                masked[row] = -np.inf
                masked[row, words] = logits[row, words]
        return masked

    def read(self) -> StepOutput:
        """Return the tokens of the last group of steps."""
        assert self._unread is not None, "nothing to read"
        output = self._unread
        self._unread = None
        return output

    def override(self, rows: Sequence[int], token_ids: Sequence[int], finished: Sequence[bool]) -> None:
        """Replace the last token of these rows and their flag."""
        self._state.override(rows, token_ids, finished)
        for row, done in zip(rows, finished, strict=True):
            self._rows.finished[row] = done

    def logits(self, rows: Sequence[int] | None = None) -> Float32:
        """float32 `[len(rows), target_vocabulary]` of the last step; -inf outside a row's words."""
        assert self._logits is not None, "no step was made"
        return of_rows(self._logits, rows)

    def top(self, k: int) -> Top:
        """Return the best tokens among the words of each row; a row that has fewer has others, of the logit -inf."""
        with np.errstate(invalid="ignore"):  # of rows that were never placed
            return super().top(k)

    def reorder(self, rows: Sequence[int]) -> None:
        """Row i continues what row `rows[i]` was."""
        self._state.reorder(rows)
        self._rows = self._rows.taken(rows)

    def resized(self, rows: Sequence[int], target: int) -> "RestrictedState":
        """Return a new state of these rows, as often as each is named."""
        return RestrictedState(self._state.resized(rows, target), self._rows.taken(rows), self._tokens)
