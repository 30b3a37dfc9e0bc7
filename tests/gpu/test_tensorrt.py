"""TensorRT: engines of each bundle are built, read by the inspector, and run; those that do not fit are refused."""

import dataclasses
import gc
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from gpu_builds import engines_of, keep_inspector, tx_build
from gpu_engines import Rows, check_beams, check_golden, check_nodes, check_threads, wrong_cases
from txport.runtime.bundle.manifest import Manifest
from txport.runtime.device.engine import DeviceEngine
from txport.runtime.engines.build_record import BuildRecord
from txport.runtime.engines.choice import choose, open_engine
from txport.runtime.engines.directories import user_engines
from txport.runtime.engines.tensorrt import find_tensorrt
from txport.runtime.errors import BundleError, TxportError

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="session")
def build(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Path], Path]:
    """Builds engines once into a bundle that was carried here, else into a copy; one that failed is not tried again."""
    try:
        tensorrt = find_tensorrt()
    except TxportError as error:
        pytest.skip(f"needs TensorRT: {error}")
    if tensorrt.is_rtx:
        pytest.skip("needs TensorRT, not only TensorRT-RTX")
    places: dict[Path, Path] = {}

    def built(bundle: Path) -> Path:
        if bundle not in places:
            carried = "TXPORT_GPU_BUNDLES" in os.environ
            places[bundle] = bundle if carried else tmp_path_factory.mktemp("gpu") / bundle.name
            if not carried:
                shutil.copytree(bundle, places[bundle])
            if not engines_of(places[bundle]):
                tx_build(places[bundle])
        if not engines_of(places[bundle]):
            pytest.fail(f"the engines of {bundle.name} could not be built, as an earlier test says")
        return places[bundle]

    return built


@pytest.fixture(scope="session")
def built(build: Callable[[Path], Path], plain: Path) -> Path:
    """Each bundle with TensorRT engines for this GPU."""
    return build(plain)


@pytest.fixture(scope="session")
def small_built(build: Callable[[Path], Path], small: Path) -> Path:
    """The smallest one."""
    return build(small)


def opened(bundle: Path) -> DeviceEngine:
    """Neither a tokenizer nor a fallback is needed."""
    manifest = Manifest.load(bundle)
    choice = dataclasses.replace(choose(manifest, engine="trt", bundle=bundle), fallback=None)
    engine = open_engine(bundle, manifest, choice)
    assert isinstance(engine, DeviceEngine), "the state is on the device"
    return engine


def test_golden_cases_in_any_batch_and_after_any_refill(built: Path) -> None:
    engine = opened(built)
    check_golden(engine, built)
    assert engine.captured, "steps are CUDA graphs"


def test_precisions_are_said_and_the_engines_are_chosen(built: Path, record_property: Rows) -> None:
    (directory,) = engines_of(built)
    record, manifest = BuildRecord.load(directory), Manifest.load(built)
    layers = record.precision.layers
    record_property("builds", {"bundle": built.name, "seconds": record.build_seconds, **layers})
    assert record.precision.proof == ("inspector" if record.library.version.startswith("8.") else "network")
    assert layers[manifest.precision.type] > 0
    assert not manifest.precision.islands or layers["float32"] > 0
    choice = choose(manifest, bundle=built)
    assert choice.engine == "trt" and directory.name in choice.reason


def test_what_the_inspector_says_is_kept(built: Path, tmp_path: Path) -> None:
    kept = Path(os.environ.get("TXPORT_GPU_KEEP", tmp_path))
    (directory,) = engines_of(built)
    assert len(keep_inspector(find_tensorrt(), built, kept)) == len(BuildRecord.load(directory).engines) > 0
    shutil.copy(directory / "build.json", kept / f"{built.name}.build.json")


def test_no_captured_node_depends_on_the_host(built: Path, record_property: Rows) -> None:
    check_nodes(opened(built), record_property, bundle=built.name, lowering="TensorRT")


def test_beams_are_captured_and_find_what_rows_find(
    build: Callable[[Path], Path],
    with_beams: Path,
    tmp_path: Path,
    record_property: Rows,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """`build` has looked for TensorRT; tx-build itself answers the golden cases by the step of beam search."""
    if not find_tensorrt().has_cache_layers:
        pytest.skip("needs TensorRT 10.15 for the step of beam search")
    monkeypatch.setenv("TXPORT_CACHE", str(tmp_path))
    tx_build(with_beams, "--beams", "4")
    check_beams(opened(with_beams), with_beams, record_property)


def test_threads_get_the_same(small_built: Path) -> None:
    check_threads(lambda: opened(small_built), small_built)


def test_engines_that_go_leave_no_memory_behind(small_built: Path, device: Any) -> None:
    def free_after_one() -> int:
        assert wrong_cases(opened(small_built), small_built) == []
        gc.collect()
        return int(device.free_memory())

    first = [free_after_one() for _ in range(3)][-1]
    assert [free_after_one() for _ in range(17)][-1] > first - (64 << 20)


def test_engines_that_do_not_fit_are_refused(
    small_built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (built,) = engines_of(small_built)
    monkeypatch.setenv("TXPORT_CACHE", str(tmp_path))
    shutil.copytree(built.parent, user_engines(Manifest.load(small_built)))
    (directory,) = engines_of(small_built)
    record = BuildRecord.load(directory)
    gpu = dataclasses.replace(record.gpu, name="NVIDIA Nonesuch")
    dataclasses.replace(record, gpu=gpu).write(directory)
    with pytest.raises(BundleError, match="is for NVIDIA Nonesuch .*run tx-build"):
        opened(small_built)
    record.write(directory)
    plan = directory / record.engines[0].file
    data = bytearray(plan.read_bytes())
    data[len(data) // 2] ^= 1
    plan.write_bytes(data)
    with pytest.raises(BundleError, match="was changed .*run tx-build"):
        opened(small_built)


def test_a_second_build_takes_its_timing_cache(small_built: Path, record_property: Rows) -> None:
    first = BuildRecord.load(engines_of(small_built)[0])
    second = tx_build(small_built, "--force")
    record_property("builds", {"bundle": f"{small_built.name}, again", "seconds": second["build_seconds"]})
    assert first.build_seconds and second["build_seconds"]
