"""The options of tx-export and tx-verify that say what is verified on, and for how long."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click
from txport.exporter.verification.portions import MINUTES, SENTENCES, SINGLES

Command = TypeVar("Command", bound=Callable[..., Any])

_OPTIONS = (
    click.option(
        "--sentences",
        type=click.IntRange(1),
        help="Sentences to verify on, however long it takes without --verify-minutes. "
        f"[default: up to {SENTENCES:,}, as many as fit into --verify-minutes]",
    ),
    click.option(
        "--verify-minutes",
        "minutes",
        type=click.FloatRange(0, min_open=True),
        help=f"About how long to verify. [default: {MINUTES:g}; any time with --sentences]",
    ),
    click.option(
        "--singles",
        type=click.IntRange(1),
        default=SINGLES,
        show_default=True,
        help="How many of them to decode alone as well.",
    ),
    click.option(
        "--text", type=click.Path(path_type=Path), help="Sentences to verify on. [default: the checkpoint's own]"
    ),
    click.option("--references", type=click.Path(path_type=Path), help="Translations of --text, for int8."),
)


def verification_options(command: Command) -> Command:
    """Add them to a command, as `sentences`, `minutes`, `singles`, `text` and `references`."""
    for option in reversed(_OPTIONS):  # decorators apply from the last to the first
        command = option(command)
    return command
