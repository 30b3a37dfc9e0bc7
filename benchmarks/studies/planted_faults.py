"""Faults that verification finds, by kind and size: `python -m txport.benchmarks.studies.planted_faults CHECKPOINT`.

A bundle of the checkpoint is exported and verified. Then faults are planted in its weights, one at a time. For each,
the lowering `ort` is verified again against the answers of PyTorch, and the fault is removed. The table counts faults
that are refused by sentences, and by sentences or the comparison of weights.
"""

import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import click
import numpy as np
import numpy.typing as npt
import onnx_ir as ir
from txport.benchmarks.report.tables import markdown_table
from txport.exporter.export import ExportOptions, export_bundle
from txport.exporter.reference import Answer, answers
from txport.exporter.sample import Sample, choose_sample
from txport.exporter.verification.arithmetic import RoundedReference, allowance
from txport.exporter.verification.errors import Errors, LogitErrors
from txport.exporter.verification.evidence import LoweringCheck
from txport.exporter.verification.examination import Examination
from txport.exporter.verification.options import SINGLES
from txport.exporter.verification.report import LoweringReport, Rounding, WeightsReport
from txport.exporter.verification.verify import verifiable_graphs
from txport.exporter.verification.weights import compare_weights
from txport.models.checkpoint import load_checkpoint
from txport.runtime.bundle.manifest import WEIGHTS, Manifest
from txport.runtime.bundle.schema import Lowering
from txport.runtime.engines.ort import OrtEngine

Array = npt.NDArray[np.float32]
Random = np.random.Generator
GRAPHS = ("encoder", "decoder_step.ort")
SIZES = {
    "one weight": (0.03, 0.1, 0.3, 1.0, 3.0),
    "swapped heads": (0.03, 0.1, 0.3, 1.0),
    "one position": (0.03, 0.1, 0.3, 1.0),
    "overflow": (2.0**8, 2.0**11, 2.0**14, 2.0**17),
}


