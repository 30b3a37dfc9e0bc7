"""Verify a bundle against a checkpoint, and store the report in the bundle."""

import dataclasses
import os
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

import numpy as np
import onnx_ir as ir
from txport.exporter.bundle import write_graphs, write_json
from txport.exporter.graphs.float16 import rounded
from txport.exporter.progress import Stages
from txport.exporter.reference import BATCH, Answer, answers
from txport.exporter.sample import Sample, spread
from txport.exporter.verification.attention import check_attention
from txport.exporter.verification.card import CARD, card
from txport.exporter.verification.coverage import Coverage
from txport.exporter.verification.errors import Errors, LogitErrors
from txport.exporter.verification.evidence import LOOP_SAMPLE, LoweringCheck
from txport.exporter.verification.fused import fused_engine
from txport.exporter.verification.report import Rounding, VerificationReport, summarise
from txport.exporter.verification.yardstick import Yardstick, allowance
from txport.exporter.words import plural
from txport.models.checkpoint import Checkpoint
from txport.runtime.bundle.interface import cross_names
from txport.runtime.bundle.manifest import NAME, Manifest
from txport.runtime.bundle.schema import FileEntry, OptionalRole, Role, Verification
from txport.runtime.engine import Engine, Memory
from txport.runtime.engines.choice import FUSED
from txport.runtime.engines.ort import OrtEngine
from txport.runtime.errors import BundleError, CheckFailed, InputError
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
        sample: the sentences.
        singles: how many of them are also run alone and with padding.
        stages: shows progress.
        minutes: how long the sentences may take; None for any time.
    """

    checkpoint: Checkpoint
    sample: Sample
    singles: int
    stages: Stages
    minutes: float | None = None

    def verify_bundle(self, directory: Path) -> VerificationReport:
        """Compare every lowering of a bundle, and its optional graphs, on the CPU, and the fused engine if it is here.

        Raises:
            BundleError: the bundle is damaged, or its sizes are not the checkpoint's.
            CheckFailed: it takes longer than `minutes`.
        """
        manifest = Manifest.load(directory)
        self._match_model(directory, manifest)
        with scratch_directory() as scratch:
            graphs = verifiable_graphs(directory, manifest, scratch)
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
            report = self._compare(engines, precision, arithmetic)
            report = report if refusal is None else report.with_refusal(FUSED, refusal)
            if any(manifest.optional_graph(role) is None for role in get_args(OptionalRole)):
                return report
            self.stages.stage("verify: attention")
            engine = OrtEngine(graphs, manifest, manifest.lowerings[:1])
            return report.with_attention(check_attention(self.checkpoint.model, self.sample, graphs, manifest, engine))

    def verify_engine(self, directory: Path, manifest: Manifest, engine: Engine) -> VerificationReport:
        """Compare the one engine that a device runs, in its own arithmetic.

        The encoder's outputs stay on the device, so only what the decoder makes of them is compared.

        Raises:
            BundleError: the bundle's sizes are not the checkpoint's.
            CheckFailed: it takes longer than `minutes`.
            InputError: the engine takes smaller batches than are verified.
        """
        self._match_model(directory, manifest)
        if engine.limits.batch < BATCH:
            raise InputError(
                f"{engine.name} takes batches of {engine.limits.batch} and verification has {BATCH}: "
                f"run tx-build --max-batch {BATCH}"
            )
        arithmetic = f"{manifest.precision.type} as {engine.name} computes it"
        return self._compare({engine.name: engine}, manifest.precision.weights, arithmetic, on_device=True)

    def _compare(
        self, engines: Mapping[str, Engine], precision: str, arithmetic: str, *, on_device: bool = False
    ) -> VerificationReport:
        """Compare engines over the graphs of one bundle, whose encoders the first one's stands for.

        Args:
            engines: by lowering.
            precision: of the weights.
            arithmetic: in words.
            on_device: it may sum in the bundle's precision, and its encoder's outputs cannot be read.
        """
        checks = [LoweringCheck(engine, name, self.sample, encodes=name == FUSED) for name, engine in engines.items()]
        guesses = self._run_alone(checks)
        model = self.checkpoint.model
        coverage = Coverage(self.sample)
        encoder = Errors()
        errors = LogitErrors()
        yardstick, engine = Yardstick(model, precision), next(iter(engines.values()))
        self.stages.stage("verify", len(guesses))
        for answer in self._in_time(
            answers(model, self.sample.sources, self.sample.limits, self.sample.prefix, guesses)
        ):
            batch = answer.batch
            memory = engine.encode(batch.source_ids, batch.source_lengths)
            if not on_device:
                _add_encoder(encoder, answer, memory)
            for row, logits in enumerate(yardstick.logits(batch)):
                length = len(batch.targets[row])
                errors.add(logits[:length], answer.logits[row, :length])
            for check in checks:
                check.add(answer, memory)
            coverage.add(batch.targets, engine.tokens.eos)
            self.stages.advance(len(batch.targets))
        if warning := coverage.endless(str(self.checkpoint.directory)):
            self.stages.say(warning)
        most = allowance(precision, self.checkpoint.config, sums_in_format=on_device)
        rounding = Rounding(precision, errors.sizes, most)
        reports = [check.finish(encoder, rounding) for check in checks]
        return summarise(reports, rounding, arithmetic, self.sample.origin, coverage)

    def _run_alone(self, checks: Sequence[LoweringCheck]) -> list[list[int]]:
        """Run all that needs no answer of PyTorch; return what the first lowering's loop gives for all sentences."""
        order = spread([len(source) for source in self.sample.sources])
        singles = order[: self.singles]
        self.stages.stage("verify: by the loop, alone, with padding", len(checks) * len(singles))
        for number, check in enumerate(checks):
            every = number == 0 or check.encodes
            check.loop(range(len(order)) if every else order[: max(LOOP_SAMPLE, self.singles)])
            check.sample(singles, self.stages.advance)
        return checks[0].loop_ids

    def _in_time(self, batches: Iterable[Answer]) -> Iterator[Answer]:
        """These batches, while there is time.

        Raises:
            CheckFailed: there is none left.
        """
        started, sentences = time.monotonic(), 0
        for answer in batches:
            yield answer
            sentences += len(answer.batch.targets)
            if self.minutes is not None and time.monotonic() - started > 60 * self.minutes:
                if sentences < len(self.sample.sources):
                    raise CheckFailed(
                        f"verification has compared {sentences} of {plural(len(self.sample.sources), 'sentence')} in "
                        f"{self.minutes:g} minutes: give more by --verify-minutes, or fewer --sentences"
                    )

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


def _add_encoder(errors: Errors, answer: Answer, memory: Memory) -> None:
    """Compare cross-attention keys and values, but not those of padding, with PyTorch's."""
    for name, expected in zip(cross_names(len(answer.cross) // 2), answer.cross, strict=True):
        for row, length in enumerate(answer.batch.source_lengths):
            errors.add(memory[name][row, :, :length].astype(np.float32), expected[row, :, :length])


def verifiable_graphs(directory: Path, manifest: Manifest, scratch: Path, *, copy: bool = False) -> Path:
    """Where a bundle's graphs can be run as their precision says: float16 ones are rewritten in `scratch`.

    There they round on the CPU as float16 hardware does. With `copy` those of other precisions are written there, too.
    """
    half = manifest.precision.type == "float16"
    if not half and not copy:
        return directory
    known = get_args(Role) + get_args(OptionalRole)
    models = {graph.name: ir.load(directory / graph.file) for graph in manifest.graphs if graph.role in known}
    for model in models.values() if half else ():
        rounded(model)
    write_graphs(scratch / "onnx", models, manifest.made_by.version)
    return scratch


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
