"""A plan for a corpus, from measured inputs: `python -m txport.benchmarks.studies.machines.billion BUNDLE TEXT`.

What processes take for a line is measured on two cores of this machine, and multiplied. The lines of TEXT stand for
those of the corpus: how long they are decides. It should have as many as the sample: what is repeated is packed to
nothing.
"""

import json
import math
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import click
import numpy as np
from txport.benchmarks.studies.machines.corpora import limit, one_and_two, translating, write
from txport.runtime.corpus import sources
from txport.runtime.corpus.formats import form_of
from txport.runtime.corpus.loop import PART_ROWS

READ = 500_000  # lines, to measure how fast they are read


@dataclass(frozen=True)
class Measured:
    """Costs of one process on a core of this machine.

    Attributes:
        rate: lines a second, alone and once it has started.
        efficiency: share of it that each of two processes on two cores has.
        start: seconds until a single line is translated.
        tokens: target tokens of a line.
        input_bytes, output_bytes: of a line, compressed as JSONL.
        reading: lines a second that it unpacks and leaves out, of shares that are not its own.
    """

    rate: float
    efficiency: float
    start: float
    tokens: float
    input_bytes: float
    output_bytes: float
    reading: float


def measure(bundle: Path, text: Path, lines: int, max_length: int | None, rounds: int) -> Measured:
    """Translate `lines` lines by one process and by two, and read others."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        works = [translating(folder, bundle, text, count, limit(max_length)) for count in (lines, 1)]
        # Of each process, by the clock: [translation and start, alone and beside another]
        seconds = np.median(one_and_two(works, rounds), axis=0)[..., 0]
        alone, beside = seconds[0] - seconds[1]
        parts = [json.loads(path.read_text()) for path in (folder / f"out{lines}-0" / "_parts").iterdir()]
        return Measured(
            rate=lines / alone,
            efficiency=alone / beside,
            start=seconds[1, 0],
            tokens=sum(part["tokens"] for part in parts) / lines,
            input_bytes=(folder / f"{lines}-1.jsonl.zst").stat().st_size / lines,
            output_bytes=sum(part["output_bytes"] for part in parts) / lines,
            reading=READ / seconds_to_read(write(folder / "read.jsonl.zst", text, READ)),
        )


def seconds_to_read(path: Path) -> float:
    """Return seconds to leave out all rows of a file."""
    begin = time.perf_counter()
    with sources.opened(str(path), form_of(path.name), "text", None) as source:
        source.skip(READ)
    return time.perf_counter() - begin


def plan(lines: float, measured: Measured, cores: int, price: float) -> dict[str, str]:
    """Figures of a run, by name.

    Args:
        lines: of the corpus.
        measured: what a process takes.
        cores: that work at once.
        price: of a core for an hour.
    """
    rate = measured.rate * measured.efficiency
    hours = lines / rate / 3_600
    a_second = rate * cores
    parts = math.ceil(lines / PART_ROWS)
    return {
        "core hours": f"{hours:,.0f}",
        "hours": f"{hours / cores:,.1f} on {cores:,} cores",
        "cost": f"{hours * price:,.0f}",
        "rate": f"{a_second:,.0f} lines/s, {a_second * measured.tokens:,.0f} tokens/s",
        "input": f"{lines * measured.input_bytes / 1e9:,.0f} GB, {a_second * measured.input_bytes / 1e6:,.2f} MB/s",
        "output": f"{lines * measured.output_bytes / 1e9:,.0f} GB, {a_second * measured.output_bytes / 1e6:,.2f} MB/s",
        "parts": f"{parts:,} of {PART_ROWS:,} lines, {PART_ROWS / rate / 60:,.1f} minutes each",
        "of one file": f"{lines / measured.reading / 60:,.0f} minutes of each process to unpack what is not its own",
    }


@click.command()
@click.argument("bundle", type=click.Path(path_type=Path))
@click.argument("text", type=click.Path(path_type=Path))
@click.option("--lines", default=1e9, show_default=True, help="Number of lines of the corpus.")
@click.option("--cores", default=256, show_default=True)
@click.option("--price", default=0.04, show_default=True, help="Price of a core per hour.")
@click.option("--sample", default=20_000, show_default=True, help="Number of lines to measure.")
@click.option("--max-length", default=None, type=int, help="Maximum number of target tokens.")
@click.option("--rounds", default=3, show_default=True)
def main(
    bundle: Path, text: Path, lines: float, cores: int, price: float, sample: int, max_length: int | None, rounds: int
) -> None:
    """Print what was measured, and hours, cost and rates of a run."""
    measured = measure(bundle, text, sample, max_length, rounds)
    click.echo(
        f"A process on a core: {measured.rate:,.0f} lines/s, {measured.rate * measured.tokens:,.0f} tokens/s, "
        f"{measured.tokens:.1f} tokens a line; {measured.efficiency:.2f} of it beside another one. It starts in "
        f"{measured.start:.2f} s, and leaves out {measured.reading:,.0f} lines/s. A line has "
        f"{measured.input_bytes:.0f} bytes, and {measured.output_bytes:.0f} with its translation, compressed."
    )
    for name, value in plan(lines, measured, cores, price).items():
        click.echo(f"{name:11} {value}")


if __name__ == "__main__":
    main()
