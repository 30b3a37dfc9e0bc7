"""Verification of a bundle against a checkpoint. The report is stored in the bundle."""

import dataclasses
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

import onnx_ir as ir
from txport.exporter.bundle import write_graphs, write_json
from txport.exporter.coverage import Coverage
from txport.exporter.graphs.float16 import round_results
from txport.exporter.reference import BATCH
from txport.exporter.sample import Sample
from txport.exporter.sentence_files import check_sizes
from txport.exporter.verification.arithmetic import RoundedReference, allowance
from txport.exporter.verification.attention import check_attention, check_beams
from txport.exporter.verification.card import CARD, card
from txport.exporter.verification.comparison import compare
from txport.exporter.verification.evidence import LoweringCheck
from txport.exporter.verification.examination import Examination
from txport.exporter.verification.original import check_original
from txport.exporter.verification.report import (
    AttentionReport,
    BeamsReport,
    LoweringReport,
    OriginalReport,
    Rounding,
    Section,
    VerificationReport,
    WeightsReport,
    summarise,
)
from txport.exporter.verification.weights import compare_weights
from txport.models.checkpoint import Checkpoint
from txport.runtime.bundle.archive import Archive, files_of
from txport.runtime.bundle.graph_rules import checked_graph
from txport.runtime.bundle.manifest import NAME, WEIGHTS, Manifest, entry_of
from txport.runtime.bundle.schema import AttentionRole, OptionalRole, Role, Verification
from txport.runtime.console.progress import Stages
from txport.runtime.engine import Engine
from txport.runtime.engines.choice import FUSED
from txport.runtime.engines.native import NativeEngine, missing
from txport.runtime.engines.ort import OrtEngine
from txport.runtime.errors import BundleError, EngineError, InputError, MissingLibrary
from txport.runtime.files import new_directory, scratch_directory

REPORT = "verification.json"
ARITHMETIC = {
    "float32": "float32 on the CPU",
    "int8": "weights and their products in int8, all else in float32 on the CPU",
    "float16": "every value rounded to float16, islands in float32, on the CPU",
}


