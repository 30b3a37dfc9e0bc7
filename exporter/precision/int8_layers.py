"""Selection of layers of an int8 bundle that must stay in float32, measured on real sentences.

Most models need none. If int8 reduces quality too much (`txport.exporter.verification.quality`), the modules whose
rounding changes the logits most stay in float32. Their number is doubled until the quality suffices.
"""

import dataclasses
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

import onnx_ir as ir
from txport.exporter.bundle import write_graphs
from txport.exporter.graphs.int8 import convertible, norm_outputs, to_int8
from txport.exporter.graphs.norms import module_of
from txport.exporter.precision.calibration import Calibration, Loss
from txport.exporter.precision.islands import island_nodes
from txport.exporter.precision.sessions import TeacherForced, session
from txport.exporter.sample import Sample
from txport.exporter.verification.quality import Quality, References
from txport.runtime.bundle.manifest import Manifest
from txport.runtime.bundle.schema import Island
from txport.runtime.engines.ort import OrtEngine
from txport.runtime.errors import CheckFailed
from txport.runtime.search.decoding import decode_all
from txport.runtime.version import VERSION

ENCODER = "encoder"
STEP = "decoder_step.ort"
Module = tuple[str, str]  # graph, and module in it
# Number of calibration batches for ranking modules. Each module is measured alone.
_RANKED_ON = 1


class Int8Search:
    """Search for the layers of two float32 graphs that must not become int8.

    Args:
        directory: for temporary files.
        models: the encoder and the `ort` step; not changed.
        manifest: of the bundle that is being exported, for its sizes.
        sample: sentences for measuring quality.
        calibration: the first of these sentences.
    """

    def __init__(
        self, directory: Path, models: dict[str, ir.Model], manifest: Manifest, sample: Sample, calibration: Calibration
    ) -> None:
        self._directory = directory
        self._manifest = manifest
        self._sample = sample
        self._calibration = calibration
        self._files = write_graphs(directory / "onnx", models, VERSION)
        self._modules = {
            name: [(node.name or "", (name, module_of(node))) for node in convertible(model)]
            for name, model in models.items()
        }
        ranges = calibration.ranges(self._files[ENCODER], self._files[STEP])
        self._largest = dict(zip((ENCODER, STEP), ranges, strict=True))
        if sample.references:
            pytorch = self._translations(directory)
        else:
            pytorch = []
        self._references = References(sample.tokenizer, sample.references, pytorch)

    def choose(self, progress: Callable[[str], None]) -> list[Island]:
        """Return the layers to keep in float32.

        Raises:
            CheckFailed: quality does not suffice even with half of the modules in float32.
        """
        progress("int8: quality")
        failure = self.quality([]).failure
        if failure is None:
            return []
        progress("int8: searching for the layers that lose it")
        ranked = self._ranked()
        count = 1
        while 2 * count <= len(ranked):
            if self.quality(ranked[:count]).failure is None:
                nodes_of_graph = {name: tuple(sorted(self._nodes(name, ranked[:count]))) for name in self._files}
                return [Island(name, nodes, "loss") for name, nodes in nodes_of_graph.items() if nodes]
            count *= 2
        raise CheckFailed(f"{failure}, even with {count // 2} modules in float32; export it without --int8")

    def convert(self, models: dict[str, ir.Model], islands: Sequence[Island]) -> None:
        """Convert the graphs to int8, in place. Optional graphs use the same layers as the encoder or the step."""
        norms = {name: norm_outputs(models[name]) for name in self._files}
        for name, model in models.items():
            like = {"decoder": STEP, "decoder_beams": STEP, "encoder_attention": ENCODER}.get(name, name)
            pairs = zip(norm_outputs(model), norms[like], strict=True)
            largest = {**self._largest[like], **{ours: self._largest[like][theirs] for ours, theirs in pairs}}
            to_int8(model, largest, island_nodes(islands, name))

    def quality(self, modules: Sequence[Module]) -> Quality:
        """Measure the quality of int8 with these modules in float32."""
        kept_nodes = {name: self._nodes(name, modules) for name in self._files}
        changed = self._loss(self._calibration, kept_nodes).changed
        if self._sample.references:
            translations = self._translations(self._directory / "int8")
        else:
            translations = [[]] * len(self._sample.sources)  # only their number is used
        return self._references.quality(translations, changed)

    def _ranked(self) -> list[Module]:
        """Return all modules, sorted by the effect of their rounding on the logits, largest first."""
        first = dataclasses.replace(self._calibration, answers=self._calibration.answers[:_RANKED_ON])
        modules = list(dict.fromkeys(module for nodes in self._modules.values() for _, module in nodes))

        def disturbance(module: Module) -> float:
            remaining = [other for other in modules if other != module]
            return self._loss(first, {name: self._nodes(name, remaining, alone=True) for name in self._files}).rms

        return sorted(modules, key=disturbance, reverse=True)

    def _nodes(self, graph: str, modules: Collection[Module], *, alone: bool = False) -> set[str]:
        """Return the nodes of a graph in these modules.

        If the projection stays in float32, so do lookups: they may use the same table, which would be stored twice.
        """
        tables = (STEP, "projection") in modules and not alone
        return {
            node for node, module in self._modules[graph] if module in modules or (tables and module[1] == "embedding")
        }

    def _loss(self, calibration: Calibration, excluded: dict[str, set[str]]) -> Loss:
        """Write both graphs in int8, except the nodes `excluded`, and measure them."""
        models = {name: ir.load(file) for name, file in self._files.items()}
        for name, model in models.items():
            to_int8(model, self._largest[name], excluded[name])
        files = write_graphs(self._directory / "int8" / "onnx", models, VERSION)
        return calibration.loss(TeacherForced(*map(session, files.values())))

    def _translations(self, directory: Path) -> list[list[int]]:
        """Return the target ids of all sentences, from the graphs in a directory."""
        results = decode_all(OrtEngine(directory, self._manifest, ["ort"]), self._sample.requests())
        return [result.ids for result in results]
