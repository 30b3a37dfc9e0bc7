"""Memory that is kept for the next batch: idle after the last view is gone, reused, and never more than was in use."""

import mmap

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from txport.runtime.engines.host_memory import LARGE, HostMemory

MEGABYTE = 1 << 20
pytestmark = pytest.mark.skipif(not hasattr(mmap, "MADV_HUGEPAGE"), reason="only Linux gives memory this way")


def test_a_view_keeps_a_piece() -> None:
    memory = HostMemory()
    piece, zero = memory.allocate(LARGE)
    assert zero and not piece.any()
    view = piece[8:16].view(np.float64)
    address = piece.ctypes.data
    view[:] = 7.0
    del piece
    other, zero = memory.allocate(LARGE)
    assert zero and other.ctypes.data != address and view[0] == 7.0
    del view
    again, zero = memory.allocate(LARGE)
    assert not zero and again.ctypes.data == address and again[8:16].view(np.float64)[0] == 7.0


def test_little_is_not_kept() -> None:
    memory = HostMemory()
    for _ in range(3):
        piece, zero = memory.allocate(LARGE - 1)
        assert zero and piece.shape == (LARGE - 1,) and not piece.any()
        piece.fill(1)
        del piece


def test_more_than_there_is() -> None:
    with pytest.raises(MemoryError):
        HostMemory().allocate(1 << 62)


def test_a_piece_of_twice_the_size_is_left_for_others() -> None:
    memory = HostMemory()
    big, _ = memory.allocate(20 * MEGABYTE)
    del big
    _, zero = memory.allocate(8 * MEGABYTE)
    assert zero
    _, zero = memory.allocate(12 * MEGABYTE)
    assert zero  # the small one needed what was kept of the big one: together they were more than ever was in use


@given(st.lists(st.tuples(st.integers(2, 12), st.integers(0, 5)), max_size=30))
def test_never_more_than_was_in_use_at_once(steps: list[tuple[int, int]]) -> None:
    memory, held, most = HostMemory(), {}, 0
    for pages, slot in steps:
        held.pop(slot, None)
        held[slot] = memory.allocate(2 * pages * MEGABYTE)[0]
        in_use = sum(each.base.nbytes for each in held.values())
        most = max(most, in_use)
        kept = sum(map(len, memory._idle))
        assert kept + in_use <= most
    held.clear()
    assert sum(map(len, memory._idle)) <= most


def test_pieces_do_not_overlap() -> None:
    memory = HostMemory()
    pieces = [memory.allocate(LARGE + index)[0] for index in range(5)]
    for index, piece in enumerate(pieces):
        piece.fill(index)
    assert [int(piece.min()) for piece in pieces] == [int(piece.max()) for piece in pieces] == list(range(5))
