"""tx-bench scale: how cost grows with lengths, batches, layers, vocabulary and sentences.

PyTorch is imported when there is something to do.
"""

import signal
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import click
from txport.benchmarks.scale.sizes import FULL, QUICK
from txport.models.config import PRESETS
from txport.runtime.entry import INTERRUPTED
from txport.runtime.errors import InputError
from txport.runtime.files import make_directory, write_atomically
from txport.runtime.libraries import needs

REPORT, TEXT = "scale.json", "scale.md"
PATH = click.Path(path_type=Path)


@click.command(context_settings={"help_option_names": ["-h", "--help"], "show_default": True})
@click.option("-o", "--output", type=PATH, default=Path("scale"), help=f"Directory for {REPORT}, {TEXT} and the plot.")
@click.option("--axis", "axes", multiple=True, type=click.Choice(list(FULL)), help="Only this; may be repeated.")
@click.option(
    "--values", multiple=True, help="AXIS=N,N,...: these sizes instead, for example target=16,64; may be repeated."
)
@click.option("--full", is_flag=True, help="All sizes, up to 512 tokens, 256 rows, 24 layers: ten minutes and more.")
@click.option("--preset", type=click.Choice(list(PRESETS)), default="small", help="Random models.")
@click.option("--bundle", type=PATH, help="A trained bundle, for the axis of sentences.")
@click.option("--text", type=PATH, help="Its sentences. [default: those of its self-check]")
@click.option("--threads", type=click.IntRange(0), default=0, help="Threads; 0 for the library's choice.")
def main(
    output: Path,
    axes: tuple[str, ...],
    values: tuple[str, ...],
    full: bool,
    preset: str,
    bundle: Path | None,
    text: Path | None,
    threads: int,
) -> None:
    """Measure how the time of a call grows with each size, the others fixed, with random weights.

    The axis of sentences measures one text file, and needs a trained bundle.
    """
    with needs("bench"):  # here, so that --help need not wait for PyTorch
        from rich.console import Console
        from txport.benchmarks.machine.description import describe
        from txport.benchmarks.machine.nvml import open_nvml
        from txport.benchmarks.report.report import check_output, header, write_report
        from txport.benchmarks.scale.report import plot_scale, print_scale, scale_markdown
        from txport.benchmarks.scale.scale import Study, measure_axis
        from txport.benchmarks.scale.schema import SCALE_FORMAT, SCALE_FORMAT_VERSION, ScaleReport
        from txport.exporter.progress import Stages

    sizes = dict(FULL if full else QUICK) | _parse(values)
    chosen = axes or tuple(name for name in FULL if name != "sentences" or bundle is not None)
    if "sentences" in chosen and bundle is None:
        raise InputError("the axis of sentences needs a trained bundle: give one with --bundle")
    check_output(output / REPORT)
    make_directory(output)
    report = ScaleReport(**header(SCALE_FORMAT, SCALE_FORMAT_VERSION, sys.argv[1:], describe(open_nvml())))
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with tempfile.TemporaryDirectory(prefix="txport-scale-") as scratch, Stages() as stages:
            study = Study(preset, threads, Path(scratch), bundle, text)
            for name in chosen:
                axis = measure_axis(study, name, sizes[name], stages)
                report = replace(report, axes=(*report.axes, axis))
                write_report(output / REPORT, report)
        report = replace(report, complete=True)
    except KeyboardInterrupt:
        print("tx-bench scale: interrupted; the axes that were finished are kept", file=sys.stderr)
    write_report(output / REPORT, report)
    write_atomically(output / TEXT, scale_markdown(report).encode())
    plot_scale(report, output)
    print_scale(report, Console())
    click.echo(f"\nwritten: {output}")
    if not report.complete:
        raise click.exceptions.Exit(INTERRUPTED)


def _parse(values: tuple[str, ...]) -> dict[str, list[int]]:
    sizes = {}
    for value in values:
        name, _, numbers = value.partition("=")
        words = [word for word in numbers.split(",") if word]
        if name not in FULL or not words or not all(word.isdigit() and int(word) > 0 for word in words):
            raise InputError(f"--values {value} cannot be used: give for example target=16,64 ({', '.join(FULL)})")
        sizes[name] = sorted({int(word) for word in words})
    return sizes
