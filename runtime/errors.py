"""The one family of errors that txport raises for what can go wrong outside of it.

Each message is one sentence that names the file, the value and the way out. Command lines print it and exit with
`exit_code`: 2 for bad use, bad input or a failure, 1 for a check that was made and failed.
"""

import re
from collections.abc import Iterable

_MEMORY = re.compile(r"out[ _]?of[ _]?memory|bad[_ ]alloc|failed to allocate|could not be allocated", re.IGNORECASE)


class TxportError(Exception):
    """Base of all errors."""

    exit_code = 2


class InputError(TxportError):
    """The caller's fault only: an argument, an option or a line of text that cannot be used."""


class CheckpointError(TxportError):
    """A checkpoint directory that is incomplete, damaged or does not match its config."""


class BundleError(TxportError):
    """A bundle that is incomplete, changed, of a newer format, or not fit for the engine that is to run it."""


class MissingLibrary(TxportError):
    """A library or a driver that is not installed or cannot be loaded; the message names the package to install."""


class ResourceError(TxportError):
    """Not enough disk space, host memory or GPU memory: retry later, or with a smaller batch."""


class EngineError(TxportError):
    """A library or a GPU failed; results since the last poll are invalid."""


class CheckFailed(TxportError):
    """A verification or self-check that ran to its end and found a difference."""

    exit_code = 1


def is_failure(error: BaseException) -> bool:
    """Return whether an error is a library's: an `Exception`, or the panic of one in Rust, whose class is not one."""
    return isinstance(error, Exception) or type(error).__name__ == "PanicException"


def nearest(name: str, names: Iterable[str], otherwise: str = "there are") -> str:
    """The way out for a name that does not exist: the one that was probably meant, or `otherwise` and all of them."""
    from difflib import get_close_matches  # 1 MB, for mistakes only

    known = list(names)
    near = get_close_matches(name, known, 1)
    if near:
        return f"did you mean {near[0]}?"
    return f"{otherwise} {', '.join(known)}"


def failure(message: str, otherwise: type[TxportError] = EngineError) -> TxportError:
    """Return the error for what a library reported: `ResourceError` if by its words memory was exhausted."""
    if is_out_of_memory(message):
        return ResourceError(message)
    return otherwise(message)


def is_out_of_memory(message: str) -> bool:
    """Return whether a message of a library reports exhausted memory."""
    return _MEMORY.search(message) is not None
