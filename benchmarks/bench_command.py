"""tx-bench: measure a bundle on this machine, optionally next to other libraries with the same weights."""

import signal
import sys
import tempfile
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from txport.benchmarks.report.compare import check_against
from txport.benchmarks.report.report import as_json, check_output
from txport.benchmarks.report.schema import BenchReport
from txport.benchmarks.report.tables import markdown, print_tables
from txport.benchmarks.run.job import BenchOptions, make_job
from txport.benchmarks.run.plans import PEERS
from txport.benchmarks.run.session import Session
from txport.runtime.arguments import check_reads_text
from txport.runtime.bundle.argument import BUNDLE
from txport.runtime.bundle.manifest import Manifest
from txport.runtime.console.flags import DEVICE, ENGINE, refuse_unused
from txport.runtime.console.progress import Stages
from txport.runtime.entry import INTERRUPTED
from txport.runtime.errors import InputError
from txport.runtime.files import make_directory, write_atomically

REPORT = "bench.json"
TEXT = "bench.md"
PATH = click.Path(path_type=Path)
POSITIVE = click.FloatRange(0, min_open=True)


def _numbers(context: click.Context, option: click.Parameter, value: str | None) -> list[int]:
    """Return a list such as "1,8,32"."""
    try:
        return [int(word) for word in (value or "").split(",") if word]
    except ValueError:
        raise click.BadParameter(f"{value!r} is not a list of whole numbers: give for example 1,8,32") from None


def _words(context: click.Context, option: click.Parameter, value: str) -> list[str]:
    return [word for word in value.split(",") if word]


def _pythons(context: click.Context, option: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    pairs = [value.partition("=") for value in values]
    for name, _, path in pairs:
        if name not in PEERS or not path:
            raise click.BadParameter(f"{name!r} is not a peer: give for example optimum=/usr/bin/python3")
    return {name: path for name, _, path in pairs}


@click.command(
    context_settings={"help_option_names": ["-h", "--help"], "show_default": True},
    epilog="See also: tx-bench compare --help.",
)
@click.argument("bundle", type=BUNDLE)
@click.option(
    "-o",
    "--output",
    type=PATH,
    default=Path("bench"),
    help=f"Directory for {REPORT}, {TEXT} and plots; existing results are replaced.",
)
@click.option("--batch", "batches", callback=_numbers, help="Batch sizes, separated by commas. [default: 1,8,32]")
@click.option("--source", "sources", callback=_numbers, help="Source lengths, separated by commas. [default: 32]")
@click.option("--target", "targets", callback=_numbers, help="Target lengths, separated by commas. [default: 64]")
@click.option("--text", type=PATH, help="File of sentences, one per line. [default: see --lines]")
@click.option(
    "--lines",
    type=click.IntRange(0),
    default=200,
    help="Number of sentences to translate, from --text, else from the checkpoint, else from the bundle's self-check. "
    "0: none.",
)
@click.option(
    "--beam",
    type=click.IntRange(1),
    default=1,
    help="Number of beams, 1 for greedy search. Beam search uses early_stopping=True.",
)
@click.option("--quick", is_flag=True, help="Skip the measurements over ranges of batch sizes and lengths.")
@click.option("--calls", type=click.IntRange(1), default=200, help="Number of timed calls.")
@click.option("--seconds", type=POSITIVE, default=20.0, help="Stop timing a workload after this number of seconds.")
@click.option("--peer-seconds", type=POSITIVE, default=2.0, help="The same limit for each peer.")
@click.option("--peers", "all_peers", is_flag=True, help="Also measure other libraries with the same weights.")
@click.option("--peer", "peers", multiple=True, type=click.Choice(PEERS), help="Library to measure. Repeatable.")
@click.option(
    "--checkpoint",
    type=PATH,
    help="The checkpoint that BUNDLE was exported from, for peers. [default: `checkpoint` beside BUNDLE]",
)
@click.option(
    "--compute-types",
    callback=_words,
    default="float32,int8",
    help="Compute types of CTranslate2, separated by commas.",
)
@click.option(
    "--peer-python",
    "pythons",
    multiple=True,
    callback=_pythons,
    help="Python interpreter of a peer, as NAME=PYTHON. Repeatable.",
)
@click.option("--cpp", type=PATH, help="Path of txport-bench, to measure the C++ runtime.")
@click.option("--against", multiple=True, type=PATH, help="Other bundle to measure in the same run. Repeatable.")
@click.option(
    "--max-ratio",
    type=POSITIVE,
    help="Exit with 1 if BUNDLE is slower than a bundle of --against by more than this factor.",
)
@DEVICE
@ENGINE
@click.option("--lowering", help="See tx-translate.")
@click.option(
    "--threads",
    type=click.IntRange(0),
    default=0,
    help="Number of threads, for txport and peers. 0 uses the default of each library.",
)
@click.option("--no-roofline", is_flag=True, help="Do not measure memory bandwidth and peak operations per second.")
@click.option("--no-plots", is_flag=True, help="Write no plots.")
@click.option("--json", "json_only", is_flag=True, help="Print the JSON instead of tables.")
def main(
    bundle: Path,
    output: Path,
    all_peers: bool,
    peers: tuple[str, ...],
    no_roofline: bool,
    max_ratio: float | None,
    no_plots: bool,
    json_only: bool,
    **others: Any,
) -> None:
    """Measure BUNDLE on this machine: latency, throughput, start-up time, memory, and a roofline.

    Results are written after each workload, so an interruption loses only the current one.
    """
    others |= {"peers": PEERS if all_peers else peers, "roofline": not no_roofline, "command": tuple(sys.argv[1:])}
    refuse_unused(not others["peers"], "without --peers or --peer", "peer_seconds", "pythons")
    refuse_unused("ctranslate2" not in others["peers"], "without --peer ctranslate2", "compute_types")
    options = BenchOptions(bundle, output / REPORT, **others)
    if max_ratio is not None and not options.against:
        raise InputError("--max-ratio needs another bundle to compare with: give --against")
    for each in (bundle, *options.against):
        check_reads_text(each, Manifest.load(each).model.feature_size)
    report = _run(options, with_plots=not no_plots)
    if json_only:
        click.echo(as_json(report))
    else:
        print_tables(report, Console())
        click.echo(f"\nwritten: {output}")
    if not report.complete:
        raise click.exceptions.Exit(INTERRUPTED)
    if max_ratio is not None:
        check_against(report, max_ratio)


def _run(options: BenchOptions, with_plots: bool) -> BenchReport:
    """Measure and write the results; an interruption leaves an incomplete report."""
    # A batch system ends jobs by SIGTERM. Like Ctrl-C, it must leave a report and no processes.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    check_output(options.output)
    with tempfile.TemporaryDirectory(prefix="txport-bench-") as scratch, Stages() as stages:
        job = make_job(options, Path(scratch))
        directory = options.output.parent
        make_directory(directory)
        session = Session(job, stages)
        try:
            session.run()
        except KeyboardInterrupt:
            if not session.report.measurements:
                raise
            print("tx-bench: interrupted; the results so far are written", file=sys.stderr)
    write_atomically(directory / TEXT, markdown(session.report).encode())
    if with_plots:
        from txport.benchmarks.report.plots import write_plots  # Matplotlib is slow to import

        write_plots(session.report, directory)
    return session.report
