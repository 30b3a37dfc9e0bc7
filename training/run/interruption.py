"""Ctrl-C and SIGTERM: end a run so that it can be resumed."""

import os
import signal
import threading
from types import FrameType, TracebackType
from typing import Any

from txport.runtime.errors import TxportError

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupted(TxportError):
    """A signal ended the run. The exit code is that of a process which the signal ended: 130 or 143."""

    def __init__(self, message: str, number: int) -> None:
        super().__init__(message)
        self.exit_code = 128 + number


class Interruption:
    """Take the signals over as a context, in the main thread (elsewhere Python leaves them alone).

    Outside of the steps a signal raises `Interrupted` at once. While `deferred`, the first is only noted, until the
    state can be saved; the second raises.

    Attributes:
        deferred: whether the steps are being made.
        received: the number of the signal that was noted.
        step: the last step of the run.
        saved: the step whose state is on the disk, None for none.
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
        """Be the only one who handles the signals: Lightning puts a handler of its own before ours."""
        for number in self._before:
            signal.signal(number, self._note)

    def error(self) -> Interrupted:
        """Exception to raise."""
        number = self.received or signal.SIGINT
        if self.saved is None:
            return Interrupted("interrupted before the first step was saved: start again with the same command", number)
        return Interrupted(
            f"interrupted at step {self.step}; the state of step {self.saved} is saved: continue with --resume", number
        )

    def _note(self, number: int, frame: FrameType | None) -> None:
        again = self.received is not None
        self.received = number
        if again or not self.deferred:
            raise self.error()
        # Not by logging: a message may be what the signal interrupts, and Python writes to no buffer twice at once.
        os.write(2, b"tx-train: interrupted: saving after this step; press Ctrl-C again to stop now\n")
