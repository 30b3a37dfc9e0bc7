"""Progress of a command: bars on a terminal, a line about every half minute in a pipe."""

import sys
import threading
import time
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

LINE_SECONDS = 30.0  # between two lines in a pipe


class Stages:
    """Named stages of a long command, one bar each, on standard error.

    Args:
        enabled: false to show nothing, as in a library.
        every: seconds between two lines where standard error is no terminal.
    """

    def __init__(self, enabled: bool = True, every: float = LINE_SECONDS) -> None:
        terminal = sys.stderr.isatty()
        columns = (
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(bar_width=12),  # so that the rest fits into 80 columns
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[left]}"),
        )
        self._bars = Progress(*columns, console=Console(stderr=True), disable=not (enabled and terminal))
        self._lines = enabled and not terminal
        self._enabled, self._every = enabled, every
        self._name = ""
        self._done = 0
        self._total = 1
        self._started = time.monotonic()
        self._task: int | None = None
        self._warned: set[str] = set()
        self._ended = threading.Event()
        self._clock = threading.Thread(target=self._print_lines, daemon=True)

    def __enter__(self) -> "Stages":
        self._bars.start()
        if self._lines:
            self._clock.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        if self._lines:
            self._clock.join()
        if error[0] is None:
            self._end()
        self._bars.stop()

    def stage(self, description: str, total: int = 1) -> None:
        """Begin a stage of `total` parts; the one before it is then done."""
        self._end()
        self._name = description
        self._done = 0
        self._total = total
        self._started = time.monotonic()
        self._task = self._bars.add_task(description, total=total, left="")

    def advance(self, count: int = 1) -> None:
        """Count so many parts of the stage as done."""
        self._done += count
        self._show()

    def resize(self, total: int) -> None:
        """The stage has another number of parts than was thought."""
        self._total = total
        self._show()

    def say(self, text: str) -> None:
        """Print a message for the user, at most once."""
        if self._enabled and text not in self._warned:
            self._warned.add(text)
            console = self._bars.console
            console.print(f"{_program()}: {text}", markup=False, highlight=False, soft_wrap=not console.is_terminal)

    @property
    def left(self) -> str:
        """The time that this stage will take yet, at its speed so far; empty until something of it is done."""
        if not 0 < self._done < self._total:
            return ""
        seconds = (time.monotonic() - self._started) / self._done * (self._total - self._done)
        return f"about {round(seconds) // 60}:{round(seconds) % 60:02d} min left"

    def _show(self) -> None:
        if self._task is not None:
            self._bars.update(self._task, completed=self._done, total=self._total, left=self.left)  # type: ignore[arg-type]

    def _end(self) -> None:
        if self._task is not None:
            self._bars.update(self._task, completed=self._total, left="")  # type: ignore[arg-type]

    def _print_lines(self) -> None:
        while not self._ended.wait(self._every):
            if self._name:
                done = f"{self._done} of {self._total}" if self._total > 1 else ""
                line = ", ".join(part for part in (self._name, done, self.left) if part)
                print(f"{_program()}: {line}", file=sys.stderr, flush=True)


def _program() -> str:
    return Path(sys.argv[0]).name