@dataclass(frozen=True)
class Verifier:
    """Comparison of bundles with a checkpoint's model in PyTorch, float32.

    Attributes:
        checkpoint: the checkpoint that was exported.
        sample: the sentences.
        singles: number of sentences that are also run alone and with padding.
        stages: shows progress.
        minutes: time limit; None for no limit.
        original: directory or hub id of the imported model, to compare with Hugging Face's library; None: do not.
    """

    checkpoint: Checkpoint
    sample: Sample
    singles: int
    stages: Stages
    minutes: float | None = None
    original: str | None = None

    def verify_bundle(self, directory: Path, manifest: Manifest) -> VerificationReport:
        """Compare all lowerings and other parts of a bundle on the CPU, and the fused engine if it is available.

        Raises:
            BundleError: the bundle is damaged, or its sizes differ from the checkpoint's.
            CheckFailed: the time limit is exceeded.
        """
        self._match_model(directory, manifest)
        with scratch_directory() as scratch:
            graphs = verifiable_graphs(directory, manifest, scratch)
            graph_engines: dict[str, OrtEngine] = {
                name: OrtEngine(graphs, manifest, [name]) for name in manifest.lowerings
            }
            bundle = Opened(directory, manifest, graphs, graph_engines[manifest.lowerings[0]])
            engines: dict[str, Engine] = {**graph_engines}
            arithmetic = ARITHMETIC[manifest.precision.weights]
            refused = []
            try:
                if (fused := fused_engine(directory, manifest, self.stages.say)) is not None:
                    engines[FUSED] = fused
                    if manifest.precision.weights != "float32":
                        arithmetic += f"; {FUSED} in its own arithmetic with the same weights"
            except BundleError as error:
                refused = [LoweringReport(FUSED, failures=[str(error)])]
            lowerings, rounding, coverage = self._compare(engines, manifest)
            sections = {name: check(bundle, self) for name, check in CHECKS.items()}
            return summarise(lowerings, refused, sections, rounding, arithmetic, self.sample.origin, coverage)

    def verify_engine(self, directory: Path, manifest: Manifest, engine: Engine) -> VerificationReport:
        """Compare the only engine that a device runs, in its precision.

        The encoder's outputs stay on the device, so only the decoder's results are compared.

        Raises:
            BundleError: the bundle's sizes differ from the checkpoint's.
            CheckFailed: the time limit is exceeded.
            InputError: the engine's maximum batch is too small for verification.
        """
        self._match_model(directory, manifest)
        if engine.limits.batch < BATCH:
            raise InputError(
                f"{engine.name} takes batches of {engine.limits.batch} and verification has {BATCH}: "
                f"run tx-build --max-batch {BATCH}"
            )
        arithmetic = f"{manifest.precision.type} as {engine.name} computes it"
        lowerings, rounding, coverage = self._compare({engine.name: engine}, manifest, on_device=True)
        return summarise(lowerings, [], {}, rounding, arithmetic, self.sample.origin, coverage)

    def _compare(
        self, engines: Mapping[str, Engine], manifest: Manifest, *, on_device: bool = False
    ) -> tuple[list[LoweringReport], Rounding, Coverage]:
        """Compare engines for the graphs of one bundle. The first engine's encoder represents all encoders.

        Args:
            engines: by lowering.
            manifest: of the bundle.
            on_device: whether sums may be in the bundle's precision, and the encoder's outputs cannot be read.
        """
        precision = manifest.precision.weights
        checks = [LoweringCheck(engine, name, self.sample, encodes=name == FUSED) for name, engine in engines.items()]
        reference = RoundedReference(self.checkpoint.model, precision)
        comparison = compare(
            self.checkpoint.model,
            self.sample,
            checks,
            next(iter(engines.values())),
            reference,
            self.stages,
            singles=self.singles,
            minutes=self.minutes,
            on_device=on_device,
        )
        if warning := comparison.coverage.endless(str(self.checkpoint.directory)):
            self.stages.say(warning)
        factor = allowance(self.checkpoint.config, sums_in_format=on_device)
        rounding = Rounding(precision, comparison.rounding.sizes, factor)
        examination = Examination(self.checkpoint.model, reference, self.sample, factor)
        reports = [check.finish(comparison.encoder, rounding, comparison.sizes, examination) for check in checks]
        return reports, rounding, comparison.coverage

    def _match_model(self, directory: Path, manifest: Manifest) -> None:
        """Check that the checkpoint's model has the bundle's sizes, and extend its positions to the lengths."""
        check_sizes(directory, manifest, self.checkpoint.directory, self.checkpoint.config)
        self.checkpoint.model.lengthen(max(manifest.limits.source, manifest.limits.target))


@dataclass(frozen=True)
class Opened:
    """Bundle that is being verified.

    Attributes:
        directory: of the bundle.
        manifest: of the bundle.
        graphs: directory of its graphs in a form that the CPU runs in their precision.
        engine: engine for the graphs of the first lowering.
    """

    directory: Path
    manifest: Manifest
    graphs: Path
    engine: OrtEngine


def _weights(bundle: Opened, context: Verifier) -> WeightsReport | None:
    """Compare all numbers of the weights."""
    manifest = bundle.manifest
    if manifest.parameters is None:
        return None
    context.stages.stage("verify: weights")
    longest = max(manifest.limits.source, manifest.limits.target)
    return compare_weights(context.checkpoint.model, manifest.parameters, files_of(bundle.directory) / WEIGHTS, longest)


def _beams(bundle: Opened, context: Verifier) -> BeamsReport | None:
    """Compare beam search with its own step and with the plain step."""
    if bundle.manifest.optional_graph("decoder_beams") is None:
        return None
    context.stages.stage("verify: beam search")
    return check_beams(context.sample, bundle.graphs, bundle.manifest, bundle.engine)


