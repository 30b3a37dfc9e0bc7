"""The device layer on CUDA: copies, clearing, threads, capture and replay."""

from collections import Counter
from typing import Any

import numpy as np
import pytest
from device_engines import check_any_thread, check_copies
from txport.runtime.device.device import Buffer

pytestmark = pytest.mark.gpu


def test_copies_clearing_and_capture_do_what_they_say(device: Any) -> None:
    check_copies(device)


def test_any_thread_may_use_a_device(device: Any) -> None:
    check_any_thread(device)


@pytest.mark.parametrize(("pitch", "width"), [(16, 16), (40, 40), (200, 120), (256, 129), (4096, 2048)])
def test_copies_of_any_pitch(device: Any, pitch: int, width: int) -> None:
    """CUDA promises copies within a device only for pitches that it chose itself (cuMemcpy2DAsync)."""
    planes, lines = 5, 37
    size = planes * lines * pitch
    first, second = device.allocate(size), device.allocate(size)
    sent, found = np.random.default_rng(0).integers(0, 256, size, np.uint8), np.zeros(size, np.uint8)
    device.upload(first, sent)
    device.fill(Buffer(second), 7, size)
    plane = lines * pitch
    device.copy(Buffer(second, pitch, plane), Buffer(first, pitch, plane), width, lines - 1, planes)
    device.copy(Buffer(second + plane - pitch, pitch), Buffer(first, pitch), width, 2)
    device.download(found, second)
    device.synchronize()
    before = sent.reshape(planes, lines, pitch)
    expected = np.full_like(before, 7)
    expected[:, :-1, :width] = before[:, :-1, :width]
    expected[0, -1, :width], expected[1, 0, :width] = before[0, 0, :width], before[0, 1, :width]
    np.testing.assert_array_equal(found.reshape(expected.shape), expected)


def test_a_copy_is_captured_as_one_node_and_replayed(device: Any) -> None:
    first, second = device.allocate(1 << 12), device.allocate(1 << 12)
    found = np.zeros(1 << 12, np.uint8)
    device.graphs = captured = list[Counter[str]]()
    replay = device.capture(lambda: device.copy(Buffer(second), Buffer(first), 1 << 12))
    sent = np.random.default_rng(1).integers(0, 256, 1 << 12, np.uint8)
    device.upload(first, sent)
    replay()
    device.download(found, second)
    device.synchronize()
    np.testing.assert_array_equal(found, sent)
    assert captured == [{"memcpy": 1}]
