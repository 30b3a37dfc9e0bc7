"""Fixtures of all tests: one small checkpoint and its bundles for the whole session, made by the shipped code.

`TXPORT_TEST_BUNDLE` names the bundle to test with; if it is not there it is exported there. Without the variable a new
one is exported for each session. The tests of the runtime run so where there is no PyTorch, with a bundle from before.
Those in float16, without and with float32 islands, and in int8 are beside it: with `-float16`, `-islands` and `-int8`
after its name, and one that has the optional graphs with `-attention`.

`TXPORT_NEEDS_GPU=1` is for machines that must have a GPU: a test that needs one then fails without, instead of being
skipped. `TXPORT_EMULATED=1` says that an emulator runs them, as in `make arm64`: those marked `native` are skipped.
`TXPORT_CUDA_STUBS` names the stand-ins of `make test-cuda-provider`, without which those marked `cuda_provider` are
skipped.
"""

import fcntl
import functools
import gc
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import bundles
import pytest
from processor_times import ProcessorTimes

gc.disable()  # during imports, where it takes a fifth of the time; until pytest_collection_finish
BARE = {"exporter", "runtime", "training", "models", "benchmarks"}
TESTS = Path(__file__).parent
# Folders of tests that run without PyTorch.
RUNTIME = ("runtime", "gpu")
LONG = "exporter benchmarks training cpp models test_layout.py test_documents.py test_packaging.py".split()


def pytest_configure(config: pytest.Config) -> None:
    """Limit each worker of pytest-xdist to one core. Otherwise libraries would start a thread per core in each."""
    config.pluginmanager.register(ProcessorTimes())
    worker = os.environ.get("PYTEST_XDIST_WORKER", "").removeprefix("gw")
    if worker:
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[int(worker) % len(cores)]})


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--write-skipped", type=Path, metavar="FILE", help="write the names of skipped tests")
    text = f"of the tests in {' and '.join(RUNTIME)}, run these alone: those that another environment skipped"
    parser.addoption("--only-skipped", type=Path, metavar="FILE", help=text)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    items.sort(key=_when)  # a stable sort, which keeps the order within a folder
    if file := config.getoption("--only-skipped"):
        skipped = set(file.read_text(encoding="utf-8").splitlines())
        left = [item for item in items if _folder(item) in RUNTIME and not _names(item) & skipped]
        config.hook.pytest_deselected(items=left)
        items[:] = [item for item in items if item not in set(left)]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if file := config.getoption("--write-skipped"):
        names = sorted({report.nodeid for report in terminalreporter.stats.get("skipped", [])})
        file.write_text("".join(f"{name}\n" for name in names), encoding="utf-8")


def _names(item: pytest.Item) -> set[str]:
    """Return the names of a test and of its module, which may be skipped as a whole."""
    return {item.nodeid, item.nodeid.split("::")[0]}


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("gpu") and (reason := _no_gpu()):
        refuse = pytest.fail if os.environ.get("TXPORT_NEEDS_GPU") == "1" else pytest.skip
        refuse(f"needs an NVIDIA GPU: {reason}")
    if item.get_closest_marker("cuda_provider") and "TXPORT_CUDA_STUBS" not in os.environ:
        pytest.skip("needs onnxruntime-gpu over stand-ins for CUDA's libraries: make test-cuda-provider")
    native = item.get_closest_marker("native")
    if native and os.environ.get("TXPORT_EMULATED") == "1":
        pytest.skip(f"not under an emulator: {native.args[0]}")


@functools.cache
def _no_gpu() -> str | None:
    """Return the reason why no GPU can be used, or None. The driver is asked, since device files have many names."""
    from txport.runtime.device.gpu import find_gpu

    return gpu if isinstance(gpu := find_gpu(), str) else None


def _when(item: pytest.Item) -> int:
    """Return the sort key of a test: long folders first, so that all workers (--dist loadfile) end at the same time."""
    first = _folder(item)
    return LONG.index(first) if first in LONG else len(LONG)


def _folder(item: pytest.Item) -> str:
    return item.path.relative_to(TESTS).parts[0]


def pytest_collection_finish() -> None:
    """Exclude all imported objects from garbage collection, which would otherwise visit all of PyTorch each time.

    It runs less often than by default, which saves a twentieth of the time of graphs and trainings.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)
    gc.enable()


def pytest_sessionfinish() -> None:
    assert not BARE & set(sys.modules), "something imported a folder by its bare name"


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Set a cache for the engines that tests build. tests/gpu/run.py keeps one cache for several sessions."""
    with pytest.MonkeyPatch.context() as patch:
        if "TXPORT_GPU_BUNDLES" not in os.environ:
            patch.setenv("TXPORT_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the checkpoint `tiny`, trained shortly on the built-in corpus. Copy it before you change it."""
    return _checkpoint(tmp_path_factory, "tiny")


@pytest.fixture(scope="session")
def rotary_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a checkpoint like `checkpoint` with rotary positions, with different pairs in encoder and decoder."""
    return _checkpoint(tmp_path_factory, "rotary")


@pytest.fixture(scope="session")
def bundle(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a verified float32 bundle of `checkpoint` with all lowerings. Copy it before you change it."""
    return _bundle(request, tmp_path_factory, "")


@pytest.fixture(scope="session")
def float16_bundle(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a float16 bundle of `checkpoint`."""
    return _bundle(request, tmp_path_factory, "-float16")


@pytest.fixture(scope="session")
def island_bundle(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a float16 bundle with (unnecessary) float32 islands in the first layer of each graph."""
    return _bundle(request, tmp_path_factory, "-islands")


@pytest.fixture(scope="session")
def attention_bundle(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a verified float32 bundle with the optional graphs and the lowerings `ort` and `scatter`."""
    return _bundle(request, tmp_path_factory, "-attention")


@pytest.fixture(scope="session")
def int8_bundle(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a verified int8 bundle of `checkpoint` with only the lowering `ort`."""
    return _bundle(request, tmp_path_factory, "-int8")


def _checkpoint(factory: pytest.TempPathFactory, name: str) -> Path:
    directory = _shared(factory) / name
    with exclusive(directory.with_suffix(".lock")):
        if not directory.exists():
            bundles.recorded_checkpoint(name, directory)
    return directory


def _bundle(request: pytest.FixtureRequest, factory: pytest.TempPathFactory, kind: str) -> Path:
    named = Path(os.environ.get("TXPORT_TEST_BUNDLE") or _shared(factory) / "bundle")
    directory = named.with_name(named.name + kind)
    with exclusive(directory.with_suffix(".lock")):
        if not directory.exists():
            pytest.importorskip("torch", reason="needs PyTorch to export a bundle, or TXPORT_TEST_BUNDLE to name one")
            bundles.export(request.getfixturevalue("checkpoint"), directory, kind)
    return directory


def _shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of this session, which all workers share."""
    base = tmp_path_factory.getbasetemp()
    return (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "shared"


@contextmanager
def exclusive(lock: Path) -> Iterator[None]:
    """Hold a lock, so that only one worker runs the block at a time."""
    lock.parent.mkdir(parents=True, exist_ok=True)
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
