"""What needs a GPU, rehearsed over a driver in host memory, and what a run says when things go wrong."""

import dataclasses
import gzip
import json
import os
import shutil
import subprocess
import sys
import tarfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gpu_builds
import pytest
import run
from device_engines import engine_on, manifest_of
from gpu_engines import check_nodes, on_onnxruntime
from host_driver import build_driver
from memory_device import MemoryDevice
from page import findings, page, passed
from toy import BUNDLE
from txport.runtime.bundle.manifest import WEIGHTS, Manifest
from txport.runtime.bundle.schema import FileEntry, Island
from txport.runtime.engines.directories import user_engines
from txport.runtime.errors import InputError
from txport.runtime.files import sha256

ROOT = Path(__file__).parents[2]


def gpu_run(directory: Path, *options: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "tests/gpu/run.py"), str(directory), *map(str, options)]
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "TXPORT_CPP_"))}
    return subprocess.run(command, env={**inherited, **environment}, capture_output=True, text=True, timeout=600)


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("cuda.bindings", reason="needs cuda-python: pip install 'txport[trt]'")
    return build_driver(tmp_path_factory.mktemp("driver"))


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory, float16_bundle: Path) -> Path:
    """A directory with one bundle."""
    directory = tmp_path_factory.mktemp("bundles")
    (directory / "tiny-float16").symlink_to(float16_bundle)
    return directory


def test_every_step_over_a_driver_in_host_memory(tmp_path: Path, bundles: Path, driver: Path) -> None:
    """In calls that join: the last one runs what the others have not, and all comes back in one archive."""
    options = ("--bundles", bundles, "--driver", driver)
    first = gpu_run(tmp_path / "out", *options, "--step", "environment", "--step", "device")
    assert first.returncode == 0, first.stdout + first.stderr
    assert "**Not run yet: onnxruntime, " in (tmp_path / "out/results/report.md").read_text()
    others = [word for name in list(run.LIMITS)[2:] if name != "training" for word in ("--step", name)]
    second = gpu_run(tmp_path / "out", *options, *others)
    assert second.returncode == 0, second.stdout + second.stderr
    assert "device ..." not in second.stdout and "onnxruntime ... passed" in second.stdout
    results = tmp_path / "out" / "results"
    found, text = findings(results), (results / "report.md").read_text()
    assert passed(found) and run.LIMITS.keys() - {"training"} < found.keys()
    skipped = {each["reason"].partition(":")[0] for each in found.values() if each["outcome"] == "skipped"}
    absent = {"needs ONNX Runtime's CUDA provider", "needs TensorRT, not only TensorRT-RTX", "needs TensorRT"}
    absent |= {"needs the C++ build", "needs PyTorch with CUDA", "no library that it needs is here"}
    absent |= {"needs a bundle in float32 with the lowering ort", "needs onnx to read the graph"}
    absent |= {"needs a bundle with the step of beam search", "needs onnx to compute on the CPU"}
    absent |= {"needs compute-sanitizer, of the CUDA toolkit"}
    assert {reason for reason in skipped - absent if " does not load " not in reason} == set()
    golden = [name for name in found if "test_onnxruntime.py::test_golden_cases" in name]
    assert len(golden) == 6, "three lowerings, captured and not"
    assert all(found[name]["outcome"] == "passed" for name in golden if "tensorscatter" not in name)
    for shown in (
        "A rehearsal",
        "Everything that ran passed. Skipped: ",
        "**Not run yet: training.**",
        "| device | passed |",
        "## versions",
        "## memory\n",
    ):
        assert shown in text
    if found["figures"]["outcome"] == "passed":  # tx-bench needs rich
        assert "| bench-tiny-float16-cpu-scatter | txport |" in text and "bench-tiny-float16-text" in text
    with tarfile.open(tmp_path / "out" / "results.tgz") as archive:
        archive.extractall(tmp_path / "elsewhere")
    assert (tmp_path / "elsewhere/results/onnxruntime.log").exists()
    assert page(tmp_path / "elsewhere/results", list(run.LIMITS), rehearsal=True) == text
    last = gpu_run(tmp_path / "out", *options, "--minutes", "0.001")
    assert [line for line in last.stdout.splitlines() if " ... " in line and not line.startswith("training ... ")] == []


