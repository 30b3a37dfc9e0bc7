"""ONNX Runtime's CPU provider, bound to the addresses of a device in host memory."""

from dataclasses import replace
from pathlib import Path

import pytest
from txport.runtime.bundle.manifest import Manifest
from txport.runtime.bundle.schema import Lowering
from txport.runtime.device.device import Device
from txport.runtime.device.engine import DeviceEngine
from txport.runtime.engines.ort import OrtEngine
from txport.runtime.engines.ort_cuda import OrtProgram
from txport.runtime.errors import BundleError
from txport.runtime.golden import load_golden
from txport.runtime.search.decoding import decode_all
from txport.runtime.search.requests import Request


def over(device: Device, bundle: Path, lowering: Lowering | None = None, poll: int = 4) -> DeviceEngine:
    """Return an engine on a device that runs all work immediately."""
    manifest = Manifest.load(bundle)
    program = OrtProgram(bundle, manifest, manifest.usable_lowerings(lowering), device, provider="cpu")
    return DeviceEngine(device, manifest, program, poll)


def golden_requests(bundle: Path) -> list[Request]:
    """Return the golden cases of a bundle as requests, each three times."""
    return [Request(case.read) for case in load_golden(bundle).cases] * 3


def check_like_host(device: Device, bundle: Path, lowering: Lowering) -> DeviceEngine:
    """Check that an engine on a device gives the ids and scores of `OrtEngine`, and return it."""
    try:
        host = OrtEngine(bundle, Manifest.load(bundle), [lowering])
    except BundleError as error:
        pytest.skip(f"needs a newer ONNX Runtime: {error}")
    engine, requests = over(device, bundle, lowering), golden_requests(bundle)
    scored = [replace(request, scores=True) for request in requests]
    expected = decode_all(host, scored)
    assert [result.ids for result in decode_all(engine, requests)] == [result.ids for result in expected]
    found = decode_all(engine, scored, rows=3)
    for result, right in zip(found, expected, strict=True):
        assert result.ids == right.ids
        assert result.scores == pytest.approx(right.scores, abs=1e-3)
    return engine
