"""The time of a run: `max_minutes` is until the checkpoint is there."""

import time

# The part of `max_minutes` that is kept for the last validation, the test and the checkpoint: until a validation was
# timed, and the most.
FIRST_RESERVE = 0.08
MAX_RESERVE = 0.2
# What loading the kept weights and writing the checkpoint take, in seconds.
WRITING = 2.0


class Clock:
    """Wall-clock time since the start of the command, without what lay between an interruption and `--resume`.

    Args:
        minutes: the recipe's `max_minutes`.
        started: when the command began, by `time.monotonic()`; None for now.

    Attributes:
        before: seconds that were used before an interruption.
        reserve: seconds of the limit in which no more steps are made.
        test: how many times as many sentences as a validation the test has.
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
        """Used so far."""
        return self.before + time.monotonic() - self._started

    @property
    def left(self) -> float | None:
        """Seconds until the limit; None if there is none."""
        if self.limit is None:
            return None
        return self.limit - self.seconds

    def reserve_for(self, validation: float, decoding: float) -> None:
        """Learn what a validation takes and what decoding in it, in seconds, and so what comes after the last step."""
        if self.limit is not None:
            rest = 2 * validation + 1.3 * self.test * decoding + WRITING + 0.01 * self.limit
            self.reserve = min(rest, MAX_RESERVE * self.limit)

    def done(self) -> float:
        """Return the used part of the time for steps, 0 to 1; 0 without a limit."""
        if self.limit is None:
            return 0.0
        return min(1.0, self.seconds / (self.limit - self.reserve))
