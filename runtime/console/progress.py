"""Progress of a command on standard error: an updated line on a terminal, a new line every half minute in a pipe.

It needs no library, so every command can use it.
"""

import os
import re
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

from txport.runtime.console.words import program

Self = TypeVar("Self", bound="ProgressLine")
LINE_SECONDS = 30.0  # between two lines in a pipe
_REFRESH_SECONDS = 0.25
_BAR = 12  # characters, so that the rest fits into 80 columns


class ProgressLine:
    """Line on a terminal that is updated within this context. Other output to standard error appears above it.

    Args:
        text: returns the line; a background thread calls it too.
        enabled: whether to show anything.
        refresh: seconds between updates; 0 updates only when `draw` is called.
        transient: whether it is erased at the end.
        report: if standard error is not a terminal, this is called every `every` seconds instead.

    Attributes:
        shown: whether it is enabled, and standard error is a terminal.
    """

    def __init__(
        self,
        text: Callable[[], str],
        enabled: bool = True,
        *,
        refresh: float = _REFRESH_SECONDS,
        transient: bool = False,
        report: Callable[[], None] | None = None,
        every: float = LINE_SECONDS,
    ) -> None:
        self._text = text
        self._enabled = enabled
        self._transient = transient
        self._stream: Any = sys.stderr
        terminal = self._stream is not None and self._stream.isatty() and os.environ.get("TERM") != "dumb"
        self.shown = enabled and terminal
        self._act = self.draw if self.shown else report
        if self.shown:
            self._seconds = refresh
        else:
            self._seconds = every
        self._lock = threading.RLock()
        self._drawn = False
        self._whole = True  # whether other output ends with a line break
        self._ended = threading.Event()
        self._clock = threading.Thread(target=self._run, daemon=True)

    def __enter__(self: Self) -> Self:
        if self.shown:
            self._stream, sys.stderr = sys.stderr, _Above(self, sys.stderr)
        if self._enabled and self._act is not None and self._seconds:
            self._clock.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        if self._clock.ident is not None:
            self._clock.join()
        if self.shown:
            sys.stderr = self._stream
            self.end()
            self.shown = False

    def draw(self) -> None:
        """Write the current line, truncated to the width of the terminal."""
        with self._lock:
            if self.shown and self._whole and (text := self._text()):
                text = text[: (_width(self._stream) or 80) - 1]
                if "NO_COLOR" not in os.environ:
                    text = re.sub("━+", "\x1b[32m\\g<0>\x1b[0m", text)
                self._stream.write(f"\r\x1b[K{text}")
                self._stream.flush()
                self._drawn = True

    def end(self) -> None:
        """Finish the current line, or erase it; the next one appears below."""
        with self._lock:
            if self._drawn:
                self._stream.write("\r\x1b[K" if self._transient else "\n")
                self._stream.flush()
                self._drawn = False

    def write(self, text: str) -> int:
        """Write other output over the line, broken between words; `draw` then shows the line below."""
        with self._lock:
            broken = _broken(text, _width(self._stream))
            self._stream.write(f"\r\x1b[K{broken}" if self._drawn else broken)
            self._stream.flush()
            self._drawn = False
            self._whole = not text or text.endswith("\n")
        return len(text)

    def _run(self) -> None:
        while not self._ended.wait(self._seconds):
            if self._act is not None:
                self._act()


class _Above:
    """Standard error while a line is shown: writes above it."""

    def __init__(self, line: ProgressLine, stream: Any) -> None:
        self._stream = stream
        self.write = line.write

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class Stages(ProgressLine):
    """Named stages of a long command, one bar each.

    Args:
        enabled: whether to show anything; false in a library.
        every: seconds between two lines if standard error is not a terminal.
        transient: whether bars are erased at their end.
    """

    def __init__(self, enabled: bool = True, every: float = LINE_SECONDS, transient: bool = False) -> None:
        super().__init__(self._bar, enabled, transient=transient, report=self._print_line, every=every)
        self._name = ""
        self._done = 0
        self._total = 1
        self._started = time.monotonic()
        self._warned: set[str] = set()

    def __exit__(self, *error: object) -> None:
        if error[0] is None:
            self._finish()
        super().__exit__(*error)

    def stage(self, description: str, total: int = 1) -> None:
        """Begin a stage of `total` parts, which ends the one before."""
        self._finish()
        self._name = description
        self._done = 0
        self._total = total
        self._started = time.monotonic()
        self.draw()

    def advance(self, count: int = 1) -> None:
        """Add finished parts of the stage."""
        self._done += count

    def reach(self, description: str, done: int, total: int) -> None:
        """Set the number of finished parts of a stage, and begin it if it is not the current one."""
        if description != self._name:
            self.stage(description, total)
        self._done = done

    def say(self, text: str) -> None:
        """Print a message for the user, at most once."""
        if self._enabled and text not in self._warned:
            self._warned.add(text)
            print(f"{program()}: {text}", file=sys.stderr, flush=True)

    @property
    def left(self) -> str:
        """Remaining minutes of this stage at its present speed; empty until a part is finished."""
        # another thread reads this as well
        done = self._done
        total = self._total
        if not 0 < done < total:
            return ""
        return minutes((time.monotonic() - self._started) / done * (total - done))

    def _finish(self) -> None:
        self._done = self._total
        self.draw()
        self.end()

    def _bar(self) -> str:
        if not self._name:
            return ""
        done = f"{self._done}/{self._total}"
        time_spent = minutes(time.monotonic() - self._started)
        if left := self.left:
            left = f", {left} left"
        else:
            left = ""
        return f"{bar(self._done / max(1, self._total))} {done:>9} {time_spent:>6} {self._name}{left}"

    def _print_line(self) -> None:
        if self._name:
            if self._total > 1:
                done = f"{self._done} of {self._total}"
            else:
                done = ""
            if left := self.left:
                left = f"about {left} min left"
            else:
                left = ""
            line = ", ".join(part for part in (self._name, done, left) if part)
            print(f"{program()}: {line}", file=sys.stderr, flush=True)


def bar(share: float) -> str:
    """Return a bar filled to this share."""
    if "utf" in (getattr(sys.stderr, "encoding", None) or "").lower():
        full = "━"
    else:
        full = "="
    return (full * round(_BAR * min(share, 1.0))).ljust(_BAR)


def minutes(seconds: float) -> str:
    """Return a time in minutes and seconds, as in 12:05."""
    return f"{max(0, round(seconds)) // 60}:{max(0, round(seconds)) % 60:02d}"


def _broken(text: str, width: int) -> str:
    """Break lines between words at the width of the terminal; a width of 0 is unknown and breaks nothing."""
    if not 0 < width < len(text):
        return text
    return "\n".join(
        textwrap.fill(line, width, break_long_words=False, break_on_hyphens=False) for line in text.split("\n")
    )


def _width(stream: Any) -> int:
    """Return the number of columns of a terminal, or 0 if unknown."""
    try:
        return int(os.environ.get("COLUMNS") or 0) or os.get_terminal_size(stream.fileno()).columns
    except (OSError, ValueError):
        return 0
