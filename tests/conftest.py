"""What all tests share: one small checkpoint and one bundle for the whole session, made by the code that ships.

`TXPORT_TEST_BUNDLE` names the bundle to test with; if it is not there it is exported there. Without the variable a new
one is exported for each session. The tests of the runtime run so where there is no PyTorch, with a bundle from before.
"""

import fcntl
import gc
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

BARE = {"exporter", "runtime", "training", "models", "benchmarks"}
TESTS = Path(__file__).parent
LONG = ("exporter", "benchmarks", "training", "models", "test_layout.py", "test_documents.py", "test_packaging.py")
GPUS = ("/dev/nvidia0", "/dev/nvhost-gpu")  # of a graphics card, of a Jetson


def pytest_configure() -> None:
    """One core for each of pytest-xdist's workers: libraries would else start a thread a core, in each of them."""
    worker = os.environ.get("PYTEST_XDIST_WORKER", "").removeprefix("gw")
    if worker:
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[int(worker) % len(cores)]})


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=_when)  # a stable sort: the order within a folder stays
    if any(os.path.exists(gpu) for gpu in GPUS):
        return
    skip = pytest.mark.skip(reason=f"needs an NVIDIA GPU: there is neither {GPUS[0]} nor {GPUS[1]}")
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(skip)


def _when(item: pytest.Item) -> int:
    """What is long first: workers that take whole files (--dist loadfile) then end at about the same time."""
    first = item.path.relative_to(TESTS).parts[0]
    return LONG.index(first) if first in LONG else len(LONG)


def pytest_collection_finish() -> None:
    """What is imported by now stays: collecting garbage would otherwise walk through all of PyTorch each time."""
    gc.collect()
    gc.freeze()


def pytest_sessionfinish() -> None:
    assert not BARE & set(sys.modules), "something imported a folder by its bare name"


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a checkpoint: `tiny`, trained for a moment on the built-in corpus. Copy it to change it."""
    pytest.importorskip("torch", reason="needs PyTorch: pip install 'txport[dev]'")
    from tiny_checkpoint import make_tiny_checkpoint

    directory = _shared(tmp_path_factory) / "checkpoint"
    with exclusive(directory.with_suffix(".lock")):
        if not directory.exists():
            make_tiny_checkpoint(directory)
    return directory


@pytest.fixture(scope="session")
def bundle(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a verified float32 bundle with every lowering, from `checkpoint`. Copy it to change it."""
    named = os.environ.get("TXPORT_TEST_BUNDLE")
    directory = Path(named) if named else _shared(tmp_path_factory) / "bundle"
    with exclusive(directory.with_suffix(".lock")):
        if not directory.exists():
            _export(request, directory)
    return directory


def _export(request: pytest.FixtureRequest, directory: Path) -> None:
    pytest.importorskip("torch", reason="needs PyTorch to export a bundle, or TXPORT_TEST_BUNDLE to name one")
    from txport.exporter.export import ExportOptions, export_bundle

    export_bundle(request.getfixturevalue("checkpoint"), directory, ExportOptions(sentences=200, singles=20))


def _shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of this session, the same for all workers."""
    base = tmp_path_factory.getbasetemp()
    return (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "shared"


@contextmanager
def exclusive(lock: Path) -> Iterator[None]:
    """One worker at a time."""
    lock.parent.mkdir(parents=True, exist_ok=True)
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
