"""Handling of Ctrl-C and SIGTERM: a run ends so that it can be resumed."""

import os
import signal
import threading
from types import FrameType, TracebackType
from typing import Any

from txport.runtime.errors import TxportError

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupted(TxportError):
    """A signal ended the run. The exit code is that of a process ended by the signal: 130 or 143."""

    def __init__(self, message: str, number: int) -> None:
        super().__init__(message)
        self.exit_code = 128 + number


class Interruption:
    """Context that handles the signals, if this is the main thread (Python allows handlers only there).

    Outside of training steps, a signal raises `Interrupted` immediately. While `deferred`, the first signal is stored
    until the state can be saved, and the second raises.

    Attributes:
        deferred: whether training steps are running.
        received: number of the stored signal.
        step: the last step of the run.
        saved: step of the state on disk; None if there is none.
    """

    def __init__(self) -> None:
        self.deferred = False
        self.received: int | None = None
        self.step = 0
        self.saved: int | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "Interruption":
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.getsignal(number) for number in _SIGNALS}
            self.take()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def take(self) -> None:
        """Install the handlers again, since Lightning replaces them by its own."""
        for number in self._before:
            signal.signal(number, self._note)

    def error(self) -> Interrupted:
        """Return the exception to raise."""
        number = self.received or signal.SIGINT
        if self.saved is None:
            return Interrupted("interrupted before the first step was saved: start again with the same command", number)
        return Interrupted(
            f"interrupted at step {self.step}; the state of step {self.saved} is saved: continue with --resume", number
        )

    def _note(self, number: int, frame: FrameType | None) -> None:
        is_second = self.received is not None
        self.received = number
        if is_second or not self.deferred:
            raise self.error()
        # Not by logging: the signal may interrupt a log message, and Python's buffers are not reentrant.
        os.write(2, b"tx-train: interrupted: saving after this step; press Ctrl-C again to stop now\n")
