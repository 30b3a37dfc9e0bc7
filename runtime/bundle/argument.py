"""The argument of commands that names a bundle."""

import os
from pathlib import Path

import click
from txport.runtime.bundle.archive import files_of
from txport.runtime.bundle.names import find_bundle
from txport.runtime.errors import InputError


class _Bundle(click.Path):
    """Path of a bundle, or the name of a bundle of tx-get.

    Args:
        directory: refuse bundles in one file, for commands that change files of the bundle.
    """

    def __init__(self, *, directory: bool = False) -> None:
        super().__init__(path_type=Path)
        self._directory = directory

    def convert(
        self, value: str | os.PathLike[str], param: click.Parameter | None, ctx: click.Context | None
    ) -> str | bytes | os.PathLike[str]:
        """Return the path of the bundle."""
        path = find_bundle(value)
        if self._directory and path.is_file():
            files_of(path)  # refuses other files
            if ctx is not None:
                command = ctx.info_name
            else:
                command = "this command"
            raise InputError(f"{path} is one file, and {command} needs a directory: unzip {path} -d DIRECTORY")
        return path


BUNDLE = _Bundle()
BUNDLE_DIRECTORY = _Bundle(directory=True)
