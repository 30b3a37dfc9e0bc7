"""tx-build as a user meets it, with TensorRT-RTX, which builds for a GPU that is not there."""

import ctypes
import dataclasses
import fcntl
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import commands
import pytest
from memory_engine import MemoryEngine
from toy import BUNDLE
from txport.exporter import entry
from txport.exporter.engines import check, directory
from txport.exporter.engines.builder import BuildOptions
from txport.exporter.engines.process import BuildCrashed, run_apart
from txport.exporter.engines.profiles import choose_beams, choose_buckets
from txport.runtime.bundle.manifest import Manifest
from txport.runtime.bundle.schema import Dimensions, Generation, Limits, Range
from txport.runtime.device.gpu import Gpu, find_gpu
from txport.runtime.engines.build_record import BuildRecord, LibraryVersion
from txport.runtime.engines.directories import best, directories, user_engines
from txport.runtime.engines.ort import OrtEngine
from txport.runtime.engines.tensorrt import find_tensorrt
from txport.runtime.errors import BundleError, CheckFailed, EngineError, InputError
from txport.runtime.system import process_memory

L4 = Gpu("NVIDIA L4", "8.9", 58, "13.0")
SMALL = "--compute-capability 8.9 --batch-buckets 1,2 --target-buckets 16,32 --optimization-level 0".split()


