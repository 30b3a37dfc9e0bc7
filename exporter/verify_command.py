"""tx-verify: a bundle is compared with the checkpoint that it came from."""

import dataclasses
import json
from pathlib import Path

import click
from rich.console import Console
from txport.exporter.export import SINGLES, failure_summary
from txport.exporter.progress import Stages
from txport.exporter.report_table import print_report
from txport.exporter.trial import choose_trial
from txport.exporter.verify import store_report, verify_bundle
from txport.models.checkpoint import load_checkpoint
from txport.runtime.errors import CheckFailed
from txport.runtime.manifest import Manifest


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("bundle", type=click.Path(path_type=Path))
@click.argument("checkpoint", type=click.Path(path_type=Path))
@click.option("--sentences", type=click.IntRange(1), default=1000, show_default=True, help="Sentences to verify on.")
@click.option(
    "--singles", type=click.IntRange(1), default=SINGLES, show_default=True, help="How many to run alone as well."
)
@click.option("--text", type=click.Path(path_type=Path), help="Sentences to verify on. [default: the checkpoint's own]")
@click.option("--references", type=click.Path(path_type=Path), help="Translations of --text, for int8 bundles.")
@click.option("--no-write", is_flag=True, help="Leave the bundle's verification.json as it is.")
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
def main(
    bundle: Path,
    checkpoint: Path,
    sentences: int,
    singles: int,
    text: Path | None,
    references: Path | None,
    no_write: bool,
    as_json: bool,
) -> None:
    """Compare BUNDLE with CHECKPOINT in PyTorch float32, token by token; exits with 1 if they differ.

    The report becomes the bundle's verification.json.
    """
    manifest = Manifest.load(bundle)
    manifest.check_files(bundle, hashes=lambda name: True)
    loaded = load_checkpoint(checkpoint)
    trial = choose_trial(loaded, sentences, manifest.limits.source, manifest.limits.target, text, references)
    with Stages() as stages:
        report = verify_bundle(bundle, loaded, trial, singles, stages)
    if not no_write:
        store_report(bundle, report)
    if as_json:
        click.echo(json.dumps(dataclasses.asdict(report), indent=1))
    else:
        print_report(report, Console())
    if not report.passed:
        raise CheckFailed(f"{bundle}: {failure_summary(report)}.")
