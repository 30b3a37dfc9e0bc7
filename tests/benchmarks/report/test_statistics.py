"""Percentiles, warm-up and ratios."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from txport.benchmarks.report.schema import Percentiles
from txport.benchmarks.report.statistics import is_warm, percentile, percentiles, ratio, warm_up

times = st.lists(st.floats(0.001, 1e6), min_size=1, max_size=300)


@given(times, st.floats(0.01, 1.0))
def test_percentiles_are_nearest_ranks(values: list[float], share: float) -> None:
    assert percentile(values, share) == np.quantile(values, share, method="inverted_cdf")


def test_p99_needs_a_hundred_values() -> None:
    assert percentiles(range(1, 100)) == Percentiles(50, 90, None)
    assert percentiles(range(1, 101)) == Percentiles(50, 90, 99)


@pytest.mark.parametrize(
    ("given_times", "warm"),
    [([1.0, 1.0], False), ([9.0, 1.0, 1.04, 1.02], True), ([1.0, 1.0, 1.06], False), ([1.0, 2.0] * 15, True)],
)
def test_warm_is_three_calls_within_five_percent_or_thirty(given_times: list[float], warm: bool) -> None:
    assert is_warm(given_times) is warm


def test_warming_up_ends_when_it_is_stable_or_out_of_time() -> None:
    assert warm_up(iter([9.0, 5.0, 1.0, 1.0, 1.0, 7.0]).__next__, 5) == [9, 5, 1, 1, 1]
    assert warm_up(iter([900.0, 400.0, 100.0]).__next__, 1) == [900, 400]


def test_a_setting_that_is_much_slower_than_the_best_is_given_up() -> None:
    assert warm_up(iter([25.0, 21.0, 1.0]).__next__, 5, best=10) == [25, 21]
    assert warm_up(iter([25.0, 19.0, 19.0, 19.0, 1.0]).__next__, 5, best=10) == [25, 19, 19, 19]


def test_ratios_pair_the_rounds() -> None:
    """A machine that is ten times slower in one round does not change them."""
    found = ratio([2.0, 20.0, 2.2, 99.0], [1.0, 10.0, 1.0])
    assert found is not None
    assert (found.p10, found.p50, found.p90, found.rounds) == (2.0, 2.0, 2.2, 3)
    assert ratio([], [1.0]) is None
