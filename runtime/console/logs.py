"""Log lines on standard error. Each begins with the name of the command."""

import logging
import sys
from typing import Any

from txport.runtime.console.words import program


def show_log(logger: str = "") -> None:
    """Show warnings of all loggers, and informational messages of the named logger."""
    logging.basicConfig(format=f"{program()}: %(message)s", level=logging.WARNING, handlers=[_StandardError()])
    if logger:
        logging.getLogger(logger).setLevel(logging.INFO)


class _StandardError(logging.StreamHandler):  # type: ignore[type-arg]  # Python 3.10 takes no argument there
    """Handler for the current standard error. Messages appear above a progress line."""

    @property
    def stream(self) -> Any:
        return sys.stderr

    @stream.setter
    def stream(self, stream: Any) -> None:
        pass
