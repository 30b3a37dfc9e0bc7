"""A file system that is soon full."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def small_disk(directory: Path, kibibytes: int = 256) -> Iterator[Path]:
    """Mount a file system of so many KiB at a new directory; skips the test where that is not allowed."""
    directory.mkdir()
    options = f"size={kibibytes}k"
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", directory], capture_output=True)
    if mounted.returncode:
        pytest.skip("needs the right to mount a small file system (root)")
    try:
        yield directory
    finally:
        subprocess.run(["umount", directory], check=True)
