"""Optional dependencies: one sentence with the install command for a missing one, less log noise, and settings."""

import gc
import logging
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

from txport.runtime.errors import MissingLibrary
from txport.runtime.system import c_function


@contextmanager
def needs(extra: str, reason: str = "", otherwise: str = "") -> Iterator[None]:
    """Wrap imports that need the libraries of `pip install 'txport[extra]'`, or of plain txport for extra "".

    The error message begins with the reason `reason` and ends with the alternative `otherwise`.

    Raises:
        MissingLibrary: a library is not installed or cannot be loaded.
    """
    try:
        yield
    except ImportError as error:
        library = (error.name or "").partition(".")[0]
        if library in ("", "txport"):  # a bug of txport, not a missing library
            raise
        missing = isinstance(error, ModuleNotFoundError)
        if missing:
            fault = "is not installed"
        else:
            fault = f"is installed but cannot be loaded ({error})"
        if extra:
            command = f"pip install 'txport[{extra}]'"
        else:
            command = "pip install txport"
        raise MissingLibrary(f"{f'{reason}, and ' if reason else ''}{library} {fault}: {command}{otherwise}") from error


@contextmanager
def without_collection() -> Iterator[None]:
    """Disable the garbage collector during work that creates many permanent objects, such as the import of PyTorch.

    The collector would visit all of these objects many times, which takes 10% to 17% of the time.
    """
    before = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if before:
            gc.enable()


@contextmanager
def silence(*loggers: str, module: str = "") -> Iterator[None]:
    """Drop messages of these loggers below errors, and warnings of `module` (a regular expression; "" for all)."""
    levels = {name: logging.getLogger(name).level for name in loggers}
    for name in loggers:
        logging.getLogger(name).setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", module=module)
            yield
    finally:
        for name, level in levels.items():
            logging.getLogger(name).setLevel(level)


def cuda_provider() -> Path | None:
    """Return the file of ONNX Runtime's CUDA provider from any of its pip packages, without loading it, or None."""
    spec = find_spec("onnxruntime")
    if spec is None or spec.origin is None:
        return None
    file = Path(spec.origin).with_name("capi") / "libonnxruntime_providers_cuda.so"
    if file.is_file():
        return file
    return None


def share_cores() -> None:
    """Shorten the active waiting of PyTorch's threads, which takes processor time from other processes.

    A training step then takes 77 ms instead of 70 ms, but beside another training 180 ms instead of 360 ms (two cores,
    GNU OpenMP). Threads without active waiting take 95 ms and 130 ms. Call this before the import of PyTorch, which
    reads the variable only once. Settings of the environment have priority.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "1000")


def keep_memory() -> None:
    """Let glibc's allocator keep freed memory for later allocations instead of returning it to the system.

    This removed 5,000 page faults from a training step of the demo, a twelfth of its time. Other C libraries are not
    changed.
    """
    # M_TRIM_THRESHOLD and M_MMAP_THRESHOLD of malloc.h
    trim_threshold = -1
    mmap_threshold = -3
    if mallopt := c_function("mallopt"):
        mallopt(trim_threshold, 1 << 30)
        mallopt(mmap_threshold, 1 << 25)  # the maximum of glibc
