"""Learning rate schedules."""

import math


def noam(step: int, peak: float, warmup: int) -> float:
    """Return a rate with linear warm-up, then inverse square root decay (Vaswani et al. 2017, section 5.3).

    The paper's `factor * d_model**-0.5 * min(step**-0.5, step * warmup**-1.5)` is this with
    `peak = factor * (d_model * warmup) ** -0.5`.

    Args:
        step: number of the step, counted from 1.
        peak: rate at step `warmup`.
        warmup: number of warm-up steps.
    """
    return peak * min(step / warmup, math.sqrt(warmup / step))


def constant(step: int, peak: float, warmup: int) -> float:
    """Return a rate with linear warm-up, then no decay. Arguments are those of `noam`."""
    return peak * min(1.0, step / warmup)


def cooldown(progress: float, share: float) -> float:
    """Return a factor that decreases linearly from 1 to 0 over the last `share` of the run (Hägele et al. 2024, 3).

    Args:
        progress: completed share of the run, 0 to 1.
        share: 0 for no cool-down.
    """
    if share:
        return min(1.0, max(0.0, 1.0 - progress) / share)
    return 1.0


SCHEDULES = {"inverse_sqrt": noam, "constant": constant}
