"""The report of a GPU: rehearsed over a driver in host memory, and what it says when things go wrong."""

import fcntl
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from device_engines import engine_on
from host_driver import build_driver
from memory_device import MemoryDevice
from txport.benchmarks.gpu.cpp import cpp
from txport.benchmarks.gpu.graphs import report_nodes
from txport.benchmarks.gpu.onnxruntime import matrix, threads
from txport.benchmarks.gpu.page import page
from txport.benchmarks.gpu.report import REPORT, run_stage, run_stages
from txport.benchmarks.gpu.schema import Check, GpuReport
from txport.benchmarks.gpu.stage import STAGES
from txport.benchmarks.gpu.stage_context import Skip, StageContext
from txport.benchmarks.gpu.timing import refilling, table
from txport.runtime.bundle.strict_json import decode, read
from txport.runtime.device.gpu import find_gpu
from txport.runtime.errors import InputError


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory, bundle: Path) -> Path:
    """A directory with one bundle."""
    directory = tmp_path_factory.mktemp("bundles")
    (directory / "tiny-float32").symlink_to(bundle)
    return directory


def command(output: Path, bundles: Path, *more: str) -> list[str]:
    start = [sys.executable, "-m", "txport.benchmarks.gpu.report", "--bundles", str(bundles)]
    return [*start, "-o", str(output), *more]


