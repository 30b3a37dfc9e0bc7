"""What every device must do, be it a GPU or a driver in host memory."""

import gc
import threading
import weakref

import numpy as np
import pytest
from txport.runtime.device.device import Buffer, Device
from txport.runtime.errors import ResourceError


def check_copies(device: Device) -> None:
    """Copies, clearing and capture do what they say, and memory is what is left."""
    first, second = device.allocate(1 << 16), device.allocate(1 << 16)
    assert first % 256 == second % 256 == 0
    given = np.random.default_rng(0).integers(0, 255, (4, 8, 64), np.uint8)
    device.upload(first, given)
    device.fill(Buffer(second, 1 << 12), 0, 1 << 12, 16)
    # Rows 1 to 3 of each of four planes, 48 of 64 bytes, into planes of 16 rows of 128 bytes.
    device.copy(Buffer(second + 128, 128, 16 * 128), Buffer(first + 64, 64, 8 * 64), 48, 3, 4)
    found = device.host_buffer(4 * 16 * 128)
    device.download(found, second)
    device.synchronize()
    expected = np.zeros((4, 16, 128), np.uint8)
    expected[:, 1:4, :48] = given[:, 1:4, :48]
    np.testing.assert_array_equal(found.reshape(expected.shape), expected)

    def copy() -> None:
        device.copy(Buffer(second, 100), Buffer(first, 64), 64, 2)

    replay, held = device.capture(copy), weakref.ref(copy)
    del copy
    gc.collect()
    assert held() is not None, "a library's temporary memory goes with what was captured"
    device.synchronize()
    for _ in range(3):
        replay()
    device.download(found[:200], second)
    device.synchronize()
    np.testing.assert_array_equal(found[:64], given[0, 0])
    np.testing.assert_array_equal(found[100:164], given[0, 1])
    with pytest.raises(ResourceError):
        device.allocate(1 << 46)
    before = device.free_memory()
    more = device.allocate(64 << 20)
    assert before - device.free_memory() >= 64 << 20
    for address in (first, second, more):
        device.free(address)


def check_any_thread(device: Device) -> None:
    """A thread that did not make the device may use it."""
    address = device.allocate(256)
    found = np.zeros(256, np.uint8)
    faults: list[Exception] = []

    def work() -> None:
        try:
            device.upload(address, np.arange(256, dtype=np.uint8))
            device.download(found, address)
            device.synchronize()
        except Exception as error:
            faults.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert faults == [] and (found == np.arange(256)).all()
    device.free(address)
