"""What the norms of a pre-norm model cost in a decoder step: `python -m txport.benchmarks.studies.norms`.

Each kind of norm, and those that are affine also as they are before folding. Timed: one step of ONNX Runtime's lowering
over bound buffers, which all steps run in turns, so that a drift of the machine's speed hits all; ratios are taken
round by round. Not timed: loading, and the first rounds. The weights are random.
"""

import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import click
import numpy as np
import numpy.typing as npt
import onnx_ir as ir
import onnxruntime
import torch
from txport.benchmarks.report.statistics import percentiles, ratio
from txport.benchmarks.report.tables import markdown_table
from txport.benchmarks.studies.turns import in_turns
from txport.exporter.bundle import write_graphs
from txport.exporter.graphs.decoder import write_step
from txport.exporter.graphs.lowerings import LOWERINGS
from txport.exporter.graphs.sessions import session
from txport.exporter.graphs.tensors import ModelTensors
from txport.models.config import NORM_KINDS, PRESETS, Config, preset
from txport.models.transformer import Transformer
from txport.runtime.bundle.interface import decoder_step
from txport.runtime.version import VERSION

WARM_UP = 5
_SHARED = ("power", "batch")  # affine in a translation
_DTYPES = {"float32": np.float32, "int64": np.int64, "bool": np.bool_}


class Step:
    """A step and its buffers: row by row the middle of a translation, over and over."""

    def __init__(self, config: Config, *, fold: bool, batch: int, source: int, target: int) -> None:
        self.name = config.norm_kind + (" (not folded)" if not fold else "")
        torch.manual_seed(0)
        model = write_step(Transformer(config).eval(), LOWERINGS["ort"], target, ModelTensors(), fold=fold)
        self.operators = Counter(node.op_type for node in model.graph)
        with tempfile.TemporaryDirectory() as directory:
            self._session = session(write_graphs(Path(directory), {"step": model}, VERSION)["step"])
        self._binding = self._session.io_binding()
        self._bind(model, config, {"batch": batch, "source": source, "target": target})

    def run(self) -> None:
        self._session.run_with_iobinding(self._binding)

    def _bind(self, model: ir.Model, config: Config, sizes: dict[str, int]) -> None:
        """Caches are written in place, as the runtime does it; the state is not, so that the position stays."""
        interface, used = decoder_step(config.sizes, "float32"), {value.name for value in model.graph.inputs}
        buffers = {}
        for tensor in interface.inputs:
            if tensor.name in used:
                array: npt.NDArray[Any] = np.zeros(tensor.sizes(sizes), _DTYPES[tensor.dtype])
                if tensor.name == "cache_positions":
                    array[:] = np.arange(sizes["target"])
                elif tensor.name in ("positions", "target_limits"):
                    array[:] = sizes["target"] // 2 if tensor.name == "positions" else sizes["target"]
                buffers[tensor.name] = onnxruntime.OrtValue.ortvalue_from_numpy(array)
                self._binding.bind_ortvalue_input(tensor.name, buffers[tensor.name])
        owners = {output: name for name, output in interface.aliases if name.startswith("self_")}
        for tensor in interface.outputs:
            if tensor.name in owners:
                self._binding.bind_ortvalue_output(tensor.name, buffers[owners[tensor.name]])
            else:
                self._binding.bind_output(tensor.name, "cpu")


def steps(name: str, *, vocabulary: int, batch: int, source: int, target: int) -> list[Step]:
    """Of a preset with each kind of norm; the projection is not tied, so that its norm may be folded too."""
    sizes = {"source_vocabulary": vocabulary, "target_vocabulary": vocabulary, "max_positions": target}
    kinds = [(kind, fold) for kind in NORM_KINDS for fold in ((False, True) if kind in _SHARED else (True,))]
    return [
        Step(
            preset(name, **{**sizes, "norm": "pre", "norm_kind": kind, "tie_projection": False}),
            fold=fold, batch=batch, source=source, target=target,
        )
        for kind, fold in kinds
    ]  # fmt: skip


@click.command()
@click.option("--preset", "name", type=click.Choice(list(PRESETS)), default="base", show_default=True)
@click.option("--vocabulary", default=32000, show_default=True)
@click.option("--batch", default=1, show_default=True, help="Rows of a step.")
@click.option("--source", default=32, show_default=True, help="Source tokens.")
@click.option("--target", default=64, show_default=True, help="Length of the caches; the step is in their middle.")
@click.option("--rounds", default=200, show_default=True)
def main(name: str, vocabulary: int, batch: int, source: int, target: int, rounds: int) -> None:
    """Compare the steps of pre-norm models with each kind of norm, on this CPU."""
    found = steps(name, vocabulary=vocabulary, batch=batch, source=source, target=target)
    turns = in_turns([step.run for step in found], rounds, WARM_UP).T.tolist()
    rows = []
    for step, times in zip(found, turns, strict=True):
        against, own = ratio(times, turns[0]), percentiles(times)
        assert against is not None
        cells = f"{own.p50:.3f}", f"{against.p50:.3f}", f"{against.p10:.3f} to {against.p90:.3f}"
        rows.append([step.name, *cells, str(step.operators.total())])
    heads = ["norm", "ms", f"time over {found[0].name}'s", "p10 to p90", "operators"]
    click.echo("\n".join(markdown_table(heads, rows, left=heads[:1])))


if __name__ == "__main__":
    main()
