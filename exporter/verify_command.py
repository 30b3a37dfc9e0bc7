"""tx-verify: compare a bundle with the checkpoint that it was exported from, or with its own golden.json.

Without a checkpoint PyTorch is not imported, so that this runs on a device.
"""

import dataclasses
import json
from pathlib import Path

import click
from txport.exporter.verification.golden import GoldenReport, verify_golden
from txport.runtime.bundle.manifest import Manifest
from txport.runtime.errors import CheckFailed, InputError
from txport.runtime.libraries import needs


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("bundle", type=click.Path(path_type=Path))
@click.argument("checkpoint", type=click.Path(path_type=Path), required=False)
@click.option("--device", default="cpu", show_default=True, help="What to verify: cpu (every lowering), cuda or trt.")
@click.option("--sentences", type=click.IntRange(1), default=1000, show_default=True, help="Sentences to verify on.")
@click.option("--singles", type=click.IntRange(1), help="How many to run alone as well. [default: as tx-export]")
@click.option("--text", type=click.Path(path_type=Path), help="Sentences to verify on. [default: the checkpoint's own]")
@click.option("--references", type=click.Path(path_type=Path), help="Translations of --text, for int8 bundles.")
@click.option("--no-write", is_flag=True, help="Leave the bundle's verification.json as it is.")
@click.option(
    "--layers", is_flag=True, help="Compare every value of the graphs with float32 instead, on golden.json's cases."
)
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
def main(
    bundle: Path,
    checkpoint: Path | None,
    device: str,
    sentences: int,
    singles: int | None,
    text: Path | None,
    references: Path | None,
    no_write: bool,
    layers: bool,
    as_json: bool,
) -> None:
    """Compare BUNDLE with CHECKPOINT in PyTorch float32, token by token; exits with 1 if they differ.

    On the CPU every lowering is compared, and the report becomes the bundle's verification.json. With --device cuda or
    trt the engine of that device is compared. Without CHECKPOINT it is compared with the bundle's golden.json. With
    --layers the values that the precision costs most are listed; exits with 1 if a value is not finite.
    """
    manifest = Manifest.load(bundle)
    manifest.check_files(bundle, hashes=lambda name: True)
    if layers:
        if checkpoint is not None or text is not None or references is not None:
            raise InputError("--layers compares the bundle with itself in float32: leave the checkpoint and texts out")
        with needs("export"):
            from txport.exporter.verification.layers import verify_layers
        verify_layers(bundle, manifest, device, as_json=as_json)
        return
    if checkpoint is None:
        if text is not None or references is not None:
            raise InputError("--text and --references need a CHECKPOINT to compare with: name it after the bundle")
        golden = verify_golden(bundle, device)
        click.echo(json.dumps(dataclasses.asdict(golden), indent=1) if as_json else _words(golden))
        if not golden.passed:
            raise CheckFailed(f"{bundle}: {golden.differences[0]}")
        return
    with needs("export"):
        from txport.exporter.verification.checkpoint import verify_checkpoint
    trial = sentences, text, references
    verify_checkpoint(bundle, checkpoint, manifest, device, trial, singles, write=not no_write, as_json=as_json)


def _words(report: GoldenReport) -> str:
    return (
        f"{report.engine}: of {report.cases} cases that PyTorch answered at export, {report.batch_identical} are "
        f"identical in batches and alone, {report.refill_identical} in refilled rows"
    )
