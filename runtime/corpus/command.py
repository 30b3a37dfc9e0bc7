"""tx-translate-corpus: translate files of any number and size into a directory of parts."""

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
from txport.runtime.corpus.loop import PART_ROWS, WINDOW_ROWS, Corpus, Layout, RowOperation, Share
from txport.runtime.corpus.rows import ON_ERROR
from txport.runtime.corpus.translation import Translate
from txport.runtime.errors import CheckFailed
from txport.runtime.options import Options
from txport.runtime.translate_command import engine_of, flags_in_messages, given_options, of_engine, of_options
from txport.runtime.translator import Translator


def _share(_context: click.Context, _parameter: click.Parameter, value: str | None) -> Share:
    """Parse a share of the parts: i/n, counted from 1."""
    numbers = re.fullmatch(r"(\d+)/(\d+)", value or "1/1")
    if numbers is None or not 1 <= int(numbers[1]) <= int(numbers[2]):
        raise click.BadParameter(f"{value!r} is not I/N, for example 3/8")
    return Share(int(numbers[1]) - 1, int(numbers[2]))


def _names(_context: click.Context, _parameter: click.Parameter, value: str | None) -> tuple[str, ...] | None:
    """Parse names separated by commas; an empty text means no names."""
    if value is None:
        return None
    return tuple(name for name in value.split(",") if name)


# Flags of all commands that process corpora in parts.
of_parts = flags(
    click.option(
        "--shard", "share", callback=_share, metavar="I/N", help="Process only shard I of N. [default: all parts]"
    ),
    click.option("--resume", is_flag=True, help="Continue an interrupted run: write only the missing parts."),
    click.option(
        "--check",
        is_flag=True,
        help="Write nothing. Compare all parts with their hashes, and exit with 1 if one is missing or damaged.",
    ),
    click.option("--column", default="text", show_default=True, help="Name of the column to translate."),
    click.option(
        "--from", "read", type=click.Choice(FORMATS), help="Format of the input. [default: from the file names]"
    ),
    click.option("--to", "write", type=click.Choice(FORMATS), help="Format of the output. [default: the input's]"),
    click.option(
        "--compress",
        "compression",
        type=click.Choice(COMPRESSIONS),
        help="Compression of text and JSONL. [default: the input's]",
    ),
    click.option("--part-rows", type=click.IntRange(1), default=PART_ROWS, show_default=True, help="Rows per part."),
    click.option(
        "--window-rows",
        type=click.IntRange(1),
        default=WINDOW_ROWS,
        show_default=True,
        help="Rows that are sorted by length at a time.",
    ),
)
PART_FLAGS = ("share", "resume", "check", "column", "read", "write", "compression", "part_rows", "window_rows")


def run(task: RowOperation, files: Sequence[str], output: str, flags: dict[str, Any], **layout: Any) -> str:
    """Process a corpus with the flags of `of_parts` and return a summary in one sentence.

    Raises:
        CheckFailed: a part is missing or damaged.
    """
    share, resume, check = (flags.pop(name) for name in ("share", "resume", "check"))
    shape = Layout(**flags, **layout)
    totals = Corpus(listed(files), output, shape, task).run(share, resume=resume, check=check)
    if totals.missing:
        if totals.missing[1:]:
            others = f" and {len(totals.missing) - 1:,} more"
        else:
            others = ""
        raise CheckFailed(
            f"{output} lacks {totals.missing[0]}{others}, or a part is damaged: run it again with --resume"
        )
    return f"{output}: {totals.sentence()}"


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("bundle", type=BUNDLE)
@click.argument("files", metavar="FILE...", nargs=-1, required=True)
@click.option("-o", "--output", required=True, metavar="DIRECTORY", help="Output directory for the parts, or its URL.")
@of_parts
@click.option(
    "--errors",
    type=click.Choice(ON_ERROR),
    default=ON_ERROR[0],
    show_default=True,
    help="What to do with an invalid row: record the error (skip), stop (strict), or insert U+FFFD (replace).",
)
@click.option("--keep", callback=_names, help="Input columns to copy, separated by commas. [default: all]")
@click.option("--target", default="translation", show_default=True, help="Name of the translation column.")
@click.option("--ids", is_flag=True, help="Add a column of target ids.")
@of_options
@of_engine
def main(
    bundle: Path, files: Sequence[str], output: str, keep: tuple[str, ...] | None, target: str, ids: bool,
    errors: str, **options: Any,
) -> None:  # fmt: skip
    """Translate corpora with BUNDLE: text, JSONL and Parquet, plain, .gz, .zst, .bz2 or .xz, local or at URLs.

    FILEs may be directories and patterns. The output is a directory of parts of --part-rows rows. A part appears only
    when it is complete, and has one row for each input row, in order. Several processes can share the work by --shard.
    An interrupted process continues with --resume.
    """
    show_log("txport.corpus")
    chosen = engine_of(options)
    flags = {name: options.pop(name) for name in PART_FLAGS}
    refuse_unused(flags["check"], "with --check", "resume")
    with flags_in_messages():
        task = Translate(bundle, lambda: Translator(bundle, **chosen), Options(**given_options(options)), target, ids)
        click.echo(run(task, files, output, flags, keep=keep, errors=errors))
