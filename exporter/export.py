"""Export of a checkpoint: graphs, precision, weights and verification, then a rename into place."""

import dataclasses
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import onnx_ir as ir
from txport.exporter.bundle import graph_record, write_graphs, write_json
from txport.exporter.coverage import Coverage
from txport.exporter.golden_cases import golden_cases
from txport.exporter.graphs.float16 import to_float16
from txport.exporter.graphs.int8 import convertible
from txport.exporter.graphs.parameters import parameter_table
from txport.exporter.graphs.write import ATTENTION, BEAMS, OPTIONAL, write_all
from txport.exporter.options import ExportOptions, check_options, dimensions_of
from txport.exporter.precision.calibration import Calibration
from txport.exporter.precision.int8_layers import Int8Search
from txport.exporter.precision.islands import (
    choose_islands,
    island_nodes,
    islands_of_attention,
    islands_of_mixtures,
    islands_of_outputs,
)
from txport.exporter.reference import answers
from txport.exporter.sample import choose_sample
from txport.exporter.verification.report import VerificationReport
from txport.exporter.verification.verify import Verifier, write_report
from txport.models.checkpoint import Checkpoint, load_checkpoint
from txport.runtime.bundle.manifest import FORMAT_VERSION, GOLDEN, NAME, WEIGHTS, Manifest, entry_of, list_files
from txport.runtime.bundle.schema import Island, MadeBy, Parameters, Precision, SpecialTokens
from txport.runtime.bundle.strict_json import encode
from txport.runtime.console.progress import Stages
from txport.runtime.errors import CheckFailed
from txport.runtime.files import new_directory, scratch_directory
from txport.runtime.version import VERSION

__all__ = ["ExportOptions", "export_bundle"]

CALIBRATION_SENTENCES = 64


def export_bundle(
    checkpoint_directory: Path, output: Path, options: ExportOptions | None = None, stages: Stages | None = None
) -> VerificationReport | None:
    """Write the bundle `output`. Return its verification report, or None if it was not verified.

    Raises:
        InputError: an option does not fit the model, or `output` exists.
        CheckpointError: the checkpoint cannot be read.
        CheckFailed: verification failed. The bundle is removed, unless `force` is set.
    """
    options = options or ExportOptions()
    stages = stages or Stages(enabled=False)
    export = _Export(load_checkpoint(checkpoint_directory), options, stages)
    with new_directory(output, options.force, marker=NAME) as directory:
        manifest = export.write(directory)
        if options.verify:
            report = export.verify(directory, manifest)
        else:
            report = None
        write_report(directory, output.resolve().name, manifest, report)
        if report is not None and not report.passed and not options.force:
            raise CheckFailed(f"{output} was not written: {report.failure}; --force would keep it")
    return report


