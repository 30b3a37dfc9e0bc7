"""Run the verification of a bundle against a checkpoint, and keep its result in the bundle."""

import dataclasses
import os
import shutil
import tempfile
from pathlib import Path

import numpy as np
import onnx_ir as ir
from txport.exporter.bundle import write_graphs, write_json
from txport.exporter.card import write_card
from txport.exporter.graphs.float16 import rounded
from txport.exporter.progress import Stages
from txport.exporter.reference import BATCH, Answer, answers, batches
from txport.exporter.trial import Trial
from txport.exporter.verification.evidence import Errors, LoweringCheck
from txport.exporter.verification.report import VerificationReport, summarise
from txport.models.checkpoint import Checkpoint
from txport.runtime.bundle.interface import cross_names
from txport.runtime.bundle.manifest import Manifest, list_files
from txport.runtime.bundle.schema import Verification
from txport.runtime.engine import Engine, Memory
from txport.runtime.engines.ort import OrtEngine
from txport.runtime.errors import BundleError, InputError
from txport.runtime.files import new_directory

REPORT = "verification.json"


def verify_bundle(
    directory: Path, checkpoint: Checkpoint, trial: Trial, singles: int, stages: Stages
) -> VerificationReport:
    """Compare every lowering of a bundle with the checkpoint's model in PyTorch, float32, on the CPU.

    Args:
        directory: the bundle.
        checkpoint: what it was exported from.
        trial: the sentences.
        singles: how many of them are also run alone and with padding.
        stages: shows progress.

    Raises:
        BundleError: the bundle is damaged, or its sizes are not the checkpoint's.
    """
    manifest = Manifest.load(directory)
    _check_same_model(directory, manifest, checkpoint)
    if manifest.precision.type == "float32":
        int8 = manifest.precision.weights == "int8"
        arithmetic = f"{'weights and their products in int8, all else in ' if int8 else ''}float32 on the CPU"
        return _verify(directory, manifest, arithmetic, checkpoint, trial, singles, stages)
    with tempfile.TemporaryDirectory(prefix="txport-verify-") as scratch:
        copy = Path(scratch) / "rounded"
        manifest = _rounded_copy(directory, manifest, copy)
        arithmetic = "every value rounded to float16, islands in float32, on the CPU"
        return _verify(copy, manifest, arithmetic, checkpoint, trial, singles, stages)


def _verify(
    directory: Path,
    manifest: Manifest,
    arithmetic: str,
    checkpoint: Checkpoint,
    trial: Trial,
    singles: int,
    stages: Stages,
) -> VerificationReport:
    lowerings = [graph.lowering for graph in manifest.graphs if graph.role == "decoder_step"]
    precision = manifest.precision.weights
    engines = [OrtEngine(directory, manifest, [lowering]) for lowering in lowerings]
    checks = [
        LoweringCheck(engine, lowering, precision, trial, singles)
        for engine, lowering in zip(engines, lowerings, strict=True)
    ]
    stages.stage(f"{lowerings[0]}: the runtime's loop")
    guesses = checks[0].loop()
    encoder = Errors()
    stages.stage(f"verify {', '.join(lowerings)}", len(batches(guesses)))
    for answer in answers(checkpoint.model, trial.sources, trial.limits, trial.prefix, guesses):
        memory = engines[0].encode(answer.batch.source_ids, answer.batch.source_lengths)
        _add_encoder(encoder, answer, memory)
        for check in checks:
            check.add(answer, memory)
        stages.advance()
    return summarise([check.finish(encoder, stages.stage) for check in checks], precision, arithmetic, trial.origin)