def test_a_gpu_that_disappears_is_named_and_nothing_else_is_skipped_for_it(
    tmp_path: Path, bundles: Path, driver: Path
) -> None:
    options = ("--bundles", bundles, "--driver", driver, "--step", "device", "--step", "cpp")
    done = gpu_run(tmp_path, *options, TXPORT_TEST_CUDA_LOST="3")
    assert done.returncode == 1, done.stdout
    found = findings(tmp_path / "results")
    name = "tests/gpu/test_device.py::test_copies_clearing_and_capture_do_what_they_say"
    assert found[name]["outcome"] == "failed" and "CUDA_ERROR_UNKNOWN" in found[name]["reason"]
    assert f"**Not passed: {name}" in (tmp_path / "results/report.md").read_text()
    assert "cpp ... skipped in " in done.stdout and "needs the C++ build: make cpp\n" in done.stdout


def test_without_a_gpu_every_test_fails_and_says_why(tmp_path: Path, bundles: Path) -> None:
    done = gpu_run(tmp_path, "--bundles", bundles, "--step", "device", CUDA_VISIBLE_DEVICES="")
    assert done.returncode == 1 and "device ... failed" in done.stdout
    found = [each for name, each in findings(tmp_path / "results").items() if "::" in name]
    assert len(found) > 5 and all("needs an NVIDIA GPU: there is no NVIDIA" in each["reason"] for each in found)


def test_a_step_without_time_is_not_over(tmp_path: Path, bundles: Path, driver: Path) -> None:
    options = ("--bundles", bundles, "--driver", driver)
    done = gpu_run(tmp_path, *options, "--minutes", "0.001")
    assert done.returncode == 1 and "environment ... stopped" in done.stdout and "device" not in done.stdout
    text = (tmp_path / "results/report.md").read_text()
    assert "**Not passed: environment.**" in text and "**Not run yet: device, " in text
    assert "environment: it took longer than 0 s" in text
    assert "nothing ran" in page(tmp_path, list(run.LIMITS), rehearsal=False), "which is no success"