@pytest.fixture(scope="module")
def target(bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle to build engines into."""
    pytest.importorskip("tensorrt_rtx_bindings", reason="needs TensorRT-RTX (x86-64): pip install 'txport[dev]'")
    return Path(shutil.copytree(bundle, tmp_path_factory.mktemp("build") / "bundle"))


def tx_build(*arguments: object) -> subprocess.CompletedProcess[str]:
    """The command, in this process; engines are built in others."""
    return commands.run(entry, "tx-build", *arguments)


@pytest.fixture
def built_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Builds run in this process. The start of another one takes as long as a small build."""
    monkeypatch.setattr(directory, "run_apart", lambda work, timeout, progress: work(progress))


def engines_of(bundle: Path) -> list[Path]:
    """Directories of the engines that tx-build made of a bundle."""
    return directories(user_engines(Manifest.load(bundle)))


@pytest.fixture(scope="module")
def built(target: Path) -> BuildRecord:
    done = tx_build(target, *SMALL, "--json")
    assert done.returncode == 0, done.stderr
    return BuildRecord.parse(done.stdout.encode())


def test_engines_are_built_and_chosen(target: Path, built: BuildRecord) -> None:
    manifest = Manifest.load(target)
    here = best(target, manifest, L4, built.library)
    assert (
        here.record == built and here.directory.parent == user_engines(manifest) and not (target / "engines").exists()
    )
    here.record.check_files(here.directory)
    assert built.lowering == "tensorscatter" and built.id_type == "int64"
    assert built.precision.type == manifest.precision.type and set(built.precision.layers) == {"float32"}
    found = {(p.batch.max, p.target.max) for e in built.of_role("decoder_step") for p in e.profiles if p.target}
    assert found == {(1, 16), (2, 16), (1, 32), (2, 32)}
    assert len(built.of_role("decoder_step")) == 2, "a static cache length: one engine for each"
    assert built.gpu.compute_capabilities == ("8.9",) and built.gpu.name is None
    weights = manifest.files["onnx/weights.bin"].bytes
    assert weights < built.peak_memory < 2e9 and built.build_seconds > 0
    with pytest.raises(BundleError, match="run tx-build"):
        best(target, manifest, dataclasses.replace(L4, compute_capability="8.6"), built.library)
    with pytest.raises(BundleError, match="needs TensorRT-RTX 1.7"):
        best(target, manifest, L4, LibraryVersion("tensorrt", "10.15.1"))


@pytest.fixture(scope="module")
def with_beams(attention_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle with the step of beam search, whose model searches with 2."""
    pytest.importorskip("tensorrt_rtx_bindings", reason="needs TensorRT-RTX (x86-64): pip install 'txport[dev]'")
    copy = Path(shutil.copytree(attention_bundle, tmp_path_factory.mktemp("beams") / "bundle"))
    dataclasses.replace(Manifest.load(copy), generation=Generation(beam=2)).write(copy)
    return copy


@pytest.mark.usefixtures("built_here")
@pytest.mark.parametrize(
    ("asked", "targets", "beams", "shown"),
    [
        ([], [16], [2], "2 buckets, beams 2"),
        (["--beams", "4,2"], [16, 32], [2, 4], "4 buckets, beams 2 and 4"),
        (["--beams", "1"], [16], [], "2 buckets"),
    ],
)
def test_the_step_of_beam_search_is_built_for_the_models_own_beams_or_those_asked_for(
    with_beams: Path, asked: list[str], targets: list[int], beams: list[int], shown: str
) -> None:
    buckets = ["--batch-buckets", "1,8", "--target-buckets", ",".join(map(str, targets))]
    done = tx_build(with_beams, *SMALL, *buckets, "--lowering", "scatter", *asked, "--json")
    assert done.returncode == 0, done.stderr
    record = BuildRecord.parse(done.stdout.encode())
    assert record.beams == beams and len(record.of_role("decoder_beams")) == len(beams) * len(targets), (
        "one for each cache length"
    )
    made = {
        (p.beams, p.batch.max, p.target.max) for e in record.of_role("decoder_beams") for p in e.profiles if p.target
    }
    assert made == {(beam, count, target) for beam in beams for count in (1, 8 // beam) for target in targets}
    assert ("onnx/decoder_beams.onnx" in record.bundle) == bool(beams)
    here = best(with_beams, Manifest.load(with_beams), L4, record.library)
    here.record.check_files(here.directory)
    assert here.record == record and record.sizes == shown
    shutil.rmtree(here.directory)


def test_beams_that_cannot_be_built_are_refused(with_beams: Path, target: Path) -> None:
    done = tx_build(with_beams, *SMALL, "--beams", "3")
    assert done.returncode == 2 and "the beam bucket 3 is not between 1 and 2" in done.stderr
    done = tx_build(target, *SMALL, "--beams", "2")
    assert done.returncode == 2 and "has no step of beam search: export it again with --with-beams" in done.stderr
    manifest, tensorrt = Manifest.load(with_beams), find_tensorrt("tensorrt_rtx")
    older = dataclasses.replace(tensorrt, library=LibraryVersion("tensorrt", "10.14.1"))
    with pytest.raises(InputError, match="TensorRT 10.14.1 does not build the step of beam search, 10.15 does"):
        choose_beams(manifest, older, 8, [4])
    assert choose_beams(manifest, older, 8, None) == choose_beams(manifest, tensorrt, 1, None) == ()
    assert choose_beams(manifest, tensorrt, 2, None) == (2,)


def test_a_directory_is_not_built_over_unless_forced(target: Path, built: BuildRecord) -> None:
    again = tx_build(target, *SMALL)
    assert again.returncode == 2 and "exists already" in again.stderr and "--force" in again.stderr
    forced = tx_build(target, *SMALL, "--force")
    assert forced.returncode == 0 and "TensorRT-RTX" in forced.stdout
    gpu = find_gpu()
    if isinstance(gpu, str) or gpu.compute_capability != "8.9":
        assert "the engines have not been tried (" in forced.stderr and "run tx-verify --engine trt" in forced.stderr
    assert len(engines_of(target)) == 1


@pytest.mark.usefixtures("built_here")
def test_one_engine_for_all_buckets_where_the_cache_length_is_free(target: Path, built: BuildRecord) -> None:
    done = tx_build(target, *SMALL, "--lowering", "scatter", "--json")
    assert done.returncode == 0, done.stderr
    record = BuildRecord.parse(done.stdout.encode())
    shutil.rmtree(next(path for path in engines_of(target) if BuildRecord.load(path) == record))
    (step,) = record.of_role("decoder_step")
    assert record.lowering == "scatter" and len(step.profiles) == 4


def test_a_second_build_at_the_same_time_is_refused(target: Path, built: BuildRecord) -> None:
    with (user_engines(Manifest.load(target)) / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = tx_build(target, *SMALL, "--force")
    assert done.returncode == 2 and "another tx-build" in done.stderr


def test_a_build_that_is_killed_leaves_nothing_that_is_loaded(target: Path, built: BuildRecord) -> None:
    before = engines_of(target)
    command = [str(Path(sys.executable).with_name("tx-build")), str(target), *SMALL, "--force"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while not list(user_engines(Manifest.load(target)).glob(".sm*/*.plan")) and time.monotonic() < deadline:
        time.sleep(0.01)
    process.kill()
    process.wait()
    assert list(user_engines(Manifest.load(target)).glob(".sm*/*.plan")), "it was killed while it built"
    assert engines_of(target) == before and BuildRecord.load(before[0]) is not None
    assert tx_build(target, *SMALL, "--force").returncode == 0
    assert not list(user_engines(Manifest.load(target)).glob(".sm*")), "the next build removes what the killed one left"


def test_a_build_that_takes_too_long_is_stopped(target: Path) -> None:
    done = tx_build(target, *SMALL, "--force", "--timeout", "0.05")
    assert done.returncode == 1 and "took longer than 0.05 seconds" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--compute-capability", "9.0"], "does not build for compute capability 9.0, only 7.5"),
        (["--compute-capability", "sm89"], "'sm89' is not like 8.9"),
        ([*SMALL, "--hardware-compatible"], "leave --hardware-compatible"),
        ([*SMALL, "--version-compatible"], "leave --hardware-compatible and --version-compatible"),
        ([*SMALL, "--batch-buckets", "1,100000"], "batch bucket 100000 is not between"),
        ([*SMALL, "--target-buckets", "0"], "target bucket 0 is not between"),
        ([*SMALL, "--target-buckets", "a"], "not a list of whole numbers"),
        ([*SMALL, "--workspace", "lots"], "not a number of bytes"),
        ([*SMALL, "--max-batch", "100000"], "maximum batch 100000"),
    ],
)
def test_bad_options_are_refused_in_one_sentence(target: Path, arguments: list[str], words: str) -> None:
    done = tx_build(target, *arguments)
    assert done.returncode == 2 and words in done.stderr and "Traceback" not in done.stderr


def test_a_changed_weights_file_is_not_built(target: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(target, tmp_path / "bundle"))
    weights = bytearray((copy / "onnx" / "weights.bin").read_bytes())
    weights[1000] ^= 1
    (copy / "onnx" / "weights.bin").write_bytes(weights)
    done = tx_build(copy, *SMALL)
    assert done.returncode == 2 and "weights.bin was changed" in done.stderr


def test_buckets_end_at_the_largest_sizes(bundle: Path) -> None:
    manifest = Manifest.load(bundle)
    most = manifest.limits
    chosen = choose_buckets(manifest, None, None, None)
    assert chosen.batches[0] == 1 and chosen.batches[-1] == most.batch
    assert chosen.targets[0] == 32 and chosen.targets[-1] == most.target
    assert choose_buckets(manifest, 5, None, [64, 16]).batches == (1, 5)
    assert choose_buckets(manifest, 5, None, [64, 16]).targets == (16, 64)
    with pytest.raises(InputError, match="batch bucket 6"):
        choose_buckets(manifest, 5, [6], None)


def test_a_small_gpu_gets_fewer_profiles_by_default() -> None:
    """Each takes minutes there. What is asked for is built."""
    manifest = Manifest.load(BUNDLE)
    sizes = Dimensions(Range(1, 8, 64), Range(1, 32, 256), Range(1, 32, 256))
    manifest = dataclasses.replace(manifest, dimensions=sizes)
    assert str(choose_buckets(manifest, None, None, None, 132)) == (
        "20 profiles (batches of 1, 8, 32, 64; caches of 32, 64, 128, 256)"
    )
    small = choose_buckets(manifest, None, None, None, 16)
    assert str(small) == "6 profiles (batches of 1, 8; caches of 64, 256)"
    assert choose_buckets(manifest, 32, None, None, 16).batches == (1, 8, 32)
    asked = choose_buckets(manifest, None, [16, 64], [128], 16)
    assert (asked.batches, asked.targets) == ((16, 64), (128,))
    short = dataclasses.replace(manifest, dimensions=Dimensions(Range(1, 4, 4), Range(1, 8, 20), Range(1, 8, 20)))
    assert str(choose_buckets(short, None, None, None, 16)) == "4 profiles (batches of 1, 4; caches of 20)"
    assert dataclasses.replace(small, beams=(2, 4)).profiles == 6 + 2 * 2 + 2 * 2


def test_the_time_of_a_long_build_is_estimated() -> None:
    assert directory._estimate(50, 4, 20) == (
        "built 4 of 20 profiles in 50 s: the others take about 3 minutes; fewer or smaller --batch-buckets and "
        "--target-buckets take less"
    )
    assert directory._estimate(10, 4, 20) is None


def _works(progress: Callable[[str, float], None]) -> int:
    progress("half", 0.5)
    return process_memory("VmHWM") or 0


def _fails(progress: Callable[[str, float], None]) -> int:
    raise BundleError("it does not parse")


def _is_killed(progress: Callable[[str, float], None]) -> int:
    os.kill(os.getpid(), signal.SIGKILL)
    return 0


def _has_no_parser(progress: Callable[[str, float], None]) -> int:
    raise TypeError("pybind11::init(): factory function returned nullptr")


def _reads_nowhere(progress: Callable[[str, float], None]) -> int:
    return len(ctypes.string_at(1))


def test_work_in_another_process_answers_fails_and_dies_in_words(capfd: pytest.CaptureFixture[str]) -> None:
    told: list[tuple[str, float]] = []
    assert run_apart(_works, None, lambda what, part: told.append((what, part))) > 1 << 20
    assert told == [("half", 0.5)]
    with pytest.raises(BundleError, match="it does not parse"):
        run_apart(_fails, None, print)
    with pytest.raises(CheckFailed, match="SIGKILL, most likely for want of memory"):
        run_apart(_is_killed, 60, print)
    with pytest.raises(EngineError, match="^the build failed: TypeError: pybind11::init\\(\\)"):
        run_apart(_has_no_parser, None, print)
    with pytest.raises(BuildCrashed, match="SIGSEGV, in the call that is first in the lines above"):
        run_apart(_reads_nowhere, 60, print)
    assert re.search(
        r"Segmentation fault.*, line \d+ in string_at\n.* in _reads_nowhere\n", capfd.readouterr().err, re.S
    )


def test_the_record_is_plain_json(target: Path, built: BuildRecord) -> None:
    (directory,) = engines_of(target)
    value = json.loads((directory / "build.json").read_text())
    assert list(value)[:3] == ["format_version", "made_by", "library"]


def test_engines_that_answer_wrongly_do_not_appear(
    target: Path, built: BuildRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on the GPU that they are for: here another engine stands for them, and the build runs in this process."""
    manifest, before = Manifest.load(target), engines_of(target)
    tensorrt = find_tensorrt("tensorrt_rtx")
    plan = directory.BuildPlan(
        bundle=target,
        library="tensorrt_rtx",
        lowerings=("scatter",),
        buckets=choose_buckets(manifest, 2, [1], [16]),
        options=BuildOptions(capabilities=("8.9",), optimization_level=0, inspect=False),
        gpu=directory.target_gpu(tensorrt, L4, ("8.9",), False),
        driver=None,
    )

    def build() -> Path:
        version, nothing = tensorrt.library.version, lambda file, part: None
        return directory.build_directory(
            plan, manifest, version, timing_cache=None, timeout=None, force=False, progress=nothing
        )

    monkeypatch.setattr(directory, "run_apart", lambda work, timeout, progress: work(progress))
    monkeypatch.setattr(check, "find_gpu", lambda: L4)
    monkeypatch.setattr(check, "open_engine", lambda *arguments: MemoryEngine(Limits(2, 512, 100)))
    with pytest.raises(CheckFailed, match=r"differ from the bundle's golden.json: case \d+ in a batch of 1"):
        build()
    assert engines_of(target) == before and not list(user_engines(Manifest.load(target)).glob(".sm*"))
    right = OrtEngine(target, manifest, ["scatter"])
    monkeypatch.setattr(check, "open_engine", lambda *arguments: right)
    made = build()
    assert BuildRecord.load(made).lowering == "scatter"
    shutil.rmtree(made)
