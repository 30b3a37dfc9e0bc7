"""Fair timing within one process: all calls take turns, so that changes of the machine's speed affect all of them."""

import time
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt


def in_turns(
    calls: Sequence[Callable[[], object]],
    rounds: int,
    warm_up: int,
    clock: Callable[[], float] = time.perf_counter,
) -> npt.NDArray[np.float64]:
    """Return the milliseconds of each call, `[rounds, calls]`, after `warm_up` additional rounds.

    With `clock` `time.process_time`, these are milliseconds of all threads on processors, for a busy machine.
    """

    def timed(call: Callable[[], object]) -> float:
        start = clock()
        call()
        return (clock() - start) * 1e3

    return np.array([[timed(call) for call in calls] for _ in range(warm_up + rounds)])[warm_up:]
