"""Verify a bundle against a checkpoint, and store the report in the bundle."""

import dataclasses
import os
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

import numpy as np
import onnx_ir as ir
from txport.exporter.bundle import write_graphs, write_json
from txport.exporter.card import CARD, card
from txport.exporter.graphs.float16 import rounded
from txport.exporter.progress import Stages
from txport.exporter.reference import BATCH, Answer, answers
from txport.exporter.trial import Trial
from txport.exporter.verification.attention import check_attention
from txport.exporter.verification.coverage import Coverage
from txport.exporter.verification.evidence import LOOP_SAMPLE, Errors, LoweringCheck
from txport.exporter.verification.fused import FUSED, fused_engine
from txport.exporter.verification.portions import Portions, spread
from txport.exporter.verification.report import VerificationReport, summarise
from txport.models.checkpoint import Checkpoint
from txport.runtime.bundle.interface import cross_names
from txport.runtime.bundle.manifest import NAME, Manifest
from txport.runtime.bundle.schema import FileEntry, OptionalRole, Role, Verification
from txport.runtime.engine import Engine, Memory
from txport.runtime.engines.ort import OrtEngine
from txport.runtime.errors import BundleError, InputError
from txport.runtime.files import new_directory, scratch_directory, sha256

REPORT = "verification.json"
ARITHMETIC = {
    "float32": "float32 on the CPU",
    "int8": "weights and their products in int8, all else in float32 on the CPU",
    "float16": "every value rounded to float16, islands in float32, on the CPU",
}


@dataclass(frozen=True)
class Verifier:
    """Compares bundles with a checkpoint's model in PyTorch, float32.

    Attributes:
        checkpoint: what the bundles were exported from.
        trial: the sentences.
        singles: how many of them are also run alone and with padding.
        stages: shows progress.
        minutes: that the sentences may take, some more than that for those that are run alone; None for any time.
    """

    checkpoint: Checkpoint
    trial: Trial
    singles: int
    stages: Stages
    minutes: float | None = None

    def verify_bundle(self, directory: Path) -> VerificationReport:
        """Compare every lowering of a bundle, and its optional graphs, on the CPU, and the fused engine if it is here.

        Raises:
            BundleError: the bundle is damaged, or its sizes are not the checkpoint's.
        """
        manifest = Manifest.load(directory)
        self._match_model(directory, manifest)
        with scratch_directory() as scratch:
            graphs = directory
            if manifest.precision.type == "float16":
                graphs = scratch
                _write_rounded(directory, manifest, graphs)
            engines: dict[str, Engine] = {name: OrtEngine(graphs, manifest, [name]) for name in manifest.lowerings}
            precision = manifest.precision.weights
            arithmetic = ARITHMETIC[precision]
            refusal = None
            try:
                if (fused := fused_engine(directory, manifest, self.stages.say)) is not None:
                    engines[FUSED] = fused
                    if precision != "float32":
                        arithmetic += f"; {FUSED} in its own arithmetic with the same weights"
            except BundleError as error:
                refusal = str(error)
            report = self._compare(engines, precision, arithmetic, compare_encoder=True)
            report = report if refusal is None else report.with_refusal(FUSED, refusal)
            if any(manifest.optional_graph(role) is None for role in get_args(OptionalRole)):
                return report
            self.stages.stage("verify: attention")
            engine = OrtEngine(graphs, manifest, manifest.lowerings[:1])
            return report.with_attention(check_attention(self.checkpoint.model, self.trial, graphs, manifest, engine))

    def verify_engine(self, directory: Path, manifest: Manifest, engine: Engine) -> VerificationReport:
        """Compare the one engine that a device runs, in its own arithmetic.

        The encoder's outputs stay on the device, so only what the decoder makes of them is compared.

        Raises:
            BundleError: the bundle's sizes are not the checkpoint's.
            InputError: the engine takes smaller batches than are verified.
        """
        self._match_model(directory, manifest)
        if engine.limits.batch < BATCH:
            raise InputError(
                f"{engine.name} takes batches of {engine.limits.batch} and verification has {BATCH}: "
                f"run tx-build --max-batch {BATCH}"
            )
        arithmetic = f"{manifest.precision.type} as {engine.name} computes it"
        return self._compare({engine.name: engine}, manifest.precision.weights, arithmetic, compare_encoder=False)

    def _compare(
        self, engines: Mapping[str, Engine], precision: str, arithmetic: str, *, compare_encoder: bool
    ) -> VerificationReport:
        checks = [
            LoweringCheck(engine, name, precision, self.trial, encodes=name == FUSED)
            for name, engine in engines.items()
        ]
        run = _Comparison(self, checks, next(iter(engines.values())), Errors() if compare_encoder else None)
        portions = Portions(spread([len(source) for source in self.trial.sources]), self.minutes)
        started, first = time.monotonic(), portions.first(max(BATCH, LOOP_SAMPLE, self.singles))
        self.stages.stage("verify: the first sentences", len(first))
        run.add(first)
        seconds = time.monotonic() - started
        if warning := run.coverage.endless(str(self.checkpoint.directory)):
            self.stages.say(warning)
        alone = min(self.singles, len(first))
        self.stages.stage("verify: alone, with padding", len(checks) * alone)
        for check in checks:
            check.sample(first, alone, self.stages.advance)
        self._rest(run, portions, seconds)
        return summarise([check.finish(run.encoder) for check in checks], precision, arithmetic, run.coverage)

    def _rest(self, run: "_Comparison", portions: Portions, seconds: float) -> None:
        """All that fits after the first sentences, which took so many seconds."""
        total, before = 0, run.coverage.sentences
        for part, expected in portions.rest(seconds):
            if not total:
                self.stages.stage("verify", expected - before)
                if expected < run.coverage.asked:
                    self.stages.say(f"about {expected:,} of {run.coverage.asked:,} sentences fit into the time")
            total = expected
            self.stages.resize(expected - before)
            run.add(part)

    def _match_model(self, directory: Path, manifest: Manifest) -> None:
        """See that the checkpoint's model has the bundle's sizes, and give it positions for the bundle's lengths."""
        sizes = ("encoder_layers", "decoder_layers", "d_model", "heads", "source_vocabulary", "target_vocabulary")
        for name in (*sizes, "copies"):
            ours, theirs = getattr(manifest.model, name), getattr(self.checkpoint.config, name)
            if ours != theirs:
                raise BundleError(
                    f"{directory} was not exported from {self.checkpoint.directory}: its {name} is {ours}, "
                    f"not {theirs}; name the checkpoint that it came from"
                )
        self.checkpoint.model.lengthen(max(manifest.limits.source, manifest.limits.target))


