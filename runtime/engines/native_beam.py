"""Beam search by the library of a native engine: as `txport.runtime.search.beam`, which it is tested against.

Between steps of a small model Python takes longer than the step.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

from txport.runtime.engine import DecoderState, Int64
from txport.runtime.engines.native_beams import NativeBeams, NativeHypotheses
from txport.runtime.engines.native_state import LibraryEngine, NativeState
from txport.runtime.search.beam import candidate_count
from txport.runtime.search.requests import Hypothesis, Request, Result, Slot
from txport.runtime.search.rules import Constraints
from txport.runtime.search.settings import Search


@dataclass
class _Slot(Slot):
    """A sentence whose hypotheses the library has; `ids` and `scores` stay empty."""

    hypotheses: NativeHypotheses | None = None

    def result(self) -> Result:
        """Return the best hypotheses that ended."""
        assert self.hypotheses is not None
        best = [Hypothesis(*answer) for answer in self.hypotheses.answers()]
        if not self.request.scores:
            best = [replace(hypothesis, scores=None) for hypothesis in best]
        return Result(self.index, best)


class NativeBeamSearch:
    """The policy of beam search; see `txport.runtime.search.scheduler.Policy`.

    Args:
        engine: what runs the model.
        search: its settings.
    """

    def __init__(self, engine: LibraryEngine, search: Search) -> None:
        settings = {**asdict(search), **asdict(search.rules)}
        for name in ("rules", "sampling", "alternatives", "shortlist"):
            del settings[name]
        self._beams = NativeBeams(engine, **settings)
        self._more = engine.poll - 1
        self.rows = search.beam
        # Rules that ban some of the best leave enough of a few more.
        if search.rules.change_scores:
            more = search.beam
        else:
            more = 0
        self.top = min(candidate_count(search, Constraints(search.rules, engine.tokens)) + more, engine.vocabulary)

    def slot(self, index: int, request: Request, limit: int) -> Slot:
        """Return the slot of a request."""
        hypotheses = self._beams.sentence(limit, request.min_length, request.prefix, request.forced)
        return _Slot(index, request, limit, hypotheses=hypotheses)

    def needs_logits(self, request: Request) -> bool:
        """Return whether a state stores logits, for a repetition penalty. Otherwise they are computed on reading."""
        return request.search.rules.repetition_penalty != 1

    def steps_one_by_one(self, slots: Sequence[Slot]) -> bool:
        """Return whether the host sees the next step: always."""
        return True

    def choose(self, state: DecoderState, slots: Sequence[Slot | None], token_ids: Int64, one_by_one: bool) -> None:
        """Continue the best hypotheses, by further steps as well, until a sentence ends."""
        assert isinstance(state, NativeState)
        steps, done = self._beams.search(state, [getattr(slot, "hypotheses", None) for slot in slots], self._more)
        for slot, ended in zip(slots, done, strict=True):
            if slot is not None:
                slot.length += steps
                slot.done = ended
