"""Beam search in the library of the fused engine, with the results of `txport.runtime.search.beam`.

With small models, the Python code between two steps would take longer than a step.
"""

import ctypes
from collections.abc import Sequence
from ctypes import byref, c_double, c_int64, c_size_t, c_void_p
from dataclasses import asdict, dataclass, replace

import numpy as np
from txport.runtime.engine import DecoderState, Int64
from txport.runtime.engines.native_state import Handle, LibraryEngine, NativeState, address, check
from txport.runtime.search.beam import candidate_count
from txport.runtime.search.requests import Hypothesis, Request, Result, Slot
from txport.runtime.search.rules import Constraints
from txport.runtime.search.settings import Search


class _Ids(ctypes.Structure):
    """The C struct `txport_ids`; the array must outlive it."""

    _fields_ = [("values", c_void_p), ("count", c_size_t)]

    @classmethod
    def of(cls, ids: Int64) -> "_Ids":
        return cls(address(ids), len(ids))


class _Settings(ctypes.Structure):
    """The C struct `txport_beam_settings`."""

    _fields_ = [
        ("struct_size", c_size_t),
        *((name, c_int64) for name in ("beam", "n_best")),
        *((name, c_double) for name in ("length_penalty", "patience")),
        ("early_stopping", c_int64),
        ("repetition_penalty", c_double),
        *((name, c_int64) for name in ("no_repeat_ngram", "forced_end", "renormalize")),
        ("bad_words", ctypes.POINTER(_Ids)),
        ("bad_word_count", c_size_t),
        *((name, _Ids) for name in ("suppress", "begin_suppress", "end_ids")),
    ]


class _Sentence(ctypes.Structure):
    """The C struct `txport_beam_sentence`."""

    _fields_ = [
        ("struct_size", c_size_t),
        *((name, c_int64) for name in ("limit", "min_length")),
        ("prefix", _Ids),
        ("forced", c_int64),
    ]


class NativeHypotheses:
    """Hypotheses of one sentence, stored in the library."""

    def __init__(self, library: ctypes.CDLL, handle: Handle) -> None:
        self._library = library
        self.handle = handle

    def answers(self) -> list[tuple[list[int], list[float], float]]:
        """Return ids, scores of ids and total score of each hypothesis of a finished sentence, the best first."""
        answers: list[tuple[list[int], list[float], float]] = []
        ids = c_void_p()
        scores = c_void_p()
        count = c_int64()
        score = c_double()
        arguments = byref(ids), byref(scores), byref(count), byref(score)
        while True:
            check(self._library, self._library.txport_hypotheses_answer(self.handle.value, len(answers), *arguments))
            if not count.value:
                return answers
            id_array = (c_int64 * count.value).from_address(ids.value or 0)
            parts = (c_double * count.value).from_address(scores.value or 0)
            answers.append(([*id_array], [*parts], score.value))