class _Comparison:
    """What all lowerings share: PyTorch's answers, the encoder's outputs, and how many sentences there were.

    Args:
        verifier: the model, the sentences, and who is told of progress.
        checks: one for each lowering; the first one's loop guesses PyTorch's answers.
        engine: whose encoder is run.
        encoder: collects the errors of its outputs; None if they cannot be read.
    """

    def __init__(
        self, verifier: Verifier, checks: Sequence[LoweringCheck], engine: Engine, encoder: Errors | None
    ) -> None:
        self._verifier, self._checks, self._engine = verifier, checks, engine
        self._compared, self.encoder = encoder is not None, encoder or Errors()
        self.coverage = Coverage(verifier.trial, verifier.minutes)

    def add(self, indices: Sequence[int]) -> None:
        """Compare these sentences, in every lowering."""
        for check in self._checks[1:]:
            if check.encodes:  # a loop of its own as well
                check.loop(indices)
        for answer in self._answers(indices, self._checks[0].loop(indices)):
            memory = self._engine.encode(answer.batch.source_ids, answer.batch.source_lengths)
            if self._compared:
                _add_encoder(self.encoder, answer, memory)
            for check in self._checks:
                check.add(answer, memory)
            self.coverage.add(answer.batch.targets, self._engine.tokens.eos)
            self._verifier.stages.advance(len(answer.batch.targets))

    def _answers(self, indices: Sequence[int], guesses: Sequence[Sequence[int]]) -> Iterator[Answer]:
        trial, model = self._verifier.trial, self._verifier.checkpoint.model
        sources, limits = [trial.sources[index] for index in indices], [trial.limits[index] for index in indices]
        for answer in answers(model, sources, limits, trial.prefix, guesses):
            numbers = [indices[index] for index in answer.batch.indices]
            yield dataclasses.replace(answer, batch=dataclasses.replace(answer.batch, indices=numbers))


def _add_encoder(errors: Errors, answer: Answer, memory: Memory) -> None:
    """Compare cross-attention keys and values, but not those of padding, with PyTorch's."""
    for name, expected in zip(cross_names(len(answer.cross) // 2), answer.cross, strict=True):
        for row, length in enumerate(answer.batch.source_lengths):
            errors.add(memory[name][row, :, :length].astype(np.float32), expected[row, :, :length])


def _write_rounded(directory: Path, manifest: Manifest, copy: Path) -> None:
    """Write the graphs of a float16 bundle so that they round on the CPU as float16 hardware does."""
    known = get_args(Role) + get_args(OptionalRole)
    models = {graph.name: ir.load(directory / graph.file) for graph in manifest.graphs if graph.role in known}
    for model in models.values():
        rounded(model)
    write_graphs(copy / "onnx", models, manifest.made_by.version)


def write_report(directory: Path, name: str, manifest: Manifest, report: VerificationReport | None) -> None:
    """Write `verification.json`, the card and, last, the manifest that lists them; nobody reads `directory` yet.

    Args:
        directory: of the bundle.
        name: of the bundle, for the card.
        manifest: its manifest, which lists all other files.
        report: what to write; None if the bundle was not verified.
    """
    written = [CARD]
    if report is not None:
        write_json(directory / REPORT, dataclasses.asdict(report))
        written.append(REPORT)
        summary = {field.name: getattr(report, field.name) for field in dataclasses.fields(Verification)}
        manifest = dataclasses.replace(manifest, verification=Verification(**summary))
    (directory / CARD).write_text(card(name, manifest, report), encoding="utf-8")
    files = manifest.files.copy()
    for path in (directory / name for name in written):
        files[path.name] = FileEntry(path.stat().st_size, sha256(path))
    dataclasses.replace(manifest, files=dict(sorted(files.items()))).write(directory)


def store_report(directory: Path, report: VerificationReport) -> None:
    """Put a new report into an existing bundle, whole or not at all: a linked copy takes the bundle's place."""
    manifest = Manifest.load(directory)
    with new_directory(directory, replace=True, marker=NAME) as copy:
        shutil.copytree(directory, copy, copy_function=os.link, dirs_exist_ok=True)
        for name in (NAME, CARD, REPORT):
            (copy / name).unlink(missing_ok=True)
        write_report(copy, directory.resolve().name, manifest, report)
