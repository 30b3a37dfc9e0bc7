"""The argument of commands that names a bundle."""

import os
from pathlib import Path

import click
from txport.runtime.bundle.names import find_bundle


class _Bundle(click.Path):
    """A path, or a name by which tx-get keeps a bundle."""

    def convert(
        self, value: str | os.PathLike[str], param: click.Parameter | None, ctx: click.Context | None
    ) -> str | bytes | os.PathLike[str]:
        """The path of the bundle."""
        return find_bundle(value)


BUNDLE = _Bundle(path_type=Path)
