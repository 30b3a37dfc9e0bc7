"""Shared flags of several commands, and the refusal of flags without effect."""

from collections.abc import Callable
from typing import Any, TypeVar

import click
from click.core import ParameterSource
from txport.runtime.errors import InputError

F = TypeVar("F", bound=Callable[..., Any])


def flags(*options: Callable[[Any], Any]) -> Callable[[F], F]:
    """Combine decorators such as `click.option` into one; `--help` lists the options in this order."""

    def decorate(command: F) -> F:
        for option in reversed(options):  # decorators apply from the last to the first
            command = option(command)
        return command

    return decorate


def refuse_unused(unused: bool, reason: str, *names: str) -> None:
    """Refuse options of the command line that have no effect.

    Args:
        unused: whether these options have no effect now.
        reason: such as "without --show".
        names: of the parameters.

    Raises:
        InputError: one of them is on the command line.
    """
    context = click.get_current_context()
    options = {parameter.name: parameter.opts for parameter in context.command.params}
    for name in names:
        flag = next(each for each in options[name] if each.startswith("--"))  # the first is the present name
        if unused and context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            raise InputError(f"{flag} has no effect {reason}: leave it out")


DEVICE = click.option("--device", default="auto", show_default=True, help="Device: auto, cpu or cuda.")
ENGINE = click.option("--engine", default="auto", show_default=True, help="Engine: auto, fused, ort or trt.")
THREADS = click.option(
    "--threads", type=click.IntRange(0), default=0, help="Threads of each operator. [default: one per core]"
)
TRUST_ENGINES = click.option(
    "--trust-engines",
    is_flag=True,
    help="Run TensorRT engines that are part of a bundle. They are native code: use only bundles that you "
    "trust. [default: only engines of tx-build]",
)
