"""Planted faults are found and named by the pattern tests, and TensorRT-RTX builds every case, without a GPU."""

import dataclasses
import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch", reason="needs PyTorch: pip install 'txport[dev]'")
pytest.importorskip("tensorrt_rtx_bindings", reason="needs TensorRT-RTX (x86-64): pip install 'txport[dev]'")

from computing_rtx import ComputingRtx, Fault, broadcasts_over_heads, fused_attention, none, of_kind, of_node
from host_driver import build_driver
from memory_device import MemoryDevice
from pattern_graphs import write_cases
from pattern_networks import (
    PATTERNS,
    PRECISIONS,
    STEP,
    SUBLAYERS,
    Builds,
    Case,
    Job,
    build,
    build_apart,
    fault_of,
    prefixes,
    read_cases,
    variants,
    wrong_rows,
)
from txport.runtime.engines.tensorrt import find_tensorrt
from txport.runtime.errors import BundleError

RUN = Path(__file__).parents[1] / "run.py"
TESTS = "tests/gpu/patterns/test_patterns.py"
ATTENTIONS = ("self_attention", "self_attention_t5", "cross_attention")


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> list[Case]:
    """Every case."""
    directory = tmp_path_factory.mktemp("patterns")
    write_cases(directory)
    return read_cases(directory)


@pytest.fixture
def fault(tmp_path: Path) -> Callable[[Fault, Job], str]:
    """What is found of a job where this fault is planted."""

    def found(wrong: Fault, job: Job) -> str:
        tensorrt = ComputingRtx.with_fault(wrong)
        build(job, tmp_path / "plan", tensorrt)
        return fault_of(tensorrt, MemoryDevice(lazy=False), tmp_path / "plan", job)

    return found


def chosen(cases: list[Case], lowering: str = "scatter", precision: str = "float32") -> dict[str, Case]:
    return {case.name: case for case in cases if (case.lowering, case.precision) == (lowering, precision)}


def test_without_a_fault_every_case_is_right(cases: list[Case], fault: Callable[[Fault, Job], str]) -> None:
    """In both precisions and lowerings, for sources of one length and of any."""
    assert len(cases) == (len(PATTERNS) + 1) * 2 * len(PRECISIONS)
    for case in cases:
        assert [fault(none, Job(case, dynamic=dynamic)) for dynamic in (False, True)] == ["", ""], case.file.name


@pytest.mark.parametrize(
    ("wrong", "job", "patterns"),
    [
        (broadcasts_over_heads, {"repeat": False}, {*ATTENTIONS, "cache_write", "rotary"}),
        (broadcasts_over_heads, {"repeat": True}, set()),
        (fused_attention, {}, {"self_attention", "self_attention_t5"}),
        (fused_attention, {"scores": True}, set()),
        (of_node("ScatterElements/Where"), {}, {"self_attention", "self_attention_t5", "cache_write"}),
        (of_node("ScatterElements/Where"), {"select": False}, set()),
        (of_kind("SCATTER"), {"select": False}, {"self_attention", "self_attention_t5", "cache_write", "mixture"}),
        (of_kind("NORMALIZATION"), {}, {"layer_norm"}),
        (of_kind("SOFTMAX"), {}, {*ATTENTIONS, "mixture"}),
        (of_node("/ReduceMean"), {}, {"rms_norm"}),
        (of_node("/Relu"), {}, {"relu", "mixture"}),
        (of_node("/Erf"), {}, {"gelu"}),
        (of_node("/Tanh"), {}, {"gate"}),
        (of_node("rotary_positions/Gather"), {}, {"rotary"}),
        (of_node("ArgMax"), {}, {"choice", "state"}),
        (of_node("GreaterOrEqual"), {}, {"state"}),
    ],
)  # fmt: skip
def test_a_pattern_names_the_operator(
    wrong: Fault,
    job: dict[str, bool],
    patterns: set[str],
    cases: list[Case],
    fault: Callable[[Fault, Job], str],
) -> None:
    found = {name: fault(wrong, Job(case, **job)) for name, case in chosen(cases).items()}  # type: ignore[arg-type]
    del found[STEP]
    assert {name for name, text in found.items() if text} == patterns
    assert all(" differs in row " in text and "row 0" not in text for text in found.values() if text)


