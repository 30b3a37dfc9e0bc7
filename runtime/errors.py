"""The errors that txport raises for faults outside of its code.

Each message is one sentence that names the file, the value and the way out. Commands print it and exit with
`exit_code`: 1 for a failed check, 2 for bad use, bad input and all other failures.
"""

import re
from collections.abc import Iterable

_MEMORY = re.compile(r"out[ _]?of[ _]?memory|bad[_ ]alloc|failed to allocate|could not be allocated", re.IGNORECASE)


class TxportError(Exception):
    """Base of all errors."""

    exit_code = 2


class InputError(TxportError):
    """A fault of the caller: an argument, an option or a line of text that cannot be used."""


class CheckpointError(TxportError):
    """A checkpoint directory that is incomplete, damaged or does not match its config."""


class BundleError(TxportError):
    """A bundle that is incomplete, changed, of a newer format, or unsuitable for the requested engine."""


class MissingLibrary(TxportError):
    """A library or a driver that is not installed or cannot be loaded; the message names the package to install."""


class ResourceError(TxportError):
    """A lack of disk space, host memory or GPU memory: retry later, or with a smaller batch."""


class EngineError(TxportError):
    """A failure of a library or a GPU. Results that have not been returned yet are lost."""


class CheckFailed(TxportError):
    """A verification or self-check that was completed and found a difference."""

    exit_code = 1


def is_failure(error: BaseException) -> bool:
    """Return whether an error comes from a library: an `Exception`, or a panic in Rust, which is not an `Exception`."""
    return isinstance(error, Exception) or type(error).__name__ == "PanicException"


def nearest(name: str, names: Iterable[str], otherwise: str = "there are") -> str:
    """Return advice for a name that does not exist: the most similar name, or `otherwise` and a list of all names."""
    from difflib import get_close_matches  # takes 1 MB, and is needed for mistakes only

    known_names = list(names)
    # A comparison takes a second for a name of a million characters. Longer names are not similar to any.
    matches = get_close_matches(name, known_names, 1) if len(name) <= 4 * max(map(len, known_names), default=0) else []
    if matches:
        return f"did you mean {matches[0]}?"
    return f"{otherwise} {', '.join(known_names)}"


def failure(message: str, otherwise: type[TxportError] = EngineError) -> TxportError:
    """Return the error for a message of a library: `ResourceError` if it reports exhausted memory, else `otherwise`."""
    if is_out_of_memory(message):
        return ResourceError(message)
    return otherwise(message)


def is_out_of_memory(message: str) -> bool:
    """Return whether a message of a library reports exhausted memory."""
    return _MEMORY.search(message) is not None
