"""Small TensorRT networks with known outputs: built side by side, run on the GPU, and compared row by row.

A case is an ONNX file, arrays for its inputs and the outputs that ONNX Runtime computed for them, and a record in
`cases.json`. `pattern_graphs.py` writes them on a machine with PyTorch; nothing here needs more than TensorRT.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from txport.exporter.engines.builder import add_profile
from txport.exporter.engines.parsing import NetworkChanges, make_network
from txport.exporter.engines.process import run_apart
from txport.runtime.device.device import Device
from txport.runtime.engines.build_record import SCORES, LibraryName
from txport.runtime.engines.tensorrt import TensorRt, find_tensorrt
from txport.runtime.errors import BundleError, CheckFailed, EngineError

Arrays = Mapping[str, "np.ndarray[Any, Any]"]

PATTERNS = (
    "self_attention",
    "self_attention_t5",
    "cross_attention",
    "cache_write",
    "layer_norm",
    "rms_norm",
    "relu",
    "gelu",
    "gate",
    "rotary",
    "choice",
    "state",
    "mixture",
)
PRECISIONS = ("float32", "float16")
# The decoder step of a small model, and its sublayers, whose residuals are compared.
STEP = "step"
# Cases with self-attention, whose scores can be outputs.
ATTENDING = ("self_attention", "self_attention_t5", STEP)
SUBLAYERS = tuple(f"{kind} of layer {layer}" for layer in (0, 1) for kind in ("self", "cross", "feed_forward"))
# No powers of two, and enough rows for one after the first.
SIZES = {"batch": 4, "source": 7, "target": 11}
MAX_SOURCE = 13
# Maximum differences as parts of the largest value of an output; an operator that reads another row differs by all.
TOLERANCES = {"float32": 1e-3, "float16": 3e-2}
WORKERS = 8
BUILD_SECONDS = 120.0


@dataclass(frozen=True, eq=False)
class Case:
    """One network and its data.

    Attributes:
        name: of the pattern, or `STEP`.
        precision: of the graph.
        lowering: "scatter" or "tensorscatter".
        heads: over which nothing may be broadcast in a weakly typed network.
        inputs: the shape of each input, in sizes or names of `SIZES`.
        values: names of inner values of the graph, by sublayer.
        directory: of the files.
    """

    name: str
    precision: str
    lowering: str
    heads: int
    inputs: Mapping[str, Sequence[int | str]]
    values: Mapping[str, str]
    directory: Path

    @property
    def file(self) -> Path:
        return self.directory / f"{self.name}.{self.lowering}.{self.precision}.onnx"

    def arrays(self, kind: str) -> dict[str, Any]:
        """Return the arrays of a kind: "in", "out", or "value" by the names of `values`."""
        with np.load(self.file.with_suffix(".npz")) as arrays:
            return {name.partition("/")[2]: arrays[name] for name in arrays.files if name.startswith(f"{kind}/")}

    @property
    def caches(self) -> dict[str, str]:
        """Outputs that lie over an input, as in the runtime."""
        return {f"next_{name}": name for name in self.inputs if name.startswith("self_")}


@dataclass(frozen=True)
class Job:
    """One build of a case.

    Attributes:
        case: the case to build.
        level: the builder's optimization level.
        dynamic: let the source length vary in the profile.
        repeat: repeat inputs over heads; None if this version needs it.
        select: write caches by `Where`; None if this version does.
        streams: maximum of auxiliary streams; None for the library's own choice.
        scores: make the scores of self-attention outputs; None if this version needs it.
        sublayer: whose residual becomes an output, and is compared instead of the outputs; "" for none.
    """

    case: Case
    level: int = 3
    dynamic: bool = False
    repeat: bool | None = None
    select: bool | None = None
    streams: int | None = None
    scores: bool | None = None
    sublayer: str = ""

    def __str__(self) -> str:
        """Name what differs from the network of tx-build."""
        words = {
            "repeated over heads": self.repeat,
            "caches by Where": self.select,
            "scores as outputs": self.scores,
        }
        parts = [f"level {self.level}", *(f"{name}: {word}" for name, word in words.items() if word is not None)]
        parts += ["source of any length"] * self.dynamic
        parts += [f"{self.streams} auxiliary streams"] * (self.streams is not None)
        return ", ".join(parts)

    def changes(self, tensorrt: TensorRt) -> NetworkChanges:
        """Return the changes that tx-build makes of the network in this version, or those of the job."""
        repeat = not tensorrt.strongly_typed if self.repeat is None else self.repeat
        select = tensorrt.selects_caches if self.select is None else self.select
        scores = tensorrt.fuses_scores_wrongly if self.scores is None else self.scores
        is_scatter = self.case.lowering == "scatter"
        return NetworkChanges(
            select_caches=select and is_scatter and bool(self.case.caches),
            heads=frozenset({self.case.heads} if repeat else ()),
            mark_scores=scores and is_scatter and self.case.name in ATTENDING,
        )

    def shapes(self, name: str) -> tuple[list[int], list[int], list[int]]:
        """Return the smallest, the best and the largest shape of an input."""
        ends = [SIZES | {"source": 1}, SIZES, SIZES | {"source": MAX_SOURCE}] if self.dynamic else [SIZES] * 3
        least, best, most = (
            [ends_of[d] if isinstance(d, str) else d for d in self.case.inputs[name]] for ends_of in ends
        )
        return least, best, most


def read_cases(directory: Path) -> list[Case]:
    """Read the cases that `pattern_graphs.py` wrote."""
    records = json.loads((directory / "cases.json").read_text())
    return [Case(directory=directory, **record) for record in records]


def build(job: Job, plan: Path, tensorrt: TensorRt, capability: str | None = None) -> None:
    """Build the network that tx-build would make of a case.

    Args:
        job: what to build.
        plan: the file to write.
        tensorrt: the library.
        capability: of the GPU to build for, which TensorRT-RTX needs.

    Raises:
        BundleError: the library cannot parse or build it.
        CheckFailed: a value is not in the network.
    """
    case = job.case
    builder = tensorrt.new_builder()
    fixed = {"target": SIZES["target"]} if case.lowering == "tensorscatter" and case.caches else None
    network, _parser = make_network(tensorrt, builder, case.file, job.changes(tensorrt), fixed)
    if job.sublayer:
        mark_value(tensorrt, network, case.values[job.sublayer], case.precision)
    config = builder.create_builder_config()
    config.builder_optimization_level = job.level
    if job.streams is not None:
        config.max_aux_streams = job.streams
    tensorrt.set_precision(config, network, case.precision == "float16")
    tensorrt.set_target(config, (capability,) if capability else (), False, False)
    add_profile(tensorrt, config, builder, network, job.shapes)
    with plan.open("wb") as file:
        if not tensorrt.serialize_to(builder, network, config, file):
            raise BundleError(f"{tensorrt.library} cannot build {case.file.name}: {tensorrt.why()}")


def mark_value(tensorrt: TensorRt, network: Any, name: str, precision: str) -> None:
    """Make a value of a network an output; what follows it is still fused."""
    for layer in map(network.get_layer, range(network.num_layers)):
        for tensor in map(layer.get_output, range(layer.num_outputs)):
            if tensor.name == name:
                network.mark_output(tensor)
                if not tensorrt.strongly_typed and precision == "float16":
                    tensor.dtype = tensorrt.module.float16
                return
    raise CheckFailed(f"{tensorrt.library} has no value {name!r} in its network")


class Builds:
    """Builds that run side by side.

    Args:
        scratch: the directory of the plans.
        work: builds a job into a file.
    """

    def __init__(self, scratch: Path, work: Callable[[Job, Path], None]) -> None:
        self._scratch = scratch
        self._work = work
        self._pool = ThreadPoolExecutor(WORKERS)
        self._started: dict[Job, Future[Path]] = {}

    def start(self, jobs: Iterable[Job]) -> None:
        """Begin builds that have not begun yet."""
        for job in jobs:
            if job not in self._started:
                plan = self._scratch / f"{len(self._started)}.plan"
                self._started[job] = self._pool.submit(self._build, job, plan)

    def plan(self, job: Job) -> Path:
        """Wait for a build.

        Raises:
            TxportError: it failed, with the library's reason or its signal.
        """
        self.start([job])
        return self._started[job].result()

    def close(self) -> None:
        """Cancel the builds that have not begun."""
        self._pool.shutdown(cancel_futures=True)

    def _build(self, job: Job, plan: Path) -> Path:
        self._work(job, plan)
        return plan


def build_apart(library: LibraryName, capability: str | None, job: Job, plan: Path) -> None:
    """Build in a process of its own, which a fault of the library may end; see `build`."""
    run_apart(partial(_build_there, library, capability, job, plan), BUILD_SECONDS, lambda *_: None)


def _build_there(library: LibraryName, capability: str | None, job: Job, plan: Path, _progress: Any) -> None:
    build(job, plan, find_tensorrt(library), capability)


def fault_of(tensorrt: TensorRt, device: Device, plan: Path, job: Job) -> str:
    """Run a plan; return which outputs and rows are wrong, "" if none is.

    Raises:
        EngineError: the library does not open or run it.
    """
    case = job.case
    if job.sublayer:
        expected = {case.values[job.sublayer]: case.arrays("value")[job.sublayer]}
    else:
        expected = case.arrays("out")
    found = run(tensorrt, device, plan, case, case.arrays("out") | expected)
    return wrong_rows(found, expected, case.precision)


def prefixes(step: Case) -> list[Job]:
    """Return the step with the residual after each sublayer as an output, in order: the first wrong one names it."""
    return [Job(step, sublayer=name) for name in SUBLAYERS]


def variants(step: Case) -> list[Job]:
    """Return all ways to build the step."""
    changed = (True, False) if step.lowering == "scatter" else (None,)
    return [
        Job(step, level, repeat=repeat, select=select, streams=streams, scores=scores)
        for scores in changed
        for repeat in (True, False)
        for select in changed
        for level in (3, 0)
        for streams in (None, 0)
    ]


def run(tensorrt: TensorRt, device: Device, plan: Path, case: Case, outputs: Arrays) -> dict[str, Any]:
    """Run a plan on the inputs of its case; return the arrays of these outputs by name.

    Args:
        tensorrt: the library.
        device: whose memory and stream.
        plan: of the engine.
        case: whose inputs.
        outputs: arrays of the shapes and types in float32 or integers.

    Raises:
        EngineError: the library does not open or run it.
    """
    tensorrt.messages.clear()
    _runtime, engine = tensorrt.open_engine(plan.read_bytes(), False)
    if engine is None:
        raise EngineError(f"{tensorrt.library} does not open {plan.name}: {tensorrt.why()}")
    names = {engine.get_tensor_name(index) for index in range(engine.num_io_tensors)}
    types = {name: np.dtype(tensorrt.type_name(engine.get_tensor_dtype(name))) for name in names}
    scratch = max(1, tensorrt.scratch_bytes(engine))
    memory = {"": device.allocate(scratch)}
    context = tensorrt.new_context(engine, memory[""], scratch)
    feeds = {name: array.astype(types[name]) for name, array in case.arrays("in").items() if name in names}
    found = {name: np.empty(array.shape, types[name]) for name, array in outputs.items()}
    refused = context is None or not context.set_optimization_profile_async(0, device.stream)
    for name in names - case.caches.keys():
        if name.startswith(SCORES):
            memory[name] = device.allocate(SIZES["batch"] * case.heads * SIZES["target"] * types[name].itemsize)
            continue
        array = feeds[name] if name in feeds else found[name]
        memory[name] = device.allocate(array.nbytes)
        if name in feeds:
            device.upload(memory[name], np.ascontiguousarray(array))
            refused = refused or not context.set_input_shape(name, array.shape)
    memory |= {name: memory[cache] for name, cache in case.caches.items() if name in names}
    device.synchronize()
    refused = refused or not all(context.set_tensor_address(name, memory[name]) for name in names)
    if refused or not context.execute_async_v3(device.stream):
        raise EngineError(f"{tensorrt.library} does not run {plan.name}: {tensorrt.why()}")
    for name, array in found.items():
        device.download(array, memory[name])
    device.synchronize()
    del context
    for address in set(memory.values()):
        device.free(address)
    return found


def wrong_rows(found: Arrays, expected: Arrays, precision: str) -> str:
    """Name the outputs that differ and in which rows; "" if none does."""
    faults = []
    for name, wanted in expected.items():
        ours = found[name].astype(np.float64).reshape(len(wanted), -1)
        exact = wanted.astype(np.float64).reshape(len(wanted), -1)
        size = np.abs(exact).max()
        tolerance = TOLERANCES[precision] * size if wanted.dtype.kind == "f" else 0.0
        errors = np.abs(ours - exact).max(axis=1)
        if rows := [row for row, error in enumerate(errors) if not error <= tolerance]:
            worst = np.nanmax(errors[rows]) if np.isfinite(errors[rows]).any() else np.nan
            listed = ", ".join(map(str, rows))
            faults.append(f"{name} differs in row {listed} by up to {worst:.3g}, of {size:.3g}")
    return "; ".join(faults)
