"""A decoder step as a CUDA graph, or launched operator by operator where the device refuses to capture it."""

import logging
from collections.abc import Callable

from txport.runtime.device.device import Device
from txport.runtime.errors import EngineError, ResourceError

_log = logging.getLogger("txport")


def captured(device: Device, enqueue: Callable[[], None], *, warn: bool = True) -> Callable[[], None]:
    """Capture a step and return what replays it; `enqueue` itself if it cannot be captured.

    What a library allocates in a capture spoils it, as ONNX Runtime's arena does at a few sizes in its third run. So
    the step runs once more by itself, which allocates, and is tried again.

    Args:
        device: where, with nothing left to do.
        enqueue: enqueues one step; it has run before.
        warn: whether to say that a step cannot be captured.

    Raises:
        EngineError: the step fails without a capture, too.
        ResourceError: the same, for want of memory.
    """
    fault = ""  # not the error, whose traceback holds what the library made
    for _ in range(2):
        try:
            return device.capture(enqueue)
        except (EngineError, ResourceError) as error:
            fault = str(error)
        enqueue()
        device.synchronize()
    if warn:
        _log.warning("steps are launched one by one, without CUDA graphs: %s", fault)
    return enqueue
