"""Which layers of an int8 bundle must stay in float32, found on real sentences.

None, for most models. Where int8 costs too much quality (`txport.exporter.verification.quality`), the modules whose
rounding alone disturbs the logits most stay in float32, twice as many each time, until it does not.
"""

from collections.abc import Callable, Collection, Sequence
from pathlib import Path

import onnx_ir as ir
from txport.exporter.bundle import write_graphs
from txport.exporter.graphs.int8 import convertible, to_int8
from txport.exporter.graphs.sessions import with_all_outputs
from txport.exporter.precision.calibration import TeacherForced, loss
from txport.exporter.reference import Batch, Logits
from txport.exporter.trial import Trial
from txport.exporter.verification.quality import Quality, bleu
from txport.runtime.bundle.manifest import Manifest
from txport.runtime.bundle.schema import Island
from txport.runtime.engines.ort import OrtEngine
from txport.runtime.errors import CheckFailed
from txport.runtime.greedy import Request, decode_all
from txport.runtime.version import VERSION

ENCODER, STEP = "encoder", "decoder_step.ort"
Module = tuple[str, str]  # graph and module within it
# Sentences, of those for calibration, that modules are ranked on: each is tried alone.
_RANKED_ON = 1  # batches


class Int8Search:
    """Two float32 graphs, and what becomes of them and of their translations in int8.

    Args:
        directory: scratch space.
        models: the encoder and the `ort` step; not changed.
        manifest: of the bundle to be, for its sizes.
        bos: id that decoding starts from.
        trial: the sentences.
        batches: the first of them, with the reference's targets and logits.
    """

    def __init__(
        self,
        directory: Path,
        models: dict[str, ir.Model],
        manifest: Manifest,
        bos: int,
        trial: Trial,
        batches: Sequence[tuple[Batch, Logits]],
    ) -> None:
        self._directory, self._manifest, self._bos = directory, manifest, bos
        self._trial, self._batches = trial, batches
        self._files = write_graphs(directory / "onnx", models, VERSION)
        self._modules = {
            name: [(node.name or "", (name, _module(node))) for node in convertible(model)]
            for name, model in models.items()
        }
        self._largest = self._ranges()
        self._bleu_float32 = self._bleu(directory) if trial.references else None

    def choose(self, progress: Callable[[str], None]) -> list[Island]:
        """The layers to keep in float32.

        Raises:
            CheckFailed: not even half of the modules in float32 make the rest good enough.
        """
        progress("int8: quality")
        failure = self.quality([]).failure
        if failure is None:
            return []
        progress("int8: looking for the layers that lose it")
        ranked, count = self._ranked(), 1
        while 2 * count <= len(ranked):
            if self.quality(ranked[:count]).failure is None:
                kept = {name: tuple(sorted(self._nodes(name, ranked[:count]))) for name in self._files}
                return [Island(name, nodes, "loss") for name, nodes in kept.items() if nodes]
            count *= 2
        raise CheckFailed(f"{failure}, even with {count // 2} modules in float32; export it without --int8")

    def convert(self, models: dict[str, ir.Model], islands: Sequence[Island]) -> None:
        """Turn the two graphs into int8, in place."""
        for name, model in models.items():
            kept = {node for island in islands if island.graph == name for node in island.nodes}
            to_int8(model, self._largest[name], kept)

    def quality(self, kept: Sequence[Module]) -> Quality:
        """What int8 costs with these modules in float32."""
        copy = self._write({name: self._nodes(name, kept) for name in self._files})
        changed = loss(_graphs(copy), self._batches, self._bos).changed
        found = self._bleu(copy) if self._trial.references else None
        return Quality(len(self._trial.sources), changed, self._bleu_float32, found)

    def _ranges(self) -> dict[str, dict[str, float]]:
        """The largest magnitude of each value of each graph."""
        copies = {name: file.with_suffix(".watched.onnx") for name, file in self._files.items()}
        for name, file in self._files.items():
            with_all_outputs(file, copies[name])
        graphs = TeacherForced(copies[ENCODER], copies[STEP], watch=True)
        for batch, _ in self._batches:
            graphs.logits(batch, self._bos)
        return {ENCODER: graphs.largest["encoder"], STEP: graphs.largest["step"]}

    def _ranked(self) -> list[Module]:
        """All modules, the one first whose rounding alone moves the logits most."""
        modules = list(dict.fromkeys(module for nodes in self._modules.values() for _, module in nodes))

        def disturbance(module: Module) -> float:
            others = [other for other in modules if other != module]
            copy = self._write({name: self._nodes(name, others, alone=True) for name in self._files})
            return loss(_graphs(copy), self._batches[:_RANKED_ON], self._bos).rms

        return sorted(modules, key=disturbance, reverse=True)

    def _nodes(self, graph: str, kept: Collection[Module], *, alone: bool = False) -> set[str]:
        """Nodes of a graph in these modules.

        With the projection, lookups stay in float32 too: it may be the same table, which would then be stored twice.
        """
        tables = (STEP, "projection") in kept and not alone
        return {
            node for node, module in self._modules[graph] if module in kept or (tables and module[1] == "embedding")
        }

    def _write(self, kept: dict[str, set[str]]) -> Path:
        models = {name: ir.load(file) for name, file in self._files.items()}
        for name, model in models.items():
            to_int8(model, self._largest[name], kept[name])
        write_graphs(self._directory / "int8" / "onnx", models, VERSION)
        return self._directory / "int8"

    def _bleu(self, directory: Path) -> float:
        """Of the translations of all sentences by the graphs in a directory."""
        engine = OrtEngine(directory, self._manifest, ["ort"])
        trial = self._trial
        pairs = zip(trial.sources, trial.limits, strict=True)
        requests = [Request(source, most, prefix=trial.prefix) for source, most in pairs]
        targets = [result.ids for result in decode_all(engine, requests)]
        return bleu(trial.tokenizer, targets, trial.references)


def _graphs(directory: Path) -> TeacherForced:
    return TeacherForced(directory / "onnx" / f"{ENCODER}.onnx", directory / "onnx" / f"{STEP}.onnx")


def _module(node: ir.Node) -> str:
    return (node.name or "").rpartition("/")[0]
