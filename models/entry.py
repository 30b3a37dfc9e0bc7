"""The console script of importers; only the standard library is imported at the top, see `txport.runtime.entry`."""

from typing import NoReturn

from txport.runtime.entry import run_command


def import_() -> NoReturn:
    """Run tx-import."""
    run_command("txport.models.importers.command", extra="import")