def _attention(bundle: Opened, context: Verifier) -> AttentionReport | None:
    """Compare the graphs for attention, scores and encoder outputs."""
    # A model of encoder states has no graph for encoder attention.
    roles = get_args(AttentionRole) if bundle.manifest.model.encoder_layers else ("decoder",)
    if any(bundle.manifest.optional_graph(role) is None for role in roles):
        return None
    context.stages.stage("verify: attention")
    return check_attention(context.checkpoint.model, context.sample, bundle.graphs, bundle.manifest, bundle.engine)


def _original(bundle: Opened, context: Verifier) -> OriginalReport | None:
    """Compare ids with those of the imported model in Hugging Face's library."""
    if context.original is None:
        return None
    context.stages.stage("verify: Hugging Face")
    return check_original(context.sample, bundle.directory, bundle.manifest, context.original)


# Checks in addition to the comparison of tokens. Each returns its section of the report.
CHECKS: dict[str, Callable[[Opened, Verifier], Section | None]] = {
    "weights": _weights,
    "beams": _beams,
    "attention": _attention,
    "original": _original,
}


def fused_engine(directory: Path, manifest: Manifest, say: Callable[[str], None]) -> NativeEngine | None:
    """Open the fused engine, or report why a bundle with parameters for it is verified without it.

    Raises:
        BundleError: the engine does not accept the bundle, which would then run only on ONNX Runtime.
        ResourceError: there is not enough memory.
    """
    if manifest.parameters is None:
        return None
    if (reason := missing()) is None:
        try:
            return NativeEngine(directory, manifest)
        except (EngineError, MissingLibrary) as error:
            reason = str(error)
    say(f"without the fused engine for CPUs: {reason}")
    return None


def verifiable_graphs(directory: Path, manifest: Manifest, scratch: Path, *, copy: bool = False) -> Path:
    """Return a directory with graphs that the CPU runs in their precision. Float16 ones are rewritten in `scratch`.

    The rewritten graphs round like float16 hardware. With `copy`, graphs of other precisions are also written.
    """
    half = manifest.precision.type == "float16"
    if not half and not copy:
        return directory
    if isinstance(files := files_of(directory), Archive):
        directory = scratch / "unpacked"
        for name in (name for name in manifest.files if name.startswith("onnx/")):
            (directory / name).parent.mkdir(parents=True, exist_ok=True)
            (directory / name).write_bytes((files / name).view())
    known_roles = get_args(Role) + get_args(OptionalRole)
    graphs = [graph for graph in manifest.graphs if graph.role in known_roles]
    for graph in graphs:
        checked_graph(directory, graph.file)
    models = {graph.name: ir.load(directory / graph.file) for graph in graphs}
    for model in models.values() if half else ():
        round_results(model)
    write_graphs(scratch / "onnx", models, manifest.made_by.version)
    return scratch


def write_report(directory: Path, name: str, manifest: Manifest, report: VerificationReport | None) -> None:
    """Write `verification.json`, the card and then the manifest that lists them. No process reads `directory` yet.

    Args:
        directory: of the bundle.
        name: of the bundle, for the card.
        manifest: its manifest, which lists all other files.
        report: report to write; None if the bundle was not verified.
    """
    file_names = [CARD]
    if report is not None:
        write_json(directory / REPORT, dataclasses.asdict(report))
        file_names.append(REPORT)
        summary = {field.name: getattr(report, field.name) for field in dataclasses.fields(Verification)}
        manifest = dataclasses.replace(manifest, verification=Verification(**summary))
    (directory / CARD).write_text(card(name, manifest, report), encoding="utf-8")
    files = {**manifest.files, **{name: entry_of(directory / name) for name in file_names}}
    dataclasses.replace(manifest, files=dict(sorted(files.items()))).write(directory)


def store_report(directory: Path, report: VerificationReport) -> None:
    """Add a new report to an existing bundle, atomically: a copy with linked files replaces the bundle."""
    manifest = Manifest.load(directory)
    with new_directory(directory, replace=True, marker=NAME) as copy:
        shutil.copytree(directory, copy, copy_function=os.link, dirs_exist_ok=True)
        for name in (NAME, CARD, REPORT):
            (copy / name).unlink(missing_ok=True)
        write_report(copy, directory.resolve().name, manifest, report)
