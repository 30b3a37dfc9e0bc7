"""Sentences are taken in an order that stands for all of them, and as many as fit into the time."""

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from txport.exporter.verification import portions
from txport.exporter.verification.portions import MINUTES, PORTION, SENTENCES, Portions, budget, spread


@settings(deadline=None)
@given(st.lists(st.integers(1, 100), max_size=300))
def test_the_order_has_every_sentence_once_and_is_the_same_each_time(lengths: list[int]) -> None:
    assert sorted(spread(lengths)) == list(range(len(lengths)))
    assert spread(lengths) == spread(list(lengths))


@settings(deadline=None)
@given(st.lists(st.integers(1, 100), min_size=1, max_size=300), st.integers(1, 300))
def test_every_beginning_has_its_share_of_short_sentences(lengths: list[int], count: int) -> None:
    """Of any length: at most a few more or fewer than the whole has."""
    beginning = [lengths[index] for index in spread(lengths)[:count]]
    for length in (10, 50, 90):
        share, whole = (sum(each <= length for each in all) / len(all) for all in (beginning, lengths))
        assert abs(share - whole) * len(beginning) <= 10


class Clock:
    """Time that passes only when it is told to."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


def taken(clock: Clock, minutes: float | None, count: int, seconds: Sequence[float]) -> list[int]:
    """The sizes of the parts, each sentence of a part taking so many seconds (the last figure goes on)."""
    made = Portions(range(count), minutes)
    first = made.first(32)
    clock.now += len(first) * seconds[0]
    parts = [first]
    for number, (part, _) in enumerate(made.rest(len(first) * seconds[0])):
        parts.append(part)
        clock.now += len(part) * seconds[min(number + 1, len(seconds) - 1)]
    assert sum(parts, []) == list(range(sum(map(len, parts)))), "in order, none twice"
    return [len(part) for part in parts]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(portions.time, "monotonic", clock.monotonic)
    return clock


def test_all_sentences_without_a_limit(clock: Clock) -> None:
    assert taken(clock, None, 1000, [9.0]) == [32, PORTION, PORTION, PORTION, 1000 - 32 - 3 * PORTION]


def test_as_many_as_fit(clock: Clock) -> None:
    assert sum(taken(clock, 1.0, 1000, [0.01])) == 1000
    started = clock.now
    assert sum(taken(clock, 1.0, 1000, [0.1])) == 600
    assert clock.now - started == pytest.approx(60)


def test_the_speed_is_measured_again_after_each_part(clock: Clock) -> None:
    started = clock.now
    sizes = taken(clock, 5.0, 10_000, [0.1, 0.2, 0.4])
    assert sum(sizes) < 3000 and clock.now - started <= 300
    assert clock.now - started > 250


def test_the_first_sentences_are_taken_whatever_the_time(clock: Clock) -> None:
    assert taken(clock, 0.001, 1000, [10.0]) == [32]
    assert taken(clock, 1.0, 5, [0.1]) == [5]


def test_what_a_user_asks_for() -> None:
    assert budget(None, None) == (SENTENCES, MINUTES)
    assert budget(3000, None) == (3000, None), "a number is honoured whatever it takes"
    assert budget(None, 1.0) == (SENTENCES, 1.0)
    assert budget(3000, 1.0) == (3000, 1.0)