def test_every_stage_over_a_driver_in_host_memory(tmp_path: Path, bundles: Path) -> None:
    pytest.importorskip("cuda.bindings", reason="needs cuda-python: pip install 'txport[trt]'")
    driver = build_driver(tmp_path)
    done = subprocess.run(
        command(tmp_path / "report", bundles, "--driver", str(driver)), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    report = decode(GpuReport, read(tmp_path / "report" / REPORT), REPORT)
    assert report.rehearsal and report.passed and [stage.name for stage in report.stages] == list(STAGES)
    skipped = {stage.name for stage in report.stages if stage.status == "skipped"}
    assert skipped <= {"cpp", "tensorrt"}, "the C++ tools are not here, and TensorRT-RTX may not be"
    found = {stage.name: stage.findings for stage in report.stages}
    assert "nodes of one captured copy" in {check.name for check in found["device"].checks}
    expected = {"tiny-float32, ort, captured", "tiny-float32, scatter: operators that may be captured"}
    assert {check.name for check in found["onnxruntime"].checks} >= expected
    assert all(found[name].tables for name in ("onnxruntime", "memory", "table", "refill"))
    text = (tmp_path / "report" / "gpu-report.md").read_text()
    assert text == page(report)
    assert "Everything that ran passed." in text
    for shown in ("A rehearsal", "| onnxruntime | passed |", "microseconds a step", "host share", "exhausted"):
        assert shown in text


NO_GPU = isinstance(find_gpu(), str)


class CountingDevice(MemoryDevice):
    """One whose captured steps have these nodes."""

    nodes = Counter({"kernel": 300, "memcpy": 2, "empty": 1})
    graphs: list[Counter[str]] | None = None

    def capture(self, enqueue: Callable[[], None]) -> Callable[[], None]:
        if self.graphs is not None:
            self.graphs.append(self.nodes)
        return super().capture(enqueue)


@pytest.mark.parametrize("bad", ["host", "pageable memcpy"])
def test_nodes_of_captured_steps_are_shown_and_none_may_depend_on_the_host(tmp_path: Path, bad: str) -> None:
    device = CountingDevice()
    engine, _ = engine_on(device, batches=(1, 8), targets=(32, 64))
    context = StageContext(tmp_path / "result.json", {}, True, None, tmp_path)
    report_nodes(context, "toy, scatter", engine, bundle="toy")
    row = {"bundle": "toy", "kernel": 300, "memcpy": 2, "memset": 0, "host": 0, "pageable_memcpy": 0, "other": 1}
    assert context.findings.tables == {"nodes of a captured step": ({**row, "batch": 1}, {**row, "batch": 8})}
    name = "toy, scatter: no captured node depends on the host's memory"
    assert context.findings.checks == (Check(name, True, ""),) and device.graphs is None
    device.nodes = device.nodes + Counter({bad: 3})
    report_nodes(context, "toy, scatter", engine_on(device)[0])
    assert context.findings.checks[1] == Check(name, False, f"3 {bad} nodes")


@pytest.mark.skipif(not NO_GPU, reason="needs a machine without an NVIDIA GPU")
def test_without_a_gpu_every_stage_says_why(tmp_path: Path, bundles: Path) -> None:
    report = run_stages(tmp_path, bundles, None, ("environment", "device", "table"), 20, None)
    assert [stage.status for stage in report.stages] == ["failed", "skipped", "skipped"]
    assert "**Not passed: environment.** Skipped: device, table." in page(report)
    assert "there is no NVIDIA" in report.stages[1].reason and not report.passed


@pytest.mark.parametrize("stage", [matrix, threads, table, refilling, cpp])
def test_without_onnxruntime_stages_say_so(
    stage: Callable[[StageContext], None], tmp_path: Path, bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine may have TensorRT alone."""
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    context = StageContext(tmp_path / "result.json", {"tiny-float32": bundle}, True, tmp_path, tmp_path)
    with pytest.raises(Skip, match="ONNX Runtime is not installed"):
        stage(context)


def test_a_stage_that_takes_too_long_is_stopped_and_the_others_go_on(tmp_path: Path, bundles: Path) -> None:
    options = ["--bundles", str(bundles), "--scratch", str(tmp_path)]
    stage = run_stage("environment", tmp_path, options, dict(os.environ), 0.01)
    assert (stage.status, stage.reason) == ("stopped", "it took longer than 0 s")
    report = run_stages(tmp_path / "report", bundles, None, ("environment", "device"), 1e-9, None)
    assert [stage.reason for stage in report.stages] == ["no time was left for it: give more with --minutes"] * 2


def test_a_gpu_that_disappears_is_said_and_the_report_goes_on(
    tmp_path: Path, bundles: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Within a stage, and between two: a GPU that was here cannot be a reason to skip."""
    pytest.importorskip("cuda.bindings", reason="needs cuda-python: pip install 'txport[trt]'")
    driver = build_driver(tmp_path)
    monkeypatch.setenv("TXPORT_TEST_CUDA_LOST", "3")
    report = run_stages(tmp_path / "report", bundles, None, ("environment", "device", "memory"), 20, driver)
    assert [stage.status for stage in report.stages] == ["passed", "failed", "failed"] and not report.passed
    assert "CUDA failed in cu" in report.stages[1].reason and "CUDA_ERROR_UNKNOWN" in report.stages[1].reason
    options = ["--bundles", str(bundles), "--scratch", str(tmp_path), "--gpu-seen"]
    for status, more in (("failed", options), ("skipped", options[:-1])):
        without = {**os.environ, "LD_LIBRARY_PATH": ""}
        assert run_stage("device", tmp_path, more, without, 60).status == (status if NO_GPU else "passed")


def test_a_stage_that_is_killed_is_said_and_the_report_goes_on(tmp_path: Path, bundles: Path) -> None:
    """As the system does when memory runs out."""
    pytest.importorskip("cuda.bindings", reason="needs cuda-python: pip install 'txport[trt]'")
    driver = build_driver(tmp_path)
    process = subprocess.Popen(
        command(tmp_path / "report", bundles, "--driver", str(driver), "--stage", "memory", "--stage", "device"),
        stdout=subprocess.PIPE,
        text=True,
    )
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    while not (child := children.read_text().split()):
        time.sleep(0.01)
    time.sleep(0.5)
    os.kill(int(child[0]), signal.SIGKILL)
    said, _ = process.communicate(timeout=120)
    assert process.returncode == 1
    assert "memory ... stopped" in said and "killed by signal 9" in said and "device ... passed" in said


def test_bad_use_is_one_sentence(tmp_path: Path, bundles: Path) -> None:
    with pytest.raises(InputError, match="holds no bundles"):
        run_stages(tmp_path / "report", tmp_path, None, ("device",), 1, None)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").write_text("mine")
    with pytest.raises(InputError, match="holds other files"):
        run_stages(tmp_path / "other", bundles, None, ("device",), 1, None)
    (tmp_path / "busy").mkdir()
    (tmp_path / "busy" / REPORT).write_text("{}")
    with (tmp_path / "busy" / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(InputError, match="another report is being written"):
            run_stages(tmp_path / "busy", bundles, None, ("device",), 1, None)
