"""tx-translate-corpus: files of any number and size into a directory of parts."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
from txport.runtime.bundle.argument import BUNDLE
from txport.runtime.console.flags import flags, refuse_unused
from txport.runtime.console.logs import show_log
from txport.runtime.corpus.formats import COMPRESSIONS, FORMATS
from txport.runtime.corpus.locations import listed
from txport.runtime.corpus.loop import PART_ROWS, WINDOW_ROWS, Corpus, Layout, Share, Task
from txport.runtime.corpus.rows import ON_ERROR
from txport.runtime.corpus.translation import Translate
from txport.runtime.errors import CheckFailed
from txport.runtime.options import Options
from txport.runtime.translate_command import engine_of, given_options, of_engine, of_options
from txport.runtime.translator import Translator


def _share(_context: click.Context, _parameter: click.Parameter, value: str | None) -> Share:
    """A share of the parts, from i/n, which counts from 1."""
    numbers = re.fullmatch(r"(\d+)/(\d+)", value or "1/1")
    if numbers is None or not 1 <= int(numbers[1]) <= int(numbers[2]):
        raise click.BadParameter(f"{value!r} is no share: the third of eight is 3/8")
    return Share(int(numbers[1]) - 1, int(numbers[2]))


def _names(_context: click.Context, _parameter: click.Parameter, value: str | None) -> tuple[str, ...] | None:
    """Names, divided by commas; an empty text is none of them."""
    return None if value is None else tuple(name for name in value.split(",") if name)


# Flags of all that work on corpora in parts.
of_parts = flags(
    click.option("--shard", "share", callback=_share, metavar="I/N", help="The I-th of N shares. [default: all parts]"),
    click.option("--resume", is_flag=True, help="Make what is missing, and leave the parts that are there."),
    click.option("--check", is_flag=True, help="Make nothing: compare what is there with its hashes; exit with 1 if "
                 "anything is missing or damaged."),
    click.option("--column", default="text", show_default=True, help="Column to translate."),
    click.option("--from", "read", type=click.Choice(FORMATS), help="Format of the input. [default: by its names]"),
    click.option("--to", "write", type=click.Choice(FORMATS), help="Format of the output. [default: the input's]"),
    click.option("--compress", "compression", type=click.Choice(COMPRESSIONS),
                 help="Compression of text and JSONL. [default: the input's]"),
    click.option("--part-rows", type=click.IntRange(1), default=PART_ROWS, show_default=True, help="Rows of a part."),
    click.option("--window-rows", type=click.IntRange(1), default=WINDOW_ROWS, show_default=True,
                 help="Rows that are sorted by length together."),
)  # fmt: skip
PART_FLAGS = ("share", "resume", "check", "column", "read", "write", "compression", "part_rows", "window_rows")


def run(task: Task, files: Sequence[str], output: str, flags: dict[str, Any], **layout: Any) -> str:
    """Work on a corpus as the flags of `of_parts` say; what was done, in a sentence.

    Raises:
        CheckFailed: something is missing or damaged.
    """
    share, resume, check = (flags.pop(name) for name in ("share", "resume", "check"))
    shape = Layout(**flags, **layout)
    totals = Corpus(listed(files), output, shape, task).run(share, resume=resume, check=check)
    if totals.missing:
        others = f" and {len(totals.missing) - 1:,} more" if totals.missing[1:] else ""
        raise CheckFailed(f"{output} has no whole {totals.missing[0]}{others}: make it with --resume")
    return f"{output}: {totals.sentence()}"


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("bundle", type=BUNDLE)
@click.argument("files", metavar="FILE...", nargs=-1, required=True)
@click.option("-o", "--output", required=True, metavar="DIRECTORY", help="Directory of the parts, or its URL.")
@of_parts
@click.option(
    "--errors",
    type=click.Choice(ON_ERROR),
    default=ON_ERROR[0],
    show_default=True,
    help="For a row that is no text: say why and go on, stop, or put U+FFFD where bytes are wrong.",
)
@click.option("--keep", callback=_names, help="Columns of the input to write, too, divided by commas. [default: all]")
@click.option("--target", default="translation", show_default=True, help="Column of the translation.")
@click.option("--ids", is_flag=True, help="Write the target ids, too.")
@of_options
@of_engine
def main(
    bundle: Path, files: Sequence[str], output: str, keep: tuple[str, ...] | None, target: str, ids: bool,
    errors: str, **options: Any,
) -> None:  # fmt: skip
    """Translate corpora with BUNDLE: text, JSONL and Parquet, plain, .gz, .zst, .bz2 or .xz, here or at URLs.

    FILEs may be directories and patterns. The output is a directory of parts of --part-rows rows, each of which appears
    whole or not at all, with one row for each row of the input, in order. Processes that each take a --shard make it
    together; who is ended at any moment goes on with --resume.
    """
    show_log("txport.corpus")
    chosen = engine_of(options)
    flags = {name: options.pop(name) for name in PART_FLAGS}
    task = Translate(bundle, lambda: Translator(bundle, **chosen), Options(**given_options(options)), target, ids)
    refuse_unused(flags["check"], "with --check", "resume")
    click.echo(run(task, files, output, flags, keep=keep, errors=errors))
