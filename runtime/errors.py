"""The one family of errors that txport raises for what a user can cause.

Each message is one sentence that names the file, the value and the way out. Command lines print it and exit with
`exit_code`: 2 for bad use or bad input, 1 for a check that was made and failed.
"""


class TxportError(Exception):
    """Base of all errors that a user can cause."""

    exit_code = 2


class InputError(TxportError):
    """An argument, an option or a line of text that cannot be used."""


class CheckpointError(TxportError):
    """A checkpoint directory that is incomplete, damaged or of another shape than its config says."""


class BundleError(TxportError):
    """A bundle that is incomplete, changed, of a newer format, or not fit for the engine that was asked for."""


class MissingLibrary(TxportError):
    """An optional dependency that is not installed; the message holds the pip command."""


class DeviceError(TxportError):
    """A GPU that does not do what it is told; what was made until then cannot be trusted."""


class OutOfMemory(DeviceError):
    """Device memory that is not there; nothing that was made before is lost."""


class CheckFailed(TxportError):
    """A verification or self-check that ran to its end and found a difference."""

    exit_code = 1