class Planted:
    """A bundle's graphs, in which faults can be planted, and PyTorch's answers to compare them with.

    Args:
        checkpoint: the reference.
        bundle: a bundle of the checkpoint.
        sentences: number of sentences to compare.
        scratch: an empty directory.
        lowering: lowering of the verified step.
        singles: number of sentences that also run alone and with padding.
    """

    def __init__(
        self,
        checkpoint: Path,
        bundle: Path,
        sentences: int,
        scratch: Path,
        lowering: Lowering = "ort",
        singles: int = SINGLES,
    ) -> None:
        self._lowering = lowering
        self._singles = singles
        self._manifest = Manifest.load(bundle)
        self._bundle = bundle
        self._weights = scratch / "weights.bin"
        shutil.copyfile(bundle / WEIGHTS, self._weights)
        self._directory = verifiable_graphs(bundle, self._manifest, scratch, copy=True)
        loaded = load_checkpoint(checkpoint)
        limits = self._manifest.limits
        weights = self._manifest.precision.weights
        loaded.model.lengthen(max(limits.source, limits.target))
        self._sample: Sample = choose_sample(loaded, sentences, limits.source, limits.target)
        self._answers: list[Answer] = list(
            answers(loaded.model, self._sample.sources, self._sample.limits, self._sample.prefix)
        )
        reference = RoundedReference(loaded.model, weights)
        errors = LogitErrors()
        self._expected: dict[int, list[float]] = {}
        for answer in self._answers:
            for row, logits in enumerate(reference.logits(answer.batch)):
                length = len(answer.batch.targets[row])
                sizes = errors.add(logits[:length], answer.logits[row, :length])
                self._expected[answer.batch.indices[row]] = sizes.tolist()
        self._model = loaded.model
        self._rounding = Rounding(weights, errors.sizes, allowance(loaded.config))
        self._examination = Examination(loaded.model, reference, self._sample, self._rounding.allowance)
        self.heads = loaded.config.heads
        self.width = loaded.config.d_model

    def weights_report(self) -> WeightsReport:
        """Compare the current weights."""
        assert self._manifest.parameters is not None
        longest = max(self._manifest.limits.source, self._manifest.limits.target)
        return compare_weights(self._model, self._manifest.parameters, self._weights, longest)

    def report(self) -> LoweringReport:
        """Verify the current graphs."""
        engine = OrtEngine(self._directory, self._manifest, [self._lowering])
        check = LoweringCheck(engine, self._lowering, self._sample)
        check.loop(range(len(self._sample.sources)))
        check.sample(range(min(self._singles, len(self._sample.sources))), lambda: None)
        with np.errstate(all="ignore"):
            for answer in self._answers:
                check.add(answer, engine.encode(answer.batch.source_ids, answer.batch.source_lengths))
            return check.finish(Errors(), self._rounding, self._expected, self._examination)

    def tensors(self) -> Mapping[str, ir.ExternalTensor]:
        """Return the float weights of the running graphs, by graph and name."""
        return {name: each for name, each in _tensors(self._directory).items() if each.dtype == ir.DataType.FLOAT}

    def graph(self, name: str) -> ir.Model:
        """Return a graph of the bundle in the form that ONNX Runtime runs."""
        return ir.load(self._directory / "onnx" / f"{name}.onnx")

    @contextmanager
    def changed_graph(self, name: str, number: int, change: Callable[[ir.Graph, ir.Node], None]) -> Iterator[None]:
        """Plant a fault at one node of a graph while the context lasts.

        Args:
            name: name of the graph.
            number: number of the node, in the order of the graph.
            change: plants the fault.
        """
        file = self._directory / "onnx" / f"{name}.onnx"
        before = file.read_bytes()
        model = self.graph(name)
        change(model.graph, list(model.graph)[number])
        ir.save(model, file)
        yield
        file.write_bytes(before)

    @contextmanager
    def fault(self, changes: Mapping[str, Array]) -> Iterator[None]:
        """Replace the values of some tensors, in the precision of the bundle, while the context lasts."""
        tensors = self.tensors()
        shipped = _tensors(self._bundle)  # float16 tensors have another name in the running graphs, which use float32
        shipped |= {f"{name}.float32": each for name, each in shipped.items()}
        before = {name: tensors[name].numpy().copy() for name in changes}

        def write(values: Mapping[str, Array]) -> None:
            for name, array in values.items():
                dtype = shipped[name].dtype.numpy()
                with np.errstate(over="ignore"):
                    rounded = array.astype(dtype)
                _overwrite(self._weights, shipped[name].offset, rounded)
                _overwrite(self._directory / WEIGHTS, tensors[name].offset, rounded.astype(np.float32))

        write(changes)
        yield
        write(before)


def _tensors(directory: Path) -> dict[str, ir.ExternalTensor]:
    """Return the weights of a bundle's graphs, by graph and name."""
    models = {name: ir.load(directory / "onnx" / f"{name}.onnx") for name in GRAPHS}
    return {
        f"{graph}:{name}": value.const_value
        for graph, model in models.items()
        for name, value in model.graph.initializers.items()
        if isinstance(value.const_value, ir.ExternalTensor)
    }


def _overwrite(file: Path, offset: int | None, values: Array) -> None:
    with file.open("r+b") as output:
        output.seek(offset or 0)
        output.write(values.tobytes())


def one_weight(planted: Planted, random: Random, size: float) -> dict[str, Array]:
    """Return a matrix in which one weight is changed by `size` times the largest weight."""
    matrices = {name: each for name, each in planted.tensors().items() if len(each.shape) == 2 and "pos" not in name}
    name = random.choice(sorted(matrices))
    array = matrices[name].numpy().copy()
    array[tuple(random.integers(array.shape))] += size * np.abs(array).max()
    return {name: array}


