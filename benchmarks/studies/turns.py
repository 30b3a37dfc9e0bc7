"""Fair timing within one process: all calls take turns, so that changes of the machine's speed affect all of them."""

import time
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt


def in_turns(calls: Sequence[Callable[[], object]], rounds: int, warm_up: int) -> npt.NDArray[np.float64]:
    """Return the milliseconds of each call, `[rounds, calls]`, after `warm_up` additional rounds."""

    def timed(call: Callable[[], object]) -> float:
        start = time.perf_counter()
        call()
        return (time.perf_counter() - start) * 1e3

    return np.array([[timed(call) for call in calls] for _ in range(warm_up + rounds)])[warm_up:]
