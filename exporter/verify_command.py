"""Command tx-verify: compare a bundle with its checkpoint, or with its golden.json.

Without a checkpoint PyTorch is not imported, so that the command runs on devices without it.
"""

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from txport.exporter.golden import GoldenReport, admit_fused, awaits_fused, verify_golden
from txport.exporter.sentence_files import check_sentence_files, check_sentences, check_sizes
from txport.exporter.verification.options import verification_options
from txport.runtime.bundle.argument import BUNDLE
from txport.runtime.bundle.kinds import check_checkpoint
from txport.runtime.bundle.manifest import Manifest
from txport.runtime.bundle.strict_json import finite
from txport.runtime.console.flags import ENGINE, refuse_unused
from txport.runtime.console.words import plural
from txport.runtime.engines.choice import FUSED, TRT, Choice, choose, open_engine
from txport.runtime.errors import CheckFailed, InputError
from txport.runtime.libraries import needs, share_cores, without_collection

if TYPE_CHECKING:
    from txport.models.config import Config

_TEXTS = ("text", "references", "ids", "reference_ids", "features")


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("bundle", type=BUNDLE)
@click.argument("checkpoint", type=click.Path(path_type=Path), required=False)
@click.option(
    "--device",
    help="Device: cpu (all lowerings and the fused engine) or cuda. [default: the device of --engine, or cpu]",
)
@ENGINE
@verification_options
@click.option(
    "--original",
    metavar="MODEL|DIRECTORY",
    help="Hugging Face model that CHECKPOINT was imported from, for whisper and vision: compare its ids by greedy "
    "search and by beams, given the same encoder states. Requires transformers.",
)
@click.option("--no-write", is_flag=True, help="Do not change the bundle.")
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
def main(
    bundle: Path,
    checkpoint: Path | None,
    device: str | None,
    engine: str,
    original: str | None,
    no_write: bool,
    as_json: bool,
    **sentences: Any,
) -> None:
    """Compare BUNDLE with CHECKPOINT in PyTorch float32, token by token. Exit with 1 if they differ.

    On the CPU every lowering is compared, and the report is written to verification.json in the bundle. With --device
    cuda one engine is compared on the GPU. Without CHECKPOINT one engine is compared with golden.json of the bundle. If
    the fused engine passes and the bundle was exported without it, the bundle is changed to use it.
    """
    manifest = Manifest.load(bundle)
    if bundle.is_file() and not no_write:
        raise InputError(f"{bundle} is one file, which is not changed: give --no-write")
    manifest.check_files(bundle, hashes=lambda name: True)
    device = device or ("cuda" if engine == TRT else "cpu")
    texts = any(sentences[name] is not None for name in _TEXTS)
    if checkpoint is None:
        if texts:
            names = [f"--{name.replace('_', '-')}" for name in _TEXTS if sentences[name] is not None]
            verb = "needs" if len(names) == 1 else "need"
            raise InputError(f"{' and '.join(names)} {verb} a CHECKPOINT to compare with: name it after the bundle")
        refuse_unused(True, "without a CHECKPOINT", "sentences", "minutes", "singles", "original")
        _verify_golden(bundle, manifest, device, engine, write=not no_write, as_json=as_json)
        return
    check_checkpoint(checkpoint)
    config = _check_sentences(checkpoint, manifest, [sentences[name] for name in _TEXTS])
    if device == "cpu" and engine != "auto":
        raise InputError("with a CHECKPOINT all engines of the CPU are verified: leave out --engine")
    _check_original(original, bundle, manifest, device)
    choice = None  # None: all engines of the CPU
    if device != "cpu":
        choice = choose(manifest, device, engine, bundle=bundle)
    check_sizes(bundle, manifest, checkpoint, config)
    write = not no_write and choice is None
    _verify_checkpoint(bundle, checkpoint, manifest, choice, original, write=write, as_json=as_json, **sentences)


def _check_original(original: str | None, bundle: Path, manifest: Manifest, device: str) -> None:
    """Refuse --original for bundles that read no encoder states, and on a GPU, before PyTorch is imported."""
    if original is None:
        return
    if manifest.model.encoder_layers or manifest.model.feature_size is None:
        raise InputError(f"--original {original} is for bundles of encoder states, unlike {bundle}: leave it out")
    if device != "cpu":
        raise InputError(f"--original {original} has no effect with --device {device}: leave one of them out")


def _check_sentences(checkpoint: Path, manifest: Manifest, files: Sequence[Path | None]) -> "Config":
    """Check the files of sentences before PyTorch is imported. Return the config of the checkpoint."""
    from txport.models.description import read_config, read_tokenizer  # not on devices, which have no checkpoint

    check_sentence_files(*files)
    config = read_config(checkpoint)
    check_sentences(checkpoint, config, read_tokenizer(checkpoint, config), manifest.limits.source, *files)
    return config


def _verify_golden(bundle: Path, manifest: Manifest, device: str, engine: str, *, write: bool, as_json: bool) -> None:
    """Compare with golden.json and print the result. On the CPU, use the fused engine if it was not verified yet.

    With `write`, the engine is then recorded as verified in the manifest.
    """
    fused = device == "cpu" and engine in ("auto", FUSED) and awaits_fused(manifest)
    report = verify_golden(bundle, device, FUSED if fused else engine)
    click.echo(json.dumps(finite(dataclasses.asdict(report)), indent=1) if as_json else _words(report))
    if not report.passed:
        raise CheckFailed(f"{bundle}: {report.differences[0]}")
    if fused and write:
        admit_fused(bundle, manifest)


def _verify_checkpoint(
    bundle: Path,
    checkpoint: Path,
    manifest: Manifest,
    choice: Choice | None,
    original: str | None,
    *,
    sentences: int,
    minutes: float,
    singles: int,
    text: Path | None,
    references: Path | None,
    ids: Path | None,
    reference_ids: Path | None,
    features: Path | None,
    write: bool,
    as_json: bool,
) -> None:
    """Compare with PyTorch, print the report and, with `write`, store it in the bundle."""
    with without_collection(), needs("export"):
        from txport.runtime.console.progress import Stages

        share_cores()
        from rich.console import Console
        from txport.exporter.sample import choose_sample
        from txport.exporter.verification.table import print_report
        from txport.exporter.verification.verify import Verifier, store_report
        from txport.exporter.verification.weights import check_same_state
        from txport.models.checkpoint import load_checkpoint

    loaded_checkpoint = load_checkpoint(checkpoint)
    check_same_state(loaded_checkpoint.model, bundle, manifest, checkpoint)
    files = text, references, ids, reference_ids, features
    sample = choose_sample(loaded_checkpoint, sentences, manifest.limits.source, manifest.limits.target, *files)
    with Stages() as stages:
        verifier = Verifier(loaded_checkpoint, sample, singles, stages, minutes, original)
        if choice is None:
            report = verifier.verify_bundle(bundle, manifest)
        else:
            report = verifier.verify_engine(bundle, manifest, open_engine(bundle, manifest, choice))
    if write:
        store_report(bundle, report)
    if as_json:
        click.echo(json.dumps(finite(dataclasses.asdict(report)), indent=1))
    else:
        print_report(report, Console())
    if not report.passed:
        raise CheckFailed(f"{bundle}: {report.failure}")


def _words(report: GoldenReport) -> str:
    return (
        f"{report.engine}: of {plural(report.cases, 'case')} that PyTorch answered at export, "
        f"{report.batch_identical} are identical in batches and alone, {report.refill_identical} in refilled rows"
    )
