"""The time of a run: when its steps end, when it validates, and that the test ends in time."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from txport.training.run.clock import MAX_RESERVE, Clock
from txport.training.run.decoding import sampled_pairs
from txport.training.run.pacing import MAX_VALIDATIONS, next_validation


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
    assert clock.limit is not None and clock.reserve <= MAX_RESERVE * clock.limit
    assert (clock.done() == 1) == (clock.seconds >= clock.limit - clock.reserve)


def test_the_time_before_an_interruption_counts() -> None:
    clock = Clock(1, time.monotonic() - 10)
    clock.before = 30
    assert clock.seconds == pytest.approx(40, abs=1) and clock.seconds_left == pytest.approx(20, abs=1)
    assert Clock(None).seconds_left is None and Clock(None).done() == 0


@given(count=st.integers(1, 700), minutes=st.none() | st.floats(0.01, 900))
def test_a_run_is_tested_on_the_same_sentences_whatever_time_is_left(count: int, minutes: float | None) -> None:
    pairs = [(f"a {number}", f"A {number}") for number in range(count)]
    tested = sampled_pairs(pairs, minutes)
    assert tested == sampled_pairs(pairs, minutes) and len(set(tested)) == len(tested) and set(tested) <= set(pairs)
    if minutes is None or count <= 100 or count <= 50 * minutes - 1:
        assert len(tested) == count
    else:
        assert 100 <= len(tested) <= 50 * minutes + 101
    if minutes is not None:  # more minutes add sentences
        assert sampled_pairs(pairs, 2 * minutes)[: len(tested)] == tested


@given(seconds=st.floats(10, 1e5), took=st.floats(0.001, 100), start=st.floats(0, 0.5))
def test_validations_take_a_tenth_of_the_time(seconds: float, took: float, start: float) -> None:
    """But for the first and the last: what they take is only known afterwards."""
    now, count = (start + 1 / MAX_VALIDATIONS) * seconds, 0
    while now < seconds:
        now, count = now + took, count + 1
        now = max(now, next_validation(min(1.0, now / seconds), took, now) * seconds)
    assert count <= MAX_VALIDATIONS and max(0, count - 1) * took <= seconds / 10
