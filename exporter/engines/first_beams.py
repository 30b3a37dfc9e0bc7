"""Greedy search with the step of beam search, to compare its engines with golden cases."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from txport.runtime.engine import DecoderState, Engine, Float32, Memory, StepOutput


class FirstBeams:
    """`Engine` whose rows are the first of several beams. The other beams are finished from the start.

    Args:
        engine: engine with the step of beam search.
        beams: number of beams of a sentence.
    """

    def __init__(self, engine: Engine, beams: int) -> None:
        self._engine = engine
        self._beams = beams
        self.limits = replace(engine.limits, batch=engine.limits.batch // beams)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def allocate(self, rows: int, source: int, target: int, *, logits: bool = False, **_outputs: object) -> "FirstRows":
        """Return a state for this number of sentences."""
        beams = self._beams
        state = self._engine.allocate(rows * beams, source, target, logits=logits, top=2 * beams, beams=beams)
        return FirstRows(state, beams)


class FirstRows:
    """Methods of a `DecoderState` that greedy search uses, applied to the first beam of each sentence."""

    def __init__(self, state: DecoderState, beams: int) -> None:
        self._state = state
        self._beams = beams
        self.rows = state.rows // beams
        self.source = state.source
        self.target = state.target
        self.step = state.step

    def _first(self, rows: Sequence[int]) -> list[int]:
        return [row * self._beams for row in rows]

    def place(self, rows: Sequence[int], memory: Memory, memory_rows: Sequence[int], limits: Sequence[int]) -> None:
        """Start sentences; see `DecoderState.place`."""
        self._state.place(self._first(rows), memory, memory_rows, limits)

    def read(self) -> StepOutput:
        """Wait for tokens; see `DecoderState.read`."""
        output = self._state.read()
        return StepOutput(output.token_ids[:, :: self._beams], output.finished[:: self._beams])

    def override(self, rows: Sequence[int], token_ids: Sequence[int], finished: Sequence[bool]) -> None:
        """Replace tokens; see `DecoderState.override`."""
        self._state.override(self._first(rows), token_ids, finished)

    def logits(self, rows: Sequence[int]) -> Float32:
        """Return the logits of sentences; see `DecoderState.logits`."""
        return self._state.logits(self._first(rows))

    def resized(self, rows: Sequence[int], target: int) -> "FirstRows":
        """Move sentences; see `DecoderState.resized`."""
        all_rows = [first + beam for first in self._first(rows) for beam in range(self._beams)]
        return FirstRows(self._state.resized(all_rows, target), self._beams)
