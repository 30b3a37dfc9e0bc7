"""Progress of a command: bars on a terminal, nothing in a pipe."""

import sys

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn


class Stages:
    """Named stages of a long command, one bar each, on standard error.

    Args:
        enabled: whether to show bars; None for whether standard error is a terminal.
    """

    def __init__(self, enabled: bool | None = None) -> None:
        shown = sys.stderr.isatty() if enabled is None else enabled
        columns = (
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
        )
        self._bars = Progress(*columns, console=Console(stderr=True), disable=not shown)
        self._task: int | None = None

    def __enter__(self) -> "Stages":
        self._bars.start()
        return self

    def __exit__(self, *error: object) -> None:
        if error[0] is None:
            self._end()
        self._bars.stop()

    def stage(self, description: str, total: int = 1) -> None:
        """Begin a stage of `total` parts; the one before it is then done."""
        self._end()
        self._task = self._bars.add_task(description, total=total)

    def advance(self) -> None:
        """One part of the stage is done."""
        if self._task is not None:
            self._bars.advance(self._task)  # type: ignore[arg-type]

    def _end(self) -> None:
        if self._task is not None:
            task = self._bars.tasks[self._task]
            self._bars.update(task.id, completed=task.total)