def swapped_heads(planted: Planted, random: Random, size: float) -> dict[str, Array]:
    """Return weights in which the queries of two heads, or a share `size` of them, are exchanged."""
    packed = {name: each for name, each in planted.tensors().items() if 3 * planted.width in each.shape[:2]}
    packed = {name: each for name, each in packed.items() if len(each.shape) == 2}
    name = random.choice(sorted(packed))
    array = packed[name].numpy().copy()
    rows = array if array.shape[0] == 3 * planted.width else array.T  # a view
    first_head, second_head = (int(head) for head in random.choice(planted.heads, 2, replace=False))
    length = planted.width // planted.heads
    first, second = (slice(head * length, (head + 1) * length) for head in (first_head, second_head))
    difference = size * (rows[second] - rows[first])
    rows[first] += difference
    rows[second] -= difference
    return {name: array}


def one_position(planted: Planted, random: Random, size: float) -> dict[str, Array]:
    """Return positions in which one of the first is moved towards the next one (cosines and sines if rotary)."""
    tensors = planted.tensors()
    tables = [name for name in tensors if "embedding.positions" in name or "rotary_positions.cosines" in name]
    table = random.choice(sorted(tables))
    position = int(random.integers(8))
    changes = {name: tensors[name].numpy().copy() for name in (table, table.replace("cosines", "sines"))}
    for array in changes.values():
        array[position] += size * (array[position + 1] - array[position])
    return changes


def overflow(planted: Planted, random: Random, size: float) -> dict[str, Array]:
    """Return a feed-forward layer with inner values multiplied by `size` and outer weights divided by it."""
    tensors = planted.tensors()
    layers = sorted(name for name in tensors if "decoder" in name and "feed_forward.inner.weight" in name)
    inner = random.choice(layers)
    start = inner.partition("weight")[0]
    (bias,) = (name for name in tensors if name.startswith(start) and "bias" in name)  # or its negative, before a ReLU
    names = {inner: size, bias: size, inner.replace("inner", "outer"): 1 / size}
    return {name: (tensors[name].numpy() * factor).astype(np.float32) for name, factor in names.items()}


KINDS: dict[str, Callable[[Planted, Random, float], dict[str, Array]]] = {
    "one weight": one_weight,
    "swapped heads": swapped_heads,
    "one position": one_position,
    "overflow": overflow,
}


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("checkpoint", type=click.Path(path_type=Path))
@click.option("--fp16", "float16", is_flag=True, help="A bundle in float16.")
@click.option("--sentences", type=int, default=200, show_default=True, help="Number of sentences to verify.")
@click.option("--each", type=int, default=20, show_default=True, help="Faults of each kind and size.")
def main(checkpoint: Path, float16: bool, sentences: int, each: int) -> None:
    """Plant faults in a bundle of CHECKPOINT and print how many of each kind and size are refused."""
    with tempfile.TemporaryDirectory() as scratch:
        bundle = Path(scratch) / "bundle"
        copy = Path(scratch) / "copy"
        export_bundle(checkpoint, bundle, ExportOptions(float16=float16, lowerings=("ort",), verify=False))
        copy.mkdir()
        planted = Planted(checkpoint, bundle, sentences, copy)
        if failures := planted.report().failures:
            raise click.ClickException(f"refused without a fault: {failures[0]}")
        rows = []
        for kind, plant in KINDS.items():
            for size in SIZES[kind] if float16 or kind != "overflow" else ():
                random = np.random.default_rng(0)
                by_sentences = 0
                refused = 0
                for _ in range(each):
                    with planted.fault(plant(planted, random, size)):
                        differs = bool(planted.report().failures)
                        by_sentences += differs
                        refused += differs or bool(planted.weights_report().failures)
                rows.append([kind, f"{size:g}", f"{by_sentences}/{each}", f"{refused}/{each}"])
                click.echo(f"{kind}, {size:g}: {by_sentences}, {refused} of {each} refused", err=True)
    heads = ("fault", "size", "refused by sentences", "by sentences or weights")
    click.echo("\n".join(markdown_table(heads, rows, text_columns=("fault",))))


if __name__ == "__main__":
    main()
