"""A plan for a corpus, from measured inputs: `python -m txport.benchmarks.studies.machines.billion --lines 1e9 --rate 2000`."""

import math

import click
from txport.runtime.corpus.loop import PART_ROWS


def plan(
    lines: float, tokens: float, rate: float, cores: int, price: float, line_bytes: float, efficiency: float
) -> dict[str, str]:
    """Figures of a run, by name.

    Args:
        lines: of the corpus.
        tokens: target tokens of a line.
        rate: target tokens a second of one core that is alone.
        cores: that work at once.
        price: of a core for an hour.
        line_bytes: of a line of input; the output has twice as many, since the source is kept.
        efficiency: share of `rate` that a core has beside others.
    """
    core_seconds = lines * tokens / (rate * efficiency)
    seconds = core_seconds / cores
    parts = math.ceil(lines / PART_ROWS)
    return {
        "core hours": f"{core_seconds / 3_600:,.0f}",
        "hours": f"{seconds / 3_600:,.1f} on {cores:,} cores",
        "cost": f"{core_seconds / 3_600 * price:,.0f}",
        "lines a second": f"{lines / seconds:,.0f}, {rate * efficiency / tokens:,.0f} a core",
        "input": f"{lines * line_bytes / 1e9:,.0f} GB, {lines * line_bytes / seconds / 1e6:,.2f} MB/s",
        "output": f"{2 * lines * line_bytes / 1e9:,.0f} GB, {2 * lines * line_bytes / seconds / 1e6:,.2f} MB/s",
        "parts": f"{parts:,} of {PART_ROWS:,} lines, {PART_ROWS * tokens / (rate * efficiency) / 60:,.0f} minutes each",
    }


@click.command()
@click.option("--lines", default=1e9, show_default=True)
@click.option("--tokens", default=25.0, show_default=True, help="Target tokens of a line.")
@click.option("--rate", default=2_000.0, show_default=True, help="Target tokens a second of one core.")
@click.option("--cores", default=256, show_default=True)
@click.option("--price", default=0.04, show_default=True, help="Of a core for an hour.")
@click.option("--line-bytes", default=120.0, show_default=True, help="Bytes of a line.")
@click.option("--efficiency", default=0.9, show_default=True, help="Share of the rate that a core has beside others.")
def main(
    lines: float, tokens: float, rate: float, cores: int, price: float, line_bytes: float, efficiency: float
) -> None:
    """Print hours, cost and rates of a run."""
    for name, value in plan(lines, tokens, rate, cores, price, line_bytes, efficiency).items():
        click.echo(f"{name:15} {value}")


if __name__ == "__main__":
    main()