class NativeBeams:
    """Settings of a beam search, stored in the library; see `txport.runtime.search.settings`.

    Raises:
        InputError: a setting is out of range.
    """

    def __init__(
        self,
        engine: LibraryEngine,
        *,
        bad_words: Sequence[Sequence[int]],
        suppress: Sequence[int],
        begin_suppress: Sequence[int],
        end_ids: Sequence[int],
        forced_end: int | None,
        early_stopping: bool | str,
        **numbers: float,
    ) -> None:
        lists = {"suppress": suppress, "begin_suppress": begin_suppress, "end_ids": end_ids}
        arrays = {name: np.array(ids, np.int64) for name, ids in lists.items()}
        words = [np.array(word, np.int64) for word in bad_words]
        settings = _Settings(
            struct_size=ctypes.sizeof(_Settings),
            early_stopping=2 if early_stopping == "never" else int(bool(early_stopping)),
            forced_end=-1 if forced_end is None else forced_end,
            bad_words=(_Ids * len(words))(*map(_Ids.of, words)),
            bad_word_count=len(words),
            **{name: _Ids.of(ids) for name, ids in arrays.items()},
            **numbers,
        )
        self._library, handle = engine.library, c_void_p()
        create = self._library.txport_beam_search_create
        check(self._library, create(engine.handle.value, byref(settings), byref(handle)))
        self._handle = Handle(handle, self._library.txport_beam_search_free)

    def sentence(self, limit: int, min_length: int, prefix: Sequence[int], forced: int) -> NativeHypotheses:
        """Return hypotheses for a new sentence; see `txport.runtime.search.requests.Request`."""
        ids = np.array(prefix, np.int64)  # a name of its own, since the C struct does not keep the array alive
        handle = c_void_p()
        fields = _Sentence(ctypes.sizeof(_Sentence), limit, min_length, _Ids.of(ids), forced)
        create = self._library.txport_hypotheses_create
        check(self._library, create(self._handle.value, byref(fields), byref(handle)))
        return NativeHypotheses(self._library, Handle(handle, self._library.txport_hypotheses_free))

    def search(
        self, state: NativeState, sentences: Sequence[NativeHypotheses | None], max_steps: int
    ) -> tuple[int, list[bool]]:
        """Choose tokens after a step has been read, and run up to `max_steps` further steps until a sentence is done.

        Returns:
            the new tokens of each hypothesis, and whether each sentence is done.
        """
        count = len(sentences)
        steps = c_int64()
        handles = (c_void_p * count)(*(None if each is None else each.handle.value.value for each in sentences))
        done = np.empty(count, np.bool_)
        arguments = self._handle.value, count, handles, max_steps, byref(steps), address(done)
        check(self._library, self._library.txport_state_search(state.handle.value, *arguments))
        return steps.value, done.tolist()


@dataclass
class _Slot(Slot):
    """Slot of a sentence whose hypotheses are in the library; `ids` and `scores` stay empty."""

    hypotheses: NativeHypotheses | None = None

    def result(self) -> Result:
        """Return the best finished hypotheses."""
        assert self.hypotheses is not None
        best = [Hypothesis(*answer) for answer in self.hypotheses.answers()]
        if not self.request.scores:
            best = [replace(hypothesis, scores=None) for hypothesis in best]
        return Result(self.index, best)


class NativeBeamSearch:
    """Policy of beam search; see `txport.runtime.search.policy.Policy`.

    Args:
        engine: the fused engine.
        search: the settings of the search.
    """

    def __init__(self, engine: LibraryEngine, search: Search) -> None:
        settings = {**asdict(search), **asdict(search.rules)}
        for name in ("rules", "sampling", "alternatives", "shortlist"):
            del settings[name]
        self._beams = NativeBeams(engine, **settings)
        self._more = engine.poll - 1
        self.rows = search.beam
        # Rules may ban some of the best candidates, so a few more are needed.
        if search.rules.change_scores:
            spare = search.beam
        else:
            spare = 0
        self.top = min(candidate_count(search, Constraints(search.rules, engine.tokens)) + spare, engine.vocabulary)

    def slot(self, index: int, request: Request, limit: int) -> Slot:
        """Return the slot of a request."""
        hypotheses = self._beams.sentence(limit, request.min_length, request.prefix, request.forced)
        return _Slot(index, request, limit, hypotheses=hypotheses)

    def needs_logits(self, request: Request) -> bool:
        """Return whether a state stores logits, for a repetition penalty. Otherwise they are computed when read."""
        return request.search.rules.repetition_penalty != 1

    def steps_one_by_one(self, slots: Sequence[Slot]) -> bool:
        """Return True: the host must read each step before the next one starts."""
        return True

    def choose(self, state: DecoderState, slots: Sequence[Slot | None], token_ids: Int64, one_by_one: bool) -> None:
        """Continue the best hypotheses, with further steps in the library, until a sentence ends."""
        assert isinstance(state, NativeState)
        steps, done = self._beams.search(state, [getattr(slot, "hypotheses", None) for slot in slots], self._more)
        for slot, is_done in zip(slots, done, strict=True):
            if slot is not None:
                slot.length += steps
                slot.done = is_done
