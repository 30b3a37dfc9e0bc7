"""tx-verify with a checkpoint, which needs PyTorch."""

import dataclasses
import json
from pathlib import Path

import click
from rich.console import Console
from txport.exporter.progress import Stages
from txport.exporter.trial import choose_trial
from txport.exporter.verification.report import SINGLES
from txport.exporter.verification.table import print_report
from txport.exporter.verification.verify import Verifier, store_report
from txport.models.checkpoint import load_checkpoint
from txport.runtime.bundle.manifest import Manifest
from txport.runtime.engines.choice import choose, open_engine
from txport.runtime.errors import CheckFailed


def verify_checkpoint(
    bundle: Path,
    checkpoint: Path,
    manifest: Manifest,
    device: str,
    trial: tuple[int, Path | None, Path | None],
    singles: int | None,
    *,
    write: bool,
    as_json: bool,
) -> None:
    """Compare a bundle with a checkpoint and print the report.

    Args:
        bundle: whose files are checked already.
        checkpoint: what it was exported from.
        manifest: the bundle's.
        device: "cpu" for every lowering, or the device whose engine is compared.
        trial: how many sentences, a file of them, and a file of their translations.
        singles: how many of them to run alone as well.
        write: whether to store a report of the CPU in the bundle.
        as_json: whether to print the report as JSON.

    Raises:
        CheckFailed: they differ.
    """
    loaded = load_checkpoint(checkpoint)
    sentences, text, references = trial
    chosen = choose_trial(loaded, sentences, manifest.limits.source, manifest.limits.target, text, references)
    with Stages() as stages:
        verifier = Verifier(loaded, chosen, singles or SINGLES, stages)
        if device == "cpu":
            report = verifier.verify_bundle(bundle)
        else:
            engine = open_engine(bundle, manifest, choose(manifest, device, None, bundle))
            report = verifier.verify_engine(bundle, manifest, engine)
    if write and device == "cpu":
        store_report(bundle, report)
    if as_json:
        click.echo(json.dumps(dataclasses.asdict(report), indent=1))
    else:
        print_report(report, Console())
    if not report.passed:
        raise CheckFailed(f"{bundle}: {report.failure}")
