"""Time of a run: `max_minutes` includes the writing of the checkpoint."""

import time

# Share of `max_minutes` that is reserved for the last validation, the test and the checkpoint: before the first
# validation was timed, and at most.
FIRST_RESERVE = 0.08
MAX_RESERVE = 0.2
# Time for loading the kept weights and writing the checkpoint, in seconds.
WRITING = 2.0


class Clock:
    """Wall-clock time since the start of the command, without the time between an interruption and `--resume`.

    Args:
        minutes: the recipe's `max_minutes`.
        started: start of the command by `time.monotonic()`; None for now.

    Attributes:
        before: seconds used before an interruption.
        reserve: seconds at the end of the limit without steps.
        test: ratio of sentences in the test to sentences in a validation.
    """

    def __init__(self, minutes: float | None, started: float | None = None) -> None:
        if minutes is None:
            self.limit = None
        else:
            self.limit = 60 * minutes
        self.before = 0.0
        self.test = 1.0
        self.reserve = FIRST_RESERVE * (self.limit or 0.0)
        if started is None:
            self._started = time.monotonic()
        else:
            self._started = started

    @property
    def seconds(self) -> float:
        """Seconds used so far."""
        return self.before + time.monotonic() - self._started

    @property
    def seconds_left(self) -> float | None:
        """Seconds until the limit; None without a limit."""
        if self.limit is None:
            return None
        return self.limit - self.seconds

    def reserve_for(self, validation: float, decoding: float) -> None:
        """Set the reserve from the measured seconds of a validation, and of the decoding in it."""
        if self.limit is not None:
            rest = 2 * validation + 1.3 * self.test * decoding + WRITING + 0.01 * self.limit
            self.reserve = min(rest, MAX_RESERVE * self.limit)

    def done(self) -> float:
        """Return the used share of the time for steps, 0 to 1; 0 without a limit."""
        if self.limit is None:
            return 0.0
        return min(1.0, self.seconds / (self.limit - self.reserve))