class _Export:
    """State of one export.

    Raises:
        InputError: an option does not fit the model.
    """

    def __init__(self, checkpoint: Checkpoint, options: ExportOptions, stages: Stages) -> None:
        self._checkpoint = checkpoint
        self._options = options
        self._stages = stages
        check_options(options.lowerings, float16=options.float16, int8=options.int8, max_batch=options.max_batch)
        self._dimensions = dimensions_of(
            checkpoint.config, checkpoint.tokenizer, options.max_source, options.max_target, options.max_batch
        )
        longest = self._dimensions.source.max, self._dimensions.target.max
        checkpoint.model.lengthen(max(longest))
        files = options.text, options.references, options.ids, options.reference_ids, options.features
        self._sample = choose_sample(checkpoint, options.sentences, *longest, *files)

    @property
    def _longest(self) -> int:
        """Number of positions for both sides. With one length, equal tables are stored once."""
        return max(self._dimensions.source.max, self._dimensions.target.max)

    def write(self, directory: Path) -> Manifest:
        """Fill `directory` except for verification, and return the manifest, which is not written yet."""
        options = self._options
        self._stages.stage("graphs")
        attention = options.attention
        if self._checkpoint.generation.replace_unknowns and not attention:
            self._stages.say("with the graphs of --with-attention: the model's settings replace unknown tokens")
            attention = True
        roles = [name for name in ATTENTION if name == "decoder" or not self._checkpoint.config.reads_states]
        optional = (*(roles if attention else ()), *(BEAMS if options.beams else ()))
        models = write_all(self._checkpoint.model, options.lowerings, self._longest, optional, half=options.float16)
        with scratch_directory() as scratch:
            islands = self._convert(scratch, models)
            write_graphs(directory / "onnx", models, VERSION)
        manifest = dataclasses.replace(self._manifest(models, islands), parameters=self._table(directory, models))
        write_json(directory / "config.json", self._checkpoint.config.to_json())
        _copy_tokenizer(self._checkpoint, directory)
        manifest = dataclasses.replace(manifest, files=list_files(directory))
        self._stages.stage("self-check cases")
        cases = golden_cases(self._checkpoint, self._sample, directory, manifest, quick=not options.verify)
        write_json(directory / GOLDEN, encode(cases))
        return dataclasses.replace(manifest, files={**manifest.files, GOLDEN: entry_of(directory / GOLDEN)})

    def _table(self, directory: Path, models: dict[str, ir.Model]) -> Parameters | None:
        """Return the table of parameters for the fused engine; None if it does not support the model."""
        config = self._checkpoint.config
        if config.copies:
            self._stages.say("without the fused engine for CPUs: it has no copy mechanism, and the model copies")
            return None
        if (kind := config.norm_kind) not in ("layer", "rms"):
            self._stages.say(f"without the fused engine for CPUs: it has no norm_kind {kind!r}")
            return None
        if config.positions == "shaw":
            self._stages.say("without the fused engine for CPUs: it has no positions 'shaw'")
            return None
        if config.norm == "pre_no_final":
            self._stages.say("without the fused engine for CPUs: it has no pre-norm model without a final norm")
            return None
        return parameter_table(self._checkpoint.model, models, directory / WEIGHTS, self._longest)

    def verify(self, directory: Path, manifest: Manifest) -> VerificationReport:
        """Compare the files in `directory` with the checkpoint."""
        verifier = Verifier(self._checkpoint, self._sample, self._options.singles, self._stages, self._options.minutes)
        return verifier.verify_bundle(directory, manifest)

    def _convert(self, scratch: Path, models: dict[str, ir.Model]) -> list[Island]:
        """Convert the models in place to the precision of the options. Return nodes that stay in float32."""
        if not self._options.float16 and not self._options.int8:
            return []
        sample = self._sample
        coverage = Coverage(self._sample)
        sources = sample.sources[:CALIBRATION_SENTENCES]
        limits = sample.limits[:CALIBRATION_SENTENCES]
        self._stages.stage("calibration: what PyTorch answers", len(sources))
        calibrating = []
        for answer in answers(self._checkpoint.model, sources, limits, sample.prefix):
            calibrating.append(answer)
            coverage.add(answer.batch.targets, self._checkpoint.config.eos_id)
            self._stages.advance(len(answer.batch.targets))
        if warning := coverage.endless(str(self._checkpoint.directory)):
            self._stages.say(warning)
        calibration = Calibration(calibrating, self._checkpoint.config.bos_id)
        required_models = {name: model for name, model in models.items() if name not in OPTIONAL}
        if self._options.int8:
            search = Int8Search(scratch, required_models, self._manifest(required_models, []), sample, calibration)
            if self._options.verify:
                islands = search.choose(self._stages.stage)
            else:
                islands = []
            islands += islands_of_attention(islands, models, convertible)
            search.convert(models, islands)
            return islands
        islands = choose_islands(
            scratch, write_graphs(scratch, required_models, VERSION), calibration, self._stages.stage
        )
        islands += islands_of_attention(islands, models, lambda model: model.graph) + islands_of_outputs(models)
        islands += islands_of_mixtures({name: model for name, model in models.items() if name in OPTIONAL})
        for name, graph in models.items():
            to_float16(graph, island_nodes(islands, name))
        return islands

    def _manifest(self, models: dict[str, ir.Model], islands: Sequence[Island]) -> Manifest:
        """Return the manifest without files and verification. Inputs and outputs are those of `models`."""
        config = self._checkpoint.config
        options = self._options
        floating: Literal["float32", "float16"] = "float16" if options.float16 else "float32"
        sizes = config.sizes
        return Manifest(
            format_version=FORMAT_VERSION,
            made_by=MadeBy("txport", VERSION),
            model=sizes,
            tokens=SpecialTokens(config.pad_id, config.unk_id, config.bos_id, config.eos_id),
            dimensions=self._dimensions,
            precision=Precision(floating, "int8" if options.int8 else floating, tuple(islands)),
            graphs=tuple(graph_record(name, model, sizes) for name, model in models.items()),
            tokenizer=self._checkpoint.tokenizer,
            generation=self._checkpoint.generation,
            alignment_heads=config.alignment_heads,
            frame_rate=config.frame_rate,
            external_encoder=config.external_encoder,
            files={},
            verification=None,
        )


def _copy_tokenizer(checkpoint: Checkpoint, directory: Path) -> None:
    sides = [side for side in (checkpoint.tokenizer.source, checkpoint.tokenizer.target) if side is not None]
    for name in {name for side in sides for name in (side.model, side.vocabulary) if name is not None}:
        (directory / name).parent.mkdir(exist_ok=True)
        shutil.copyfile(checkpoint.directory / name, directory / name)
