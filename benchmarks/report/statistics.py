"""Definitions of percentiles, warm-up and ratios."""

import math
from collections.abc import Callable, Sequence

from txport.benchmarks.report.schema import Percentiles, Ratio

MIN_WARM_UP = 3
MAX_WARM_UP = 30
STABLE = 0.05  # the warm-up ends when three calls in a row differ by less than this share
MIN_FOR_P99 = 100


def percentile(values: Sequence[float], share: float) -> float:
    """Return a percentile by nearest rank: the smallest value such that at least this share is not larger."""
    ordered = sorted(values)
    return ordered[max(math.ceil(share * len(ordered)), 1) - 1]


def percentiles(values: Sequence[float]) -> Percentiles:
    """Return p50, p90 and, for 100 or more values, p99."""
    if len(values) >= MIN_FOR_P99:
        p99 = percentile(values, 0.99)
    else:
        p99 = None
    return Percentiles(percentile(values, 0.5), percentile(values, 0.9), p99)


def is_warm(times: Sequence[float]) -> bool:
    """Return whether the last three calls took the same time within 5%, or 30 calls were made."""
    if len(times) < MIN_WARM_UP:
        return False
    last = times[-MIN_WARM_UP:]
    return max(last) <= min(last) * (1 + STABLE) or len(times) >= MAX_WARM_UP


def warm_up(call: Callable[[], float], most_seconds: float, best: float | None = None) -> list[float]:
    """Call until `is_warm` or for `most_seconds`, but at least twice; return the milliseconds of each call.

    If two calls took more than twice `best` milliseconds, the warm-up ends, since another setting will be chosen.
    """
    times = [call(), call()]
    while not is_warm(times) and sum(times) < 1e3 * most_seconds:
        if best is not None and min(times) > 2 * best:
            break
        times.append(call())
    return times


def ratio(times: Sequence[float], first: Sequence[float]) -> Ratio | None:
    """Return the ratio of `times` to `first` over their common rounds, or None without common rounds.

    Times of the same round are measured within seconds of each other, so slow phases of the machine cancel out.
    """
    ratios = [ours / theirs for ours, theirs in zip(times, first, strict=False)]
    if not ratios:
        return None
    return Ratio(percentile(ratios, 0.1), percentile(ratios, 0.5), percentile(ratios, 0.9), len(ratios))
