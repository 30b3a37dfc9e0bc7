"""Optional dependencies: a missing one gives one sentence with the command that installs it."""

from collections.abc import Iterator
from contextlib import contextmanager

from txport.runtime.errors import MissingLibrary


@contextmanager
def needs(extra: str) -> Iterator[None]:
    """Wrap imports of modules that need the libraries of `pip install 'txport[extra]'`.

    Raises:
        MissingLibrary: one of them is not installed.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        library = (error.name or "").partition(".")[0]
        if library in ("", "txport"):  # our own mistake, not the user's
            raise
        raise MissingLibrary(f"{library} is not installed: pip install 'txport[{extra}]'") from error
