"""What all tests share: one small checkpoint and one bundle for the whole session, made by the code that ships.

`TXPORT_TEST_BUNDLE` names the bundle to test with; if it is not there it is exported there. Without the variable a new
one is exported for each session. The tests of the runtime run so where there is no PyTorch, with a bundle from before.
"""

import os
import sys
from pathlib import Path

import pytest

BARE = {"exporter", "runtime", "training", "models", "benchmarks"}
GPUS = ("/dev/nvidia0", "/dev/nvhost-gpu")  # of a graphics card, of a Jetson


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if any(os.path.exists(gpu) for gpu in GPUS):
        return
    skip = pytest.mark.skip(reason=f"needs an NVIDIA GPU: there is neither {GPUS[0]} nor {GPUS[1]}")
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(skip)


def pytest_sessionfinish() -> None:
    assert not BARE & set(sys.modules), "something imported a folder by its bare name"


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a checkpoint: `tiny`, trained for a moment on the built-in corpus. Copy it to change it."""
    pytest.importorskip("torch", reason="needs PyTorch: pip install 'txport[dev]'")
    from tiny_checkpoint import make_tiny_checkpoint

    directory = tmp_path_factory.mktemp("shared") / "checkpoint"
    make_tiny_checkpoint(directory)
    return directory


@pytest.fixture(scope="session")
def bundle(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a verified float32 bundle with every lowering, from `checkpoint`. Copy it to change it."""
    named = os.environ.get("TXPORT_TEST_BUNDLE")
    directory = Path(named) if named else tmp_path_factory.mktemp("shared") / "bundle"
    if not directory.exists():
        pytest.importorskip("torch", reason="needs PyTorch to export a bundle, or TXPORT_TEST_BUNDLE to name one")
        from txport.exporter.export import ExportOptions, export_bundle

        export_bundle(request.getfixturevalue("checkpoint"), directory, ExportOptions(sentences=200, singles=20))
    return directory