def verify_engine(
    directory: Path,
    manifest: Manifest,
    engine: Engine,
    checkpoint: Checkpoint,
    trial: Trial,
    singles: int,
    stages: Stages,
) -> VerificationReport:
    """As `verify_bundle`, for the one engine that a device runs, in its own arithmetic.

    What the encoder gives stays on the device, so only what comes of it is compared.

    Args:
        engine: runs the bundle there.

    Raises:
        BundleError: the bundle's sizes are not the checkpoint's.
        InputError: the engine takes smaller batches than are verified.
    """
    _check_same_model(directory, manifest, checkpoint)
    if engine.limits.batch < BATCH:
        raise InputError(
            f"{engine.name} takes batches of {engine.limits.batch} and verification has {BATCH}: "
            f"run tx-build --max-batch {BATCH}"
        )
    precision = manifest.precision.weights
    check = LoweringCheck(engine, engine.name, precision, trial, singles)
    stages.stage(f"{engine.name}: the runtime's loop")
    guesses = check.loop()
    stages.stage(f"verify {engine.name}", len(batches(guesses)))
    for answer in answers(checkpoint.model, trial.sources, trial.limits, trial.prefix, guesses):
        check.add(answer, engine.encode(answer.batch.source_ids, answer.batch.source_lengths))
        stages.advance()
    arithmetic = f"{manifest.precision.type} as {engine.name} computes it"
    return summarise([check.finish(Errors(), stages.stage)], precision, arithmetic, trial.origin)


def _add_encoder(errors: Errors, answer: Answer, memory: Memory) -> None:
    """Compare cross-attention keys and values, but not those of padding, with PyTorch's."""
    for name, expected in zip(cross_names(len(answer.cross) // 2), answer.cross, strict=True):
        for row, length in enumerate(answer.batch.source_lengths):
            errors.add(memory[name][row, :, :length].astype(np.float32), expected[row, :, :length])


def _check_same_model(directory: Path, manifest: Manifest, checkpoint: Checkpoint) -> None:
    config = checkpoint.config
    for name in ("encoder_layers", "decoder_layers", "d_model", "heads", "source_vocabulary", "target_vocabulary"):
        ours, theirs = getattr(manifest.model, name), getattr(config, name)
        if ours != theirs:
            raise BundleError(
                f"{directory} was not exported from {checkpoint.directory}: its {name} is {ours}, not {theirs}; "
                f"name the checkpoint that it came from"
            )


def _rounded_copy(directory: Path, manifest: Manifest, copy: Path) -> Manifest:
    """A stand-in for a float16 bundle whose graphs round as float16 hardware does."""
    models = {graph.name: ir.load(directory / graph.file) for graph in manifest.graphs}
    for model in models.values():
        rounded(model)
    write_graphs(copy / "onnx", models, manifest.made_by.version)
    for name in manifest.files:
        if not name.startswith("onnx/"):
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(directory / name, copy / name)
    return dataclasses.replace(manifest, files=list_files(copy)).write(copy)


def with_report(manifest: Manifest, report: VerificationReport) -> Manifest:
    """The manifest with the report's summary in it."""
    verification = Verification(
        passed=report.passed,
        sentences=report.sentences,
        token_identical=report.token_identical,
        batch_identical=report.batch_identical,
        max_logit_error=report.max_logit_error,
    )
    return dataclasses.replace(manifest, verification=verification)


def write_report(directory: Path, name: str, manifest: Manifest, report: VerificationReport | None) -> None:
    """Write `verification.json`, the card and, last, the manifest that lists them; nobody reads `directory` yet."""
    if report is not None:
        write_json(directory / REPORT, dataclasses.asdict(report))
        manifest = with_report(manifest, report)
    write_card(directory, name, manifest, report)
    dataclasses.replace(manifest, files=list_files(directory)).write(directory)


def store_report(directory: Path, report: VerificationReport) -> None:
    """Put a new report into an existing bundle, whole or not at all: a linked copy takes the bundle's place."""
    manifest = Manifest.load(directory)
    with new_directory(directory, replace=True, marker="manifest.json") as copy:
        shutil.copytree(directory, copy, copy_function=os.link, dirs_exist_ok=True)
        for name in ("manifest.json", "README.md", REPORT):
            (copy / name).unlink(missing_ok=True)
        write_report(copy, directory.resolve().name, manifest, report)
