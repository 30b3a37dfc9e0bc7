"""Pages of file mappings are given back, and only those that nobody wrote to."""

import mmap
import re
from pathlib import Path

import pytest
from txport.runtime.engines.mapped import release
from txport.runtime.system import POSIX

SMAPS = Path("/proc/self/smaps")
SIZE = 1 << 22

pytestmark = pytest.mark.skipif(not POSIX or not SMAPS.exists(), reason="needs Linux: /proc/self/smaps")


def resident(file: Path) -> int:
    """Bytes of a file's mappings that are in memory."""
    found = re.findall(rf" {re.escape(str(file))}\n(?:[A-Z]\w*:.*\n)*?Rss: +(\d+) kB", SMAPS.read_text())
    return 1024 * sum(map(int, found))


def test_pages_that_were_only_read_are_given_back(tmp_path: Path) -> None:
    path, other = tmp_path / "weights.bin", tmp_path / "weights.bin.txt"
    for file in (path, other):
        file.write_bytes(b"x" * SIZE)
    with path.open("rb") as one, other.open("rb") as two:
        ours = mmap.mmap(one.fileno(), 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE)
        theirs = mmap.mmap(two.fileno(), 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ)
        assert ours[:] == theirs[:]
        assert resident(path) == resident(other) == SIZE
        release(path)
        assert resident(path) == 0 and resident(other) == SIZE
        assert ours[:] == theirs[:]


def test_what_was_written_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "weights.bin"
    path.write_bytes(b"x" * SIZE)
    with path.open("rb") as file:
        ours = mmap.mmap(file.fileno(), 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE)
        ours[5] = 7
        release(path)
        assert ours[5] == 7


def test_a_file_that_is_not_mapped(tmp_path: Path) -> None:
    """Nothing happens, to mappings of other files either."""
    path = tmp_path / "weights.bin"
    path.write_bytes(b"x" * SIZE)
    with path.open("rb") as file:
        ours = mmap.mmap(file.fileno(), 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ)
        assert ours[:] == b"x" * SIZE
        release(tmp_path / "nowhere")
        assert resident(path) == SIZE
