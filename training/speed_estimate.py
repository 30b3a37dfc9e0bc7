"""Estimate of a run's speed: available share of the processor, and number of steps in the time limit."""

import logging
import time
from dataclasses import dataclass

_log = logging.getLogger("txport")
# A busy thread with a smaller share of processor time is slowed down by other processes.
BUSY = 0.7


class ProcessorShare:
    """Share of wall-clock time, 0 to 1, in which this thread computed since the object was created."""

    def __init__(self) -> None:
        self._began = time.monotonic(), time.thread_time()

    def measured(self) -> float:
        """Return the share until now."""
        wall, processor = self._began
        return min(1.0, (time.thread_time() - processor) / max(1e-9, time.monotonic() - wall))


@dataclass
class SpeedEstimate:
    """Measurements before a run.

    Attributes:
        steps: expected number of steps; None without a time limit.
        busy: whether the machine was reported as busy.
    """

    steps: float | None = None
    busy: bool = False

    def look_at(self, share: float) -> None:
        """Log once that the machine is busy, if this thread's share of processor time is small."""
        if share < BUSY and not self.busy:
            self.busy = True
            _log.warning("this machine is busy: training gets %.0f%% of the time that it could use", 100 * share)
