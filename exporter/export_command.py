"""Command tx-export: convert a checkpoint to a bundle. PyTorch is imported only when needed."""

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
from txport.exporter.options import check_options, dimensions_of
from txport.exporter.sentence_files import check_sentence_files, check_sentences
from txport.exporter.verification.options import verification_options
from txport.models.description import read_config, read_tokenizer
from txport.runtime.bundle.kinds import check_checkpoint
from txport.runtime.bundle.manifest import NAME
from txport.runtime.bundle.schema import LOWERINGS
from txport.runtime.bundle.strict_json import finite
from txport.runtime.console.flags import refuse_unused
from txport.runtime.errors import CheckFailed
from txport.runtime.files import check_target, check_writable
from txport.runtime.libraries import needs, share_cores, without_collection

# Lowerings of `txport.exporter.graphs.lowerings`, which imports PyTorch, with help texts about supported runtimes.
READ_BY = {
    "ort": "ONNX Runtime's own operators: ONNX Runtime only",
    "scatter": "opset 17: ONNX Runtime, TensorRT 8.6 and later",
    "tensorscatter": "opset 24: ONNX Runtime 1.25 and later, TensorRT 10.15 and later",
}


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("checkpoint", type=click.Path(path_type=Path))
@click.option("-o", "--output", required=True, type=click.Path(path_type=Path), help="Bundle directory to write.")
@click.option(
    "--fp16", "float16", is_flag=True, help="Convert to float16. Parts that need more precision stay in float32."
)
@click.option(
    "--int8", is_flag=True, help="Convert weights to int8, for CPUs. Layers that lose too much quality stay in float32."
)
@click.option(
    "--lowering",
    help="Decoder steps to write, separated by commas: "
    + "; ".join(f"{name} ({what})" for name, what in READ_BY.items())
    + ". [default: all; with --int8, ort]",
)
@click.option(
    "--max-source",
    type=int,
    help="Maximum number of source tokens, including eos. Unlimited for sinusoidal positions. [default: "
    "the model's maximum]",
)
@click.option(
    "--max-target", type=int, help="Maximum number of target tokens, including eos. [default: the model's maximum]"
)
@click.option("--max-batch", type=int, default=64, show_default=True, help="Maximum batch size in rows.")
@click.option(
    "--with-attention",
    "attention",
    is_flag=True,
    help="Add the graphs for alignments, attention, scores of reference translations and embeddings.",
)
@click.option(
    "--with-beams",
    "beams",
    is_flag=True,
    help="Add a beam search graph that does not copy caches, for ONNX Runtime 1.25 and later on CPUs.",
)
@click.option("--no-verify", is_flag=True, help="Skip the comparison with PyTorch.")
@verification_options
@click.option("--force", is_flag=True, help="Replace an existing bundle; keep one that failed verification.")
@click.option("--json", "as_json", is_flag=True, help="Print the verification report as JSON.")
def main(checkpoint: Path, output: Path, lowering: str | None, no_verify: bool, as_json: bool, **options: Any) -> None:
    """Export CHECKPOINT, a directory of tx-train or tx-import, as a bundle of ONNX graphs, and verify it.

    If the verification fails, no bundle is written and the exit code is 1.
    """
    refuse_unused(no_verify, "with --no-verify", "singles", "minutes")
    check_checkpoint(checkpoint)
    check_target(output, options["force"], NAME)
    check_writable(output)
    lowerings = _lowerings(lowering, int8=options["int8"])
    check_options(lowerings, **{name: options[name] for name in ("float16", "int8", "max_batch")})
    files = [options[name] for name in ("text", "references", "ids", "reference_ids", "features")]
    check_sentence_files(*files)
    _check_model(checkpoint, files, *(options[name] for name in ("max_source", "max_target", "max_batch")))
    with without_collection(), needs("export"):  # imported late, so that --help does not load PyTorch
        from txport.runtime.console.progress import Stages

        share_cores()
        from rich.console import Console
        from txport.exporter.export import ExportOptions, export_bundle
        from txport.exporter.verification.table import print_report

    export_options = ExportOptions(lowerings=lowerings, verify=not no_verify, **options)
    with Stages() as stages:
        report = export_bundle(checkpoint, output, export_options, stages)
    if as_json:
        result = {"bundle": str(output), "verification": report and dataclasses.asdict(report)}
        click.echo(json.dumps(finite(result), indent=1))
    else:
        if report is not None:
            print_report(report, Console())
        click.echo(f"bundle: {output}")
        if report is None or report.passed:
            if read_config(checkpoint).source == "features":
                advice = f'translate_features of txport.runtime.translator.Translator("{output}")'
            else:
                advice = f"tx-translate {output} FILE"
            click.echo(f"tx-export: next: {advice}", err=True)
    if report is not None and not report.passed:
        raise CheckFailed(f"{output} was kept because of --force, but {report.failure}")


def _check_model(
    checkpoint: Path, files: Sequence[Path | None], max_source: int | None, max_target: int | None, max_batch: int
) -> None:
    """Check options that depend on the model by its config.json, before PyTorch is imported."""
    config = read_config(checkpoint)
    tokenizer = read_tokenizer(checkpoint, config)
    dimensions = dimensions_of(config, tokenizer, max_source, max_target, max_batch)
    check_sentences(checkpoint, config, tokenizer, dimensions.source.max, *files)


def _lowerings(names: str | None, *, int8: bool) -> tuple[str, ...]:
    """Return the names in --lowering, or the default."""
    if names is not None:
        return tuple(name for name in names.split(",") if name)
    if int8:
        return ("ort",)
    return tuple(LOWERINGS)
