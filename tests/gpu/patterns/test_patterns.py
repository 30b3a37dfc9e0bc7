"""Tests of the operators that TensorRT computes wrongly on this GPU, of the sublayers of a step, and of its variants.

Level 1, patterns: a few operators each, written as the exporter writes them. Level 2, prefixes: the step of a small
model with the residual after each sublayer as an output. Level 3, variants: all ways to build that step. Builds run
side by side. Cases come from `TXPORT_GPU_PATTERNS`, a directory that `pattern_graphs.py` wrote, or are written here.
"""

import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from gpu_engines import REHEARSAL, Rows
from pattern_networks import (
    PATTERNS,
    PRECISIONS,
    STEP,
    Builds,
    Case,
    Job,
    build,
    build_apart,
    fault_of,
    prefixes,
    read_cases,
    variants,
)
from txport.runtime.engines.tensorrt import TensorRt, find_tensorrt
from txport.runtime.errors import TxportError

pytestmark = pytest.mark.gpu
DYNAMIC = ("cross_attention", "mixture")  # which read sources


class Bench:
    """The library, the device, the cases and their builds.

    Args:
        tensorrt: the library.
        device: whose memory and stream.
        directory: of the cases.
        builds: made of them.
    """

    def __init__(self, tensorrt: TensorRt, device: Any, directory: Path, builds: Builds) -> None:
        self._tensorrt = tensorrt
        self._device = device
        self._builds = builds
        chosen = [case for case in read_cases(directory) if case.lowering == tensorrt.lowering]
        self._cases = {(case.name, case.precision): case for case in chosen}
        # In the order of the tests.
        for name in PATTERNS:
            builds.start(job for precision in PRECISIONS for job in pattern_jobs(self.case(name, precision)))
        for precision in PRECISIONS:
            builds.start([Job(self.case(STEP, precision)), *prefixes(self.case(STEP, precision))])

    def case(self, name: str, precision: str) -> Case:
        """Return a case of the lowering that this version builds."""
        return self._cases[name, precision]

    def result(self, job: Job) -> str:
        """Return "right", or what is wrong, or why it was not built or run."""
        try:
            return fault_of(self._tensorrt, self._device, self._builds.plan(job), job) or "right"
        except TxportError as error:
            return str(error)


def pattern_jobs(case: Case) -> list[Job]:
    """Return the builds of a pattern."""
    jobs = [Job(case, level) for level in (3, 0)]
    return [*jobs, Job(case, dynamic=True)] if case.name in DYNAMIC else jobs


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    """Every case, with its builds begun; in a rehearsal the networks of TensorRT-RTX, computed on the CPU."""
    cuda = pytest.importorskip("txport.runtime.device.cuda", reason="needs cuda-python: pip install 'txport[trt]'")
    try:
        tensorrt = find_tensorrt("tensorrt_rtx" if REHEARSAL else None)
    except TxportError as error:
        pytest.skip(f"needs TensorRT: {error}")
    if tensorrt.is_rtx and not REHEARSAL:
        pytest.skip("needs TensorRT, not only TensorRT-RTX")
    work = partial(build_apart, "tensorrt", None)
    if REHEARSAL:
        pytest.importorskip("onnx", reason="needs onnx to compute on the CPU")
        from computing_rtx import FAULTS, ComputingRtx

        tensorrt = ComputingRtx.with_fault(FAULTS[os.environ.get("TXPORT_GPU_FAULT", "none")])
        work = partial(build_here, tensorrt)
    directory = Path(os.environ.get("TXPORT_GPU_PATTERNS") or tmp_path_factory.mktemp("cases"))
    if not (directory / "cases.json").exists():
        pytest.importorskip("torch", reason="needs PyTorch, or patterns that pattern_graphs.py wrote")
        from pattern_graphs import write_cases

        write_cases(directory)
    builds = Builds(tmp_path_factory.mktemp("plans"), work)
    yield Bench(tensorrt, cuda.CudaDevice(), directory, builds)
    builds.close()


def build_here(tensorrt: TensorRt, job: Job, plan: Path) -> None:
    """Build in this process."""
    build(job, plan, tensorrt)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("name", PATTERNS)
def test_every_row_of_a_pattern_is_right(name: str, precision: str, bench: Bench, record_property: Rows) -> None:
    results = {str(job): bench.result(job) for job in pattern_jobs(bench.case(name, precision))}
    record_property("patterns", {"pattern": name, "precision": precision, **results})
    wrong = {job: result for job, result in results.items() if result != "right"}
    assert not wrong, f"{name} in {precision}: {wrong}"


@pytest.mark.parametrize("precision", PRECISIONS)
def test_every_sublayer_of_a_step_is_right(precision: str, bench: Bench, record_property: Rows) -> None:
    results = {job.sublayer: bench.result(job) for job in prefixes(bench.case(STEP, precision))}
    record_property("prefixes", {"precision": precision, **results})
    first = next(((sublayer, result) for sublayer, result in results.items() if result != "right"), None)
    assert first is None, f"the step in {precision} is wrong from {first[0]} on: {first[1]}"


@pytest.mark.parametrize("precision", PRECISIONS)
def test_the_step_of_tx_build_is_right(precision: str, bench: Bench, record_property: Rows) -> None:
    """If it is wrong, all other ways to build it are tried: those that are right are the way out."""
    step = bench.case(STEP, precision)
    result = bench.result(Job(step))
    record_property("variants", {"precision": precision, "variant": "of tx-build", "result": result})
    results = {str(job): bench.result(job) for job in variants(step)} if result != "right" else {}
    for variant, each in results.items():
        record_property("variants", {"precision": precision, "variant": variant, "result": each})
    right = "; ".join(variant for variant, each in results.items() if each == "right")
    assert result == "right", f"the step in {precision}: {result}. Right are: {right or 'none'}"
