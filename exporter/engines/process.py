"""Builds in a separate process, which can be stopped or run out of memory without harm, and whose peak is measured."""

import faulthandler
import multiprocessing
import signal
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any, TypeVar

from txport.runtime.errors import CheckFailed, EngineError, TxportError
from txport.runtime.system import end_with_parent


class BuildCrashed(CheckFailed):
    """The library crashed the process."""


T = TypeVar("T")
_POLL = 0.2  # seconds between checks of the timeout
_FAULTS = ("SIGSEGV", "SIGFPE", "SIGABRT", "SIGBUS", "SIGILL")  # faulthandler prints a traceback for them


def run_apart(
    work: Callable[[Callable[[str, float], None]], T], timeout: float | None, progress: Callable[[str, float], None]
) -> T:
    """Run picklable `work` in a new process. Its argument is a function that reports progress.

    Args:
        work: function to run; its exceptions are raised here.
        timeout: seconds after which the process is killed; None for no limit.
        progress: called with the reports of the work.

    Raises:
        BuildCrashed: the library crashed the process.
        CheckFailed: the work took too long, or was killed.
    """
    # Not "fork", since CUDA does not work in a forked process.
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_work, args=(work, sender), daemon=True)
    process.start()
    sender.close()
    deadline = None if timeout is None else time.monotonic() + timeout
    try:
        answer = _listen(receiver, deadline, progress)
        process.join(_POLL if answer is None else None)
    finally:
        if process.is_alive():
            process.kill()
            process.join()
    if answer is not None:
        kind, value = answer
        if kind == "raised":
            raise value
        result: T = value
        return result
    if deadline is not None and time.monotonic() >= deadline:
        raise CheckFailed(f"the build took longer than {timeout:g} seconds and was stopped: raise --timeout")
    number = -(process.exitcode or 0)
    name = signal.Signals(number).name if number in set(signal.Signals) else f"exit code {process.exitcode}"
    hints = {"SIGKILL": ", most likely for want of memory: use fewer or smaller buckets, or a smaller --workspace"}
    hints |= dict.fromkeys(_FAULTS, ", in the call that is first in the lines above")
    message = f"the build was ended by {name}{hints.get(name, '')}"
    if name in _FAULTS:
        raise BuildCrashed(message)
    raise CheckFailed(message)


def _listen(
    receiver: Connection, deadline: float | None, progress: Callable[[str, float], None]
) -> tuple[str, Any] | None:
    """Return the result, or None if the process ended without one or the deadline passed."""
    while deadline is None or time.monotonic() < deadline:
        if not receiver.poll(_POLL):
            continue
        try:
            kind, value = receiver.recv()
        except EOFError:
            return None
        if kind != "progress":
            return kind, value
        progress(*value)
    return None


def _work(work: Callable[[Callable[[str, float], None]], Any], sender: Connection) -> None:
    end_with_parent()
    faulthandler.enable()
    try:
        answer = "done", work(lambda what, part: sender.send(("progress", (what, part))))
    except (TxportError, OSError) as error:
        answer = "raised", error
    except Exception as error:  # errors of the library's bindings cannot always be pickled
        traceback.print_exc()
        answer = "raised", EngineError(f"the build failed: {type(error).__name__}: {error}")
    sender.send(answer)
