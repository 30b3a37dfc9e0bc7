"""Bundles for the tests that need a GPU.

`TXPORT_GPU_BUNDLES` names bundles, separated as in PATH, as tests/gpu/run.py does: the first is the one whose figures
count, and the smallest comes second. TensorRT engines are built in them. Without the variable the bundles of
tests/conftest.py are used, and engines are built in copies.
"""

import os
from pathlib import Path

import pytest
from txport.runtime.bundle.manifest import Manifest

# What fails on a machine that is gone must have been said.
pytest.register_assert_rewrite("device_engines", "gpu_builds", "gpu_engines")
CARRIED = [Path(path) for path in os.environ.get("TXPORT_GPU_BUNDLES", "").split(os.pathsep) if path]
FIXTURES = {"float16": "float16_bundle", "float32": "bundle", "islands": "island_bundle"}


@pytest.fixture(scope="session", params=CARRIED or FIXTURES, ids=lambda each: getattr(each, "name", each))
def plain(request: pytest.FixtureRequest) -> Path:
    """Each bundle."""
    return request.param if CARRIED else Path(request.getfixturevalue(FIXTURES[request.param]))


@pytest.fixture(scope="session")
def small(request: pytest.FixtureRequest) -> Path:
    """The smallest bundle."""
    return CARRIED[min(1, len(CARRIED) - 1)] if CARRIED else Path(request.getfixturevalue("float16_bundle"))


@pytest.fixture(scope="session")
def with_beams(request: pytest.FixtureRequest) -> Path:
    """The first bundle that has the step of beam search."""
    bundles = CARRIED or [Path(request.getfixturevalue("attention_bundle"))]
    found = [each for each in bundles if Manifest.load(each).optional_graph("decoder_beams") is not None]
    if not found:
        pytest.skip("needs a bundle with the step of beam search: tx-export --with-beams")
    return found[0]


@pytest.fixture
def device() -> object:
    """A GPU and a stream of its own."""
    cuda = pytest.importorskip("txport.runtime.device.cuda", reason="needs cuda-python: pip install 'txport[trt]'")
    return cuda.CudaDevice()


@pytest.fixture(scope="session")
def measured(request: pytest.FixtureRequest) -> Path:
    """The bundle whose figures count."""
    return CARRIED[0] if CARRIED else Path(request.getfixturevalue("float16_bundle"))
