"""Makes the table of characters in lower case of C++, from Python's.

Write `runtime/cpp/src/text/lower.inc` again with `python tests/data/make_lower_case.py`.
"""

import sys
from itertools import groupby
from pathlib import Path
from textwrap import wrap

FILE = Path(__file__).parents[2] / "runtime" / "cpp" / "src" / "text" / "lower.inc"


def lower() -> str:
    """Ranges of code points in lower case, first and last, in their order."""
    items, code = [], 0
    for is_lower, group in groupby(chr(each).islower() for each in range(sys.maxunicode + 1)):
        size = len(list(group))
        if is_lower:
            items.append(f"{{0x{code:X},\u00a00x{code + size - 1:X}}},")
        code += size
    lines = wrap(" ".join(items), 120, break_long_words=False, break_on_hyphens=False)
    head = "// Made by tests/data/make_lower_case.py: characters in lower case, by ranges."
    return "\n".join([head, *lines, ""]).replace("\u00a0", " ")


if __name__ == "__main__":
    FILE.write_text(lower())
