"""An engine in which eos ends nothing: a sentence makes as many tokens as it may, by the real greedy loop.

Random ids, or a model with random weights, end anywhere: how much is computed would differ from model to model. Here
each eos is taken back and goes on as any other token. Where looking at the ids costs nothing (`poll` is 1) these are
the ids of a decoder without eos. Elsewhere a row that meets eos stands still until the host looks again; the steps that
it takes cost the same, and its ids are filled up with eos.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from txport.runtime.device.engine import DeviceEngine
from txport.runtime.engine import DecoderState, Engine, Float32, Int64, Memory, StepOutput


class EndlessEngine:
    """`engine`, but that eos ends nothing; see `txport.runtime.engine.Engine`."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.name, self.limits, self.poll = engine.name, engine.limits, engine.poll
        self.tokens = replace(engine.tokens, eos=-1)

    def encode(self, input_ids: Int64, source_lengths: Int64) -> Memory:
        """As the engine's."""
        return self._engine.encode(input_ids, source_lengths)

    def encode_and_wait(self, input_ids: Int64, source_lengths: Int64) -> None:
        """Run the encoder until it is done, on a device too."""
        self._engine.encode(input_ids, source_lengths)
        if isinstance(self._engine, DeviceEngine):
            self._engine.synchronize()

    def first_target(self, source: int) -> int:
        """As the engine's."""
        return self._engine.first_target(source)

    def allocate(self, rows: int, source: int, target: int, *, logits: bool = False) -> "EndlessState":
        """As the engine's."""
        return EndlessState(self._engine.allocate(rows, source, target, logits=logits), self._engine.tokens.eos)


class EndlessState:
    """A state whose rows are never finished by `eos`; see `txport.runtime.engine.DecoderState`."""

    def __init__(self, state: DecoderState, eos: int) -> None:
        self._state, self._eos = state, eos
        self.rows, self.source, self.target = state.rows, state.source, state.target

    def place(
        self, rows: Sequence[int], memory: Memory, memory_rows: Sequence[int], target_limits: Sequence[int]
    ) -> None:
        """As the state's."""
        self._state.place(rows, memory, memory_rows, target_limits)

    def step(self, count: int = 1) -> None:
        """As the state's."""
        self._state.step(count)

    def read(self) -> StepOutput:
        """What was made; rows that met eos go on from it."""
        output = self._state.read()
        met = output.token_ids == self._eos
        if not met.any():
            return output
        rows = np.flatnonzero(met.any(axis=0)).tolist()
        ids, finished = output.token_ids.copy(), output.finished.copy()
        for row in rows:
            ids[int(met[:, row].argmax()) :, row] = self._eos
        finished[rows] = False
        self._state.override(rows, [self._eos] * len(rows), [False] * len(rows))
        return StepOutput(ids, finished)

    def override(self, rows: Sequence[int], token_ids: Sequence[int], finished: Sequence[bool]) -> None:
        """As the state's."""
        self._state.override(rows, token_ids, finished)

    def logits(self) -> Float32:
        """As the state's."""
        return self._state.logits()

    def moved(self, rows: Sequence[int], target: int) -> "EndlessState":
        """As the state's."""
        return EndlessState(self._state.moved(rows, target), self._eos)
