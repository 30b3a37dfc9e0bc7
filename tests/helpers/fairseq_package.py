"""fairseq 0.12.2, of 2022, under a Python and a PyTorch of today."""

import dataclasses
import functools
from types import ModuleType
from typing import Any

import pytest


@functools.cache
def import_fairseq() -> ModuleType:
    """The package; skips the test where it is not installed.

    Its configurations have other configurations as default values, which Python 3.11 and later take for mutable ones
    and refuse, unless they can be hashed. Nobody ever hashes them: while fairseq is imported, they can be.
    """
    plain = dataclasses.dataclass

    def hashable(cls: type | None = None, /, **options: Any) -> Any:
        if cls is None:
            return functools.partial(hashable, **options)
        if cls.__module__.partition(".")[0] == "fairseq":
            options.setdefault("unsafe_hash", True)
        return plain(cls, **options)

    dataclasses.dataclass = hashable
    try:
        return pytest.importorskip("fairseq", reason="needs fairseq: see how the Makefile installs it")
    finally:
        dataclasses.dataclass = plain
