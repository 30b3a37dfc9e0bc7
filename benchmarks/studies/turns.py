"""Fair timing within one process: all take turns, so that a drift of the machine's speed, or a neighbour, hits all."""

import time
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt


def in_turns(calls: Sequence[Callable[[], object]], rounds: int, warm_up: int) -> npt.NDArray[np.float64]:
    """Milliseconds of each call, `[rounds, calls]`; the first `warm_up` rounds are made beside them and not counted."""

    def timed(call: Callable[[], object]) -> float:
        start = time.perf_counter()
        call()
        return (time.perf_counter() - start) * 1e3

    return np.array([[timed(call) for call in calls] for _ in range(warm_up + rounds)])[warm_up:]
