"""tx-bench compare: two runs side by side."""

import json
from pathlib import Path

import click
from rich.console import Console
from rich.markup import escape
from txport.benchmarks.report.compare import compare, read_figures
from txport.benchmarks.report.tables import TEXT_COLUMNS
from txport.exporter.tables import print_table


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("first", type=click.Path(path_type=Path))
@click.argument("second", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
def main(first: Path, second: Path, as_json: bool) -> None:
    """Compare the times of FIRST and SECOND, reports of tx-bench or txport-bench.

    A ratio above 1 means that SECOND is slower. Runs at different times are comparable only if the machine has not
    changed. To choose between two bundles, measure both in one run with --against.
    """
    figures = read_figures(first), read_figures(second)
    comparisons = compare(*figures)
    if as_json:
        click.echo(json.dumps([each.to_json() for each in comparisons], indent=1, ensure_ascii=False))
        return
    console = Console()
    for name, side in zip(("first", "second"), figures, strict=True):
        console.print(f"[bold]{name}[/]: {escape(side.machine)}", highlight=False, soft_wrap=True)
    console.print("\nms/token", highlight=False)
    table = [
        [
            *(each.contestant, each.workload, f"{each.first.middle:.3f}", f"{each.second.middle:.3f}"),
            *(f"{each.ratio:.3f} ({each.low:.2f}..{each.high:.2f})", each.verdict),
        ]
        for each in comparisons
    ]
    print_table(["", "workload", "first", "second", "ratio (low..high)", "second is"], table, console, TEXT_COLUMNS)
