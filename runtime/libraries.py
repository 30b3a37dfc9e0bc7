"""Optional dependencies: a missing one is reported in one sentence with the install command; log noise is dropped."""

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
def needs(extra: str, why: str = "", otherwise: str = "") -> Iterator[None]:
    """Wrap imports of modules that need the libraries of `pip install 'txport[extra]'`, or without an extra of txport.

    `why` they are needed begins the sentence, and `otherwise` ends it.

    Raises:
        MissingLibrary: one of them is not installed or cannot be loaded.
    """
    try:
        yield
    except ImportError as error:
        library = (error.name or "").partition(".")[0]
        if library in ("", "txport"):  # our own mistake, not the user's
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
        raise MissingLibrary(f"{f'{why}, and ' if why else ''}{library} {fault}: {command}{otherwise}") from error


@contextmanager
def without_collection() -> Iterator[None]:
    """Let garbage in cycles lie meanwhile: for work that makes many objects which stay, as imports of PyTorch do.

    The collector would walk through all of them again and again, for a tenth to a sixth of the time.
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
    """The file of ONNX Runtime's CUDA provider, whatever the package is called that has it; nothing is loaded."""
    found = find_spec("onnxruntime")
    if found is None or found.origin is None:
        return None
    file = Path(found.origin).with_name("capi") / "libonnxruntime_providers_cuda.so"
    if file.is_file():
        return file
    return None


def share_cores() -> None:
    """Let PyTorch's threads wait actively for a moment only: longer takes cores that other processes need.

    A training step of 70 ms takes 77 ms then, and 180 ms beside another one, instead of 360 ms (two cores, GNU OpenMP);
    threads that sleep at once take 95 ms and 130 ms. Call it before PyTorch is imported, which reads the variable only
    once. Settings of the environment are kept.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "1000")


def keep_memory() -> None:
    """Let glibc's allocator keep what is freed, instead of giving it back: for work that soon asks for as much again.

    A training step of the demo had 5,000 page faults, and none since: a twelfth of its time. Elsewhere nothing happens.
    """
    # M_TRIM_THRESHOLD and M_MMAP_THRESHOLD of malloc.h
    trim_threshold = -1
    mmap_threshold = -3
    if mallopt := c_function("mallopt"):
        mallopt(trim_threshold, 1 << 30)
        mallopt(mmap_threshold, 1 << 25)  # the most that glibc takes
