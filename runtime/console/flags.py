"""Flags that several commands have."""

from collections.abc import Callable
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])


def flags(*options: Callable[[Any], Any]) -> Callable[[F], F]:
    """One decorator of several, as of `click.option`; help lists them in this order."""

    def decorate(command: F) -> F:
        for option in reversed(options):  # decorators apply from the last to the first
            command = option(command)
        return command

    return decorate


TRUST_ENGINES = click.option(
    "--trust-engines",
    is_flag=True,
    help="Run TensorRT engines that are part of a bundle. They are native code: use only bundles that you "
    "trust. [default: only engines of tx-build]",
)
