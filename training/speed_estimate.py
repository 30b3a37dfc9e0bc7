"""Speed estimate of a run: its share of the processor, and the number of steps that its time allows."""

import logging
import time
from dataclasses import dataclass

_log = logging.getLogger("txport")
# Below this share of processor time, other processes slow a thread down that computes without a pause.
BUSY = 0.7


class Share:
    """Share of wall-clock time in which this thread computed since the creation of the object, from 0 to 1."""

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
        """Log once that the machine is busy, if this thread had too small a share of its time."""
        if share < BUSY and not self.busy:
            self.busy = True
            _log.warning("this machine is busy: training gets %.0f%% of the time that it could use", 100 * share)