def test_a_step_has_failed_if_any_of_its_commands_has(
    tmp_path: Path, bundles: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = run.Run(tmp_path, bundles, None, None, 1)
    commands = [[sys.executable, "-c", "raise SystemExit('the first')"], [sys.executable, "-c", ""]]
    monkeypatch.setattr(started, "_commands", lambda name: iter(commands))
    started.step("figures")
    found = findings(tmp_path)["figures"]
    assert (found["outcome"], found["reason"]) == ("failed", "the first")


CASES = """
import os, signal
def test_passes(record_property): record_property("figures", {"ms": 1.5})
def test_fails(): assert 1 + 1 == 3, "of another kind"
def test_skips():
    import pytest
    pytest.skip("not today")
def test_dies(): os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_a_test_found_is_known_when_its_process_is_killed(tmp_path: Path) -> None:
    (tmp_path / "test_cases.py").write_text(CASES)
    plugin, file = str(ROOT / "tests/gpu"), tmp_path / "findings-1.jsonl"
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "TXPORT_CPP_"))}
    environment = {**inherited, "PYTHONPATH": plugin, "TXPORT_GPU_FINDINGS": str(file)}
    command = [sys.executable, "-m", "pytest", "-p", "gpu_findings", "-p", "no:cacheprovider", "test_cases.py"]
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, timeout=500)
    assert done.returncode == -9
    found = {name.partition("::")[2]: each for name, each in findings(tmp_path).items()}
    outcomes = {name: each["outcome"] for name, each in found.items()}
    assert outcomes == {
        "test_passes": "passed",
        "test_fails": "failed",
        "test_skips": "skipped",
        "test_dies": "stopped",
    }
    assert found["test_passes"]["rows"] == [{"table": "figures", "ms": 1.5}]
    assert found["test_fails"]["reason"].startswith("AssertionError: of another kind")
    assert found["test_skips"]["reason"] == "not today" and not passed(findings(tmp_path))


def bundle_of(directory: Path, name: str, precision: str, islands: int, more: int) -> Path:
    """The toy bundle as one of another precision with so many more bytes of weights; only its manifest is right."""
    bundle = Path(shutil.copytree(BUNDLE, directory / name))
    with (bundle / WEIGHTS).open("ab") as file:
        file.write(bytes(more))
    manifest = manifest_of(precision)
    files = {**manifest.files, WEIGHTS: FileEntry((bundle / WEIGHTS).stat().st_size, sha256(bundle / WEIGHTS))}
    chosen = tuple(Island("encoder", ("node",), "loss") for _ in range(islands))
    arithmetic = dataclasses.replace(manifest.precision, islands=chosen)
    graphs = tuple(graph for graph in manifest.graphs if graph.file in files)
    dataclasses.replace(manifest, files=files, graphs=graphs, precision=arithmetic).write(bundle)
    return bundle


def test_bundles_of_the_tests_come_in_order(
    tmp_path: Path, bundle: Path, float16_bundle: Path, island_bundle: Path
) -> None:
    """That with islands is the largest of the two in float16."""
    for name, each in {"a": bundle, "b": island_bundle, "c": float16_bundle}.items():
        (tmp_path / name).symlink_to(each)
    assert [path.name for path in run.in_order(tmp_path)] == ["c", "b", "a"]


def test_figures_are_of_the_largest_bundle_in_float16_without_islands(tmp_path: Path) -> None:
    """And of real text in the same precision."""
    islands = bundle_of(tmp_path, "islands", "float16", 1, 500)
    half, text = (bundle_of(tmp_path, name, "float16", 0, more) for name, more in (("half", 400), ("text", 300)))
    full = bundle_of(tmp_path, "full", "float32", 0, 900)
    tokenizer = dataclasses.replace(Manifest.load(half).tokenizer, kind="none", source=None, target=None)
    dataclasses.replace(Manifest.load(half), tokenizer=tokenizer).write(half)
    assert run.in_order(tmp_path) == [half, text, islands, full]
    pytest.importorskip("rich", reason="needs rich, as tx-bench does: pip install 'txport[bench]'")
    commands = list(run.bench_commands(run.in_order(tmp_path), tmp_path, Path("/programs"), rehearsal=True))
    lowerings = Manifest.load(half).lowerings
    assert [Path(words[3]).name for words in commands] == ["half"] * len(lowerings) + ["text"]
    assert all("--cpp" in words for words in commands[:-1])
    for only, count in (("ort", "ort" in lowerings), ("none", 0)):
        commands = list(run.bench_commands(run.in_order(tmp_path), tmp_path, None, rehearsal=True, only=only))
        assert [Path(words[3]).name for words in commands] == ["half"] * count + ["text"] * count


class CountingDevice(MemoryDevice):
    """One whose captured steps have these nodes."""

    nodes = Counter({"kernel": 300, "memcpy": 2, "empty": 1})
    graphs: list[Counter[str]] | None = None

    def capture(self, enqueue: Callable[[], None]) -> Callable[[], None]:
        if self.graphs is not None:
            self.graphs.append(self.nodes)
        return super().capture(enqueue)


@pytest.mark.parametrize("bad", ["host", "pageable memcpy"])
def test_no_node_of_a_captured_step_may_depend_on_the_host(bad: str) -> None:
    device, rows = CountingDevice(), list[tuple[str, dict[str, object]]]()
    engine, _ = engine_on(device, batches=(1, 8), targets=(32, 64))
    check_nodes(engine, lambda *row: rows.append(row), bundle="toy")
    nodes = {"bundle": "toy", "kernel": 300, "memcpy": 2, "empty": 1}
    assert rows == [("nodes of a captured step", {**nodes, "batch": batch}) for batch in (1, 8)]
    device.nodes = device.nodes + Counter({bad: 3})
    with pytest.raises(AssertionError, match=bad):
        check_nodes(engine_on(device)[0], lambda *row: None)


def test_without_onnxruntime_tests_are_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine may have TensorRT alone."""
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(pytest.skip.Exception, match="needs ONNX Runtime"):
        on_onnxruntime(BUNDLE)


def test_builds_end_with_the_time_of_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TXPORT_GPU_END", str(time.time() + 1))
    with pytest.raises(pytest.fail.Exception, match="no time was left to build engines of toy_bundle"):
        gpu_builds.tx_build(BUNDLE)
    monkeypatch.setattr(gpu_builds, "RESERVE", 0.0)
    monkeypatch.setattr(gpu_builds, "COMMAND", "import time; time.sleep(60)")
    with pytest.raises(pytest.fail.Exception, match="tx-build toy_bundle did not end within 1 s"):
        gpu_builds.tx_build(BUNDLE)


def test_a_large_bundle_is_built_for_one_cache_length(float16_bundle: Path) -> None:
    """Each takes a quarter of a minute or more."""
    manifest = Manifest.load(float16_bundle)
    assert gpu_builds.sizes(manifest)[-1] == "32,128"
    files = {**manifest.files, WEIGHTS: dataclasses.replace(manifest.files[WEIGHTS], bytes=gpu_builds.LARGE + 1)}
    assert gpu_builds.sizes(dataclasses.replace(manifest, files=files))[-1] == "64"


def test_the_inspector_is_asked_about_every_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = (ROOT / "tests/data/inspector/tensorrt_8_6.json").read_text()
    inspector = SimpleNamespace(get_engine_information=lambda form: said)
    engine = SimpleNamespace(create_engine_inspector=lambda: inspector)
    module = SimpleNamespace(LayerInformationFormat=SimpleNamespace(JSON="JSON"))
    tensorrt: Any = SimpleNamespace(module=module, library="TensorRT 8.6.1", open_engine=lambda data, _: (None, engine))
    monkeypatch.setenv("TXPORT_CACHE", str(tmp_path / "cache"))
    bundle = Path(shutil.copytree(BUNDLE, tmp_path / "toy"))
    directory = user_engines(Manifest.load(bundle)) / "sm90-trt8.6.1-0"
    directory.mkdir(parents=True)
    for name in ("build.json", "encoder.plan", "decoder_step.plan", "timing.cache"):
        (directory / name).touch()
    kept = gpu_builds.keep_inspector(tensorrt, bundle, tmp_path)
    assert [file.name for file in kept] == ["toy.decoder_step.json.gz", "toy.encoder.json.gz"]
    with gzip.open(kept[0]) as file:
        assert json.load(file) == json.loads(said)["Layers"]


# Named as a plugin of pytest, so that it is imported before anything else.
REFUSE = """
import sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {names}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Refuse())
"""


def run_pytest(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    plugins = [word for name in ("cacheprovider", "xdist", "hypothesispytest") for word in ("-p", f"no:{name}")]
    command = [sys.executable, "-m", "pytest", *plugins, *arguments]
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "TXPORT_CPP_"))}
    environment = {**inherited, "CUDA_VISIBLE_DEVICES": "", **environment}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=500, cwd=ROOT)


