"""The time of a run: when its steps end, when it validates, and that the test ends in time."""

import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from txport.training.run import decoding
from txport.training.run.clock import MOST_RESERVE, Clock
from txport.training.run.decoding import PART, judge
from txport.training.run.pacing import MOST, next_validation


@given(
    minutes=st.floats(0.1, 1e4),
    validation=st.floats(0, 1e4),
    decoding=st.floats(0, 1e4),
    used=st.floats(0, 1e6),
    test=st.floats(0.1, 100),
)
def test_time_is_kept_for_what_follows_the_steps(
    minutes: float, validation: float, decoding: float, used: float, test: float
) -> None:
    clock = Clock(minutes)
    clock.before, clock.test = used, test
    first = clock.done()
    clock.reserve_for(validation, decoding)
    assert 0 <= clock.done() <= 1 and 0 <= first <= 1
    assert clock.limit is not None and clock.reserve <= MOST_RESERVE * clock.limit
    assert (clock.done() == 1) == (clock.seconds >= clock.limit - clock.reserve)


def test_the_time_before_an_interruption_counts() -> None:
    clock = Clock(1, time.monotonic() - 10)
    clock.before = 30
    assert clock.seconds == pytest.approx(40, abs=1) and clock.left == pytest.approx(20, abs=1)
    assert Clock(None).left is None and Clock(None).done() == 0


class Words:
    """Stands for a tokenizer and an engine where only the order of work matters."""

    def __init__(self, seconds: float) -> None:
        self.seconds, self.clock, self.seen = seconds, 0.0, list[str]()

    def translate(self, engine: Any, tokenizer: Any, sentences: list[str]) -> list[str]:
        self.clock += self.seconds * len(sentences)
        self.seen += sentences
        return [sentence.upper() for sentence in sentences]


@given(count=st.integers(1, 700), left=st.none() | st.floats(-5, 900))
def test_the_test_takes_the_time_that_is_left(count: int, left: float | None) -> None:
    words, told = Words(1.0), list[tuple[int, int]]()
    pairs = [(f"a {number}", f"A {number}") for number in range(count)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(decoding, "translate", words.translate)
        remaining = lambda: None if left is None else left - words.clock  # noqa: E731
        scores = judge(None, None, pairs, lambda *state: told.append(state), remaining)  # type: ignore[arg-type]
    assert scores.exact == 1 and scores.sentences == len(words.seen) == len(set(words.seen))
    if left is None:
        assert scores.sentences == count
    else:
        assert words.clock <= max(left, min(PART, count))
        assert scores.sentences == count or left - words.clock < PART
    assert told[0] == (0, count) and told[-1] == (scores.sentences, count)


@given(seconds=st.floats(10, 1e5), took=st.floats(0.001, 100), start=st.floats(0, 0.5))
def test_validations_take_a_tenth_of_the_time(seconds: float, took: float, start: float) -> None:
    """But for the first and the last: what they take is only known afterwards."""
    now, count = (start + 1 / MOST) * seconds, 0
    while now < seconds:
        now, count = now + took, count + 1
        now = max(now, next_validation(min(1.0, now / seconds), took, now) * seconds)
    assert count <= MOST and max(0, count - 1) * took <= seconds / 10
