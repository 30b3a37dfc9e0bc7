"""An engine that ignores eos: every sentence generates the maximum number of tokens, in the real decoding loop.

With random ids or random weights, a sentence may end at any length, so the amount of work would differ between models.
Therefore each eos is undone and treated as an ordinary token. If reading is free (`poll` is 1), the ids are those of a
decoder without eos. Otherwise, a row that has generated eos is idle until no step is in flight. The steps until then
take the same time, and the missing ids are replaced by eos. For the fused engine, finished rows cost nothing, so its
eos is set to another id that no answer contains.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
from txport.benchmarks.contestants.backend import Task
from txport.runtime.bundle.manifest import Manifest
from txport.runtime.device.engine import DeviceEngine
from txport.runtime.engine import DecoderState, Engine, Int64, StepOutput
from txport.runtime.engines.native import NativeEngine
from txport.runtime.search.decoding import decode_all
from txport.runtime.search.requests import Request
from txport.runtime.search.settings import GREEDY, Search

_TRIES = 8


class _Wrapper:
    """A wrapper that delegates all attributes that it does not override."""

    def __init__(self, wrapped: Any) -> None:
        self._wrapped = wrapped

    def __getattr__(self, name: str) -> Any:
        return getattr(self._wrapped, name)


def ignore_eos(engine: Engine) -> Engine:
    """Return an engine that ignores eos and otherwise behaves like `engine`."""
    return cast(Engine, _IgnoreEosEngine(engine))


def search_of(task: Task) -> Search:
    """Return the search of a task."""
    if task.beam > 1:
        return Search(task.beam, n_best=task.beam, early_stopping=True)
    return GREEDY


def fused_without_eos(bundle: Path, threads: int, task: Task) -> Engine:
    """Return a fused engine that generates all tokens of a fixed task.

    Raises:
        ValueError: all tried ids occur in answers.
    """
    manifest = Manifest.load(bundle)
    requests = [Request(source, task.target, search=search_of(task)) for source in task.sources]
    generated_ids: set[int] = {manifest.tokens.eos}
    for _ in range(_TRIES):
        ids = range(min(manifest.model.source_vocabulary, manifest.model.target_vocabulary))
        stand_in = next((token for token in ids if token not in generated_ids), manifest.tokens.eos)
        engine = NativeEngine(bundle, replace(manifest, tokens=replace(manifest.tokens, eos=stand_in)), threads)
        # Only final hypotheses are checked. A hypothesis that was dropped earlier may contain the id without an effect
        # on the time.
        answers = [generated_ids.ids for result in decode_all(engine, requests) for generated_ids in result.hypotheses]
        if all(stand_in not in ids for ids in answers):
            return engine
        generated_ids.update(*answers)
        del engine  # free its memory before the next one is opened
    raise ValueError(f"no id was found in {_TRIES} tries that ends no answer")


def encode_and_wait(engine: Engine, input_ids: Int64, source_lengths: Int64) -> None:
    """Run the encoder, and wait for its end on a device as well."""
    engine.encode(input_ids, source_lengths)
    if isinstance(engine, DeviceEngine):
        engine.synchronize()


class _IgnoreEosEngine(_Wrapper):
    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        self.tokens = replace(engine.tokens, eos=-1)

    def allocate(
        self, rows: int, source: int, target: int, *, logits: bool = False, top: int = 0, beams: int = 1
    ) -> "_IgnoreEosState":
        state = self._wrapped.allocate(rows, source, target, logits=logits, top=top, beams=beams)
        return _IgnoreEosState(state, self._wrapped.tokens.eos)


class _IgnoreEosState(_Wrapper):
    def __init__(self, state: DecoderState, eos: int) -> None:
        super().__init__(state)
        self._eos = eos
        self._groups = 0  # number of unread groups of steps
        self._idle = set[int]()  # rows that generated eos and have not been continued

    def step(self, count: int = 1) -> None:
        self._groups += 1
        self._wrapped.step(count)

    def read(self) -> StepOutput:
        """Return the ids of the steps. Rows with eos continue as soon as no step is in flight."""
        output: StepOutput = self._wrapped.read()
        self._groups -= 1
        ids = output.token_ids.copy()
        finished = output.finished.copy()
        ids[:, list(self._idle)] = self._eos
        met = ids == self._eos
        for row in np.flatnonzero(met.any(axis=0)).tolist():
            ids[int(met[:, row].argmax()) :, row] = self._eos
            self._idle.add(row)
        rows = sorted(self._idle)
        finished[rows] = False
        if rows and not self._groups:
            self._wrapped.override(rows, [self._eos] * len(rows), [False] * len(rows))
            self._idle.clear()
        return StepOutput(ids, finished)

    def resized(self, rows: Any, target: int) -> "_IgnoreEosState":
        return _IgnoreEosState(self._wrapped.resized(rows, target), self._eos)