def test_without_a_gpu_tests_are_skipped_unless_there_must_be_one() -> None:
    one = "tests/gpu/test_device.py::test_any_thread_may_use_a_device"
    skipped = run_pytest("-rs", one)
    assert skipped.returncode == 0 and "needs an NVIDIA GPU: there is no NVIDIA" in skipped.stdout, skipped.stdout
    failed = run_pytest(one, TXPORT_NEEDS_GPU="1")
    assert failed.returncode == 1 and "needs an NVIDIA GPU: there is no NVIDIA" in failed.stdout, failed.stdout


@pytest.mark.parametrize(
    "missing",
    [
        # CPython 3.10 with TensorRT 8.6 alone; ONNX Runtime alone.
        {"onnxruntime", "sentencepiece", "hypothesis", "torch", "onnx", "onnx_ir", "rich"},
        {"tensorrt", "tensorrt_rtx", "tensorrt_rtx_bindings", "hypothesis", "torch", "onnx", "onnx_ir"},
        {"cuda", "onnxruntime", "tensorrt_rtx_bindings", "torch"},
    ],
)
def test_tests_are_collected_without_what_they_do_not_need(missing: set[str], tmp_path: Path) -> None:
    (tmp_path / "refuse.py").write_text(REFUSE.format(names=sorted(missing)))
    done = run_pytest("-p", "refuse", "--collect-only", "-q", "-m", "gpu", "tests/gpu", PYTHONPATH=str(tmp_path))
    assert "error" not in done.stdout.lower() and done.returncode == 0, done.stdout + done.stderr
    golden = done.stdout.count("test_golden_cases_in_any_batch_and_after_any_refill")
    assert golden == 3 * (3 * 2 + 1), "three bundles: each lowering, captured and not, and TensorRT"


def test_bad_use_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="holds no bundles"):
        run.in_order(tmp_path)
    done = gpu_run(tmp_path / "out", "--bundles", tmp_path)
    assert done.returncode == InputError.exit_code and done.stderr.startswith("run.py: ") and "holds no" in done.stderr
