"""tx-translate: standard input to standard output, line by line."""

import json
import logging
import sys
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any, TextIO, TypeVar, get_type_hints

import click
from txport.runtime.errors import InputError
from txport.runtime.greedy import BATCH_TOKENS
from txport.runtime.options import Options
from txport.runtime.text.lines import WINDOW_LINES, as_line, text_windows, windows, write_all
from txport.runtime.translator import Translation, Translator

F = TypeVar("F", bound=Callable[..., Any])


def _of_options(command: F) -> F:
    """A flag for each field of `Options`."""
    kinds = get_type_hints(Options)
    for option in reversed(fields(Options)):
        flag, least = f"--{option.name.replace('_', '-')}", option.metadata["least"]
        if kinds[option.name] is bool:
            form: dict[str, Any] = {"is_flag": True}
        else:
            form = {"type": str if least is None else click.IntRange(least), "default": option.default}
        command = click.option(flag, help=option.metadata["help"], **form)(command)
    return command


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Write a JSON object a line: text, ids, truncated (and scores).")
@_of_options
@click.option("--device", default="auto", show_default=True, help="Where to run: auto, cpu, cuda or trt.")
@click.option("--lowering", help="The decoder step to use: ort, scatter or tensorscatter. [default: the best here]")
@click.option(
    "--threads", type=click.IntRange(0), default=0, help="Threads per batch. [default: the cores divided by --workers]"
)
@click.option(
    "--workers",
    type=click.IntRange(0),
    default=0,
    help="Batches that run side by side on the CPU. [default: one per core, at most 4]",
)
@click.option("--batch", type=click.IntRange(1), help="Most lines that run together. [default: the bundle's]")
@click.option(
    "--batch-tokens",
    type=click.IntRange(1),
    default=BATCH_TOKENS,
    show_default=True,
    help="Most source tokens, padding included, that run together.",
)
@click.option(
    "--window", type=click.IntRange(1), default=WINDOW_LINES, show_default=True, help="Most lines to read ahead."
)
def main(
    bundle: Path,
    as_json: bool,
    device: str,
    lowering: str | None,
    threads: int,
    workers: int,
    batch: int | None,
    batch_tokens: int,
    window: int,
    **options: Any,
) -> None:
    r"""Translate lines from standard input to standard output with BUNDLE.

    One line out for each line in. A single line is translated at once; many lines are sorted by length and run in
    batches. Lines are UTF-8 and end at "\n" only; empty ones stay empty.
    """
    logging.basicConfig(format="tx-translate: %(message)s", level=logging.WARNING)
    source, target = _descriptor(sys.stdin, "input"), _descriptor(sys.stdout, "output")
    translator = Translator(bundle, device, lowering, threads, batch, batch_tokens, workers)
    texts = text_windows(windows(source, window))
    for results in translator.translate_windows(texts, **options | {"scores": options["scores"] and as_json}):
        lines = (as_json_line(result) if as_json else as_line(result.text) for result in results)
        write_all(target, b"".join(lines))


def _descriptor(stream: TextIO | None, name: str) -> int:
    # A closed one is None, and its descriptor may by now belong to any other file.
    if stream is None:
        raise InputError(f"standard {name} is closed: give a file or a pipe")
    return stream.fileno()


def as_json_line(result: Translation) -> bytes:
    """One JSON object, the same bytes as the C++ runtime writes: scores have six decimals."""
    scores = ""
    if result.scores is not None:
        scores = f', "scores": [{", ".join(map(_six_decimals, result.scores))}]'
    text, truncated = json.dumps(result.text, ensure_ascii=False), json.dumps(result.truncated)
    return f'{{"text": {text}, "ids": {result.ids}{scores}, "truncated": {truncated}}}\n'.encode()


def _six_decimals(score: float) -> str:
    # Whether a probability of one has the logarithm 0 or -0 depends on the order of a sum.
    text = f"{score:.6f}"
    return text.removeprefix("-") if text == "-0.000000" else text
