"""Returns the pages of a mapped file that are no longer needed."""

import ctypes
import re
from pathlib import Path

from txport.runtime.system import c_function

_MADV_DONTNEED = 4
_MAPPING = re.compile(r"^([0-9a-f]+)-([0-9a-f]+) \S+ \S+ \S+ \S+ +(/.*)\n((?:[A-Z]\w*:.*\n)+)", re.MULTILINE)


def release(file: Path) -> None:
    """Drop the pages of this process's mappings of a file that nobody wrote to; pages that are read again come back.

    ONNX Runtime maps weights and then packs most of them into copies of its own. The original of a table that is also
    looked up (a tied embedding) stays mapped with every page that packing has read; a lookup touches some rows. The
    system could reclaim these pages, but they count as resident until it does: 63 MB of RSS and of PSS for the base
    preset (16 MB with int8 weights), none of it anonymous. Where there is no /proc/self/smaps (not Linux), nothing
    happens.
    """
    madvise = c_function("madvise")
    try:
        mappings = Path("/proc/self/smaps").read_text(errors="replace") if madvise else ""
    except OSError:
        return
    name = str(file.resolve())
    for start, end, mapped, facts in _MAPPING.findall(mappings):
        # ONNX Runtime maps privately and writably. A page that was written is anonymous, and would be lost.
        if mapped == name and re.search(r"^Anonymous: +0 kB$", facts, re.MULTILINE):
            first, after = int(start, 16), int(end, 16)
            madvise(ctypes.c_void_p(first), ctypes.c_size_t(after - first), _MADV_DONTNEED)