@pytest.mark.parametrize("sublayer", SUBLAYERS)
@pytest.mark.parametrize("precision", PRECISIONS)
def test_the_first_wrong_prefix_names_the_sublayer(
    sublayer: str, precision: str, cases: list[Case], fault: Callable[[Fault, Job], str]
) -> None:
    """Whose last product is wrong; what comes before it stays right."""
    kind, layer = sublayer.split(" of layer ")
    wrong = of_node(f"layers.{layer}.{'feed_forward.outer' if kind == 'feed_forward' else kind + '_output'}/Gemm")
    jobs = prefixes(chosen(cases, precision=precision)[STEP])
    assert next(job.sublayer for job in jobs if fault(wrong, job)) == sublayer


def test_the_variants_that_are_right_are_the_way_out(cases: list[Case], fault: Callable[[Fault, Job], str]) -> None:
    jobs = variants(chosen(cases)[STEP])
    assert len(jobs) == len(set(map(str, jobs))) == 32
    right = [job for job in jobs if not fault(broadcasts_over_heads, job)]
    assert right == [job for job in jobs if job.repeat]
    right = [job for job in jobs if not fault(fused_attention, job)]
    assert right == [job for job in jobs if job.scores]
    right = [job for job in jobs if not fault(of_node("ScatterElements/Where"), job)]
    assert right == [job for job in jobs if not job.select]
    assert all(job.select is None for job in variants(chosen(cases, "tensorscatter")[STEP]))


def test_rows_with_values_that_are_not_finite_are_wrong() -> None:
    exact = np.ones((4, 2), np.float32)
    broken = exact.copy()
    broken[2, 1] = np.nan
    assert wrong_rows({"x": broken}, {"x": exact}, "float32") == "x differs in row 2 by up to nan, of 1"
    assert wrong_rows({"x": exact + 1e-4}, {"x": exact}, "float32") == ""
    ids = np.array([4, 5])
    assert wrong_rows({"ids": np.array([4, 6])}, {"ids": ids}, "float16") == "ids differs in row 1 by up to 1, of 5"


@pytest.mark.parametrize("lowering", ["scatter", "tensorscatter"])
def test_tensorrt_rtx_builds_every_case(lowering: str, cases: list[Case], tmp_path: Path) -> None:
    """And a prefix of the step in a process of its own, as on a GPU."""
    tensorrt = find_tensorrt("tensorrt_rtx")
    for case in chosen(cases, lowering, "float16").values():
        build(Job(case, level=0, dynamic=True, scores=True), tmp_path / case.name, tensorrt, "8.9")
        assert (tmp_path / case.name).stat().st_size > 0
    builds = Builds(tmp_path, partial(build_apart, "tensorrt_rtx", "8.9"))
    assert builds.plan(prefixes(chosen(cases, lowering)[STEP])[1]).stat().st_size > 0
    builds.close()


def test_a_build_that_fails_gives_the_reason(cases: list[Case], tmp_path: Path) -> None:
    builds = Builds(tmp_path, partial(build_apart, "tensorrt_rtx", "8.9"))
    case = dataclasses.replace(chosen(cases)["relu"], directory=tmp_path)
    with pytest.raises(BundleError, match=r"TensorRT-RTX .* does not parse .*relu.scatter.float32.onnx"):
        builds.plan(Job(case))
    builds.close()


def test_a_rehearsal_with_the_fault_of_tensorrt_8_6_reports_it(tmp_path: Path, bundle: Path, cases: list[Case]) -> None:
    """The report names the patterns, the first wrong sublayer, and the variants that are right."""
    (tmp_path / "bundles").mkdir()
    (tmp_path / "bundles" / "tiny").symlink_to(bundle)
    driver = build_driver(tmp_path)
    command = [sys.executable, str(RUN), str(tmp_path / "out"), "--bundles", str(tmp_path / "bundles")]
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")},
        "TXPORT_GPU_FAULT": "broadcasts_over_heads",
        "TXPORT_GPU_PATTERNS": str(cases[0].directory),
    }
    options = ["--driver", str(driver), "--step", "patterns"]
    done = subprocess.run([*command, *options], env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 1 and "patterns ... failed" in done.stdout, done.stdout + done.stderr
    report = (tmp_path / "out/results/report.md").read_text()
    wrong = {
        name for name in PATTERNS if f"- {TESTS}::test_every_row_of_a_pattern_is_right[{name}-float32]: " in report
    }
    assert wrong == {*ATTENTIONS, "rotary", "cache_write"}
    assert "the step in float16 is wrong from self of layer 0 on: " in report
    assert "Right are: level 3, repeated over heads: True, caches by Where: True, scores as outputs: True; " in report
