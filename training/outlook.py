"""Expectations of a run: how much of the machine others leave to it, and how many steps the time allows."""

import logging
import time
from dataclasses import dataclass

_log = logging.getLogger("txport")
# Below this share of its time a thread that computes without a pause is kept waiting by others.
BUSY = 0.7


class Share:
    """Share of the time since it was made in which this thread computed: processor over wall-clock time, 0 to 1."""

    def __init__(self) -> None:
        self._began = time.monotonic(), time.thread_time()

    def measured(self) -> float:
        """Until now."""
        wall, processor = self._began
        return min(1.0, (time.thread_time() - processor) / max(1e-9, time.monotonic() - wall))


@dataclass
class Outlook:
    """Measurements before a run.

    Attributes:
        steps: how many it will make; None if no time ends it.
        busy: whether it was said that the machine is.
    """

    steps: float | None = None
    busy: bool = False

    def look_at(self, share: float) -> None:
        """Say once that the machine is busy, if this thread had so small a share of its time."""
        if share < BUSY and not self.busy:
            self.busy = True
            _log.warning("this machine is busy: training gets %.0f%% of the time that it could use", 100 * share)
