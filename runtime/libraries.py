"""Optional dependencies: a missing one is reported in one sentence with the command that installs it."""

from collections.abc import Iterator
from contextlib import contextmanager

from txport.runtime.errors import MissingLibrary


@contextmanager
def needs(extra: str) -> Iterator[None]:
    """Wrap imports of modules that need the libraries of `pip install 'txport[extra]'`.

    Raises:
        MissingLibrary: one of them is not installed or cannot be loaded.
    """
    try:
        yield
    except ImportError as error:
        library = (error.name or "").partition(".")[0]
        if library in ("", "txport"):  # our own mistake, not the user's
            raise
        missing = isinstance(error, ModuleNotFoundError)
        fault = "is not installed" if missing else f"is installed but cannot be loaded ({error})"
        raise MissingLibrary(f"{library} {fault}: pip install 'txport[{extra}]'") from error
