"""Makes the tables of C++ that sentences need, from those of Python: abbreviations, and characters in lower case.

Write `runtime/cpp/src/documents/abbreviations.inc` and `runtime/cpp/src/text/lower.inc` again with
`python tests/data/make_sentence_tables.py`.
"""

import sys
from itertools import groupby
from pathlib import Path
from textwrap import wrap

from txport.runtime.documents import abbreviations

SOURCES = Path(__file__).parents[2] / "runtime" / "cpp" / "src"
HEAD = "// Made by tests/data/make_sentence_tables.py: "
WIDTH = 120


def packed(items: list[str]) -> str:
    """Items in lines."""
    return "\n".join(wrap(" ".join(items), WIDTH, break_long_words=False, break_on_hyphens=False))


def lower() -> str:
    """Ranges of code points in lower case, first and last, in their order."""
    items, code = [], 0
    for is_lower, group in groupby(chr(each).islower() for each in range(sys.maxunicode + 1)):
        size = len(list(group))
        if is_lower:
            items.append(f"{{0x{code:X},\u00a00x{code + size - 1:X}}},")
        code += size
    return f"{HEAD}characters in lower case, by ranges.\n{packed(items)}\n".replace("\u00a0", " ")


def literal(words: frozenset[str]) -> str:
    """Words as literals of C++, one a line, which the compiler puts together."""
    lines = wrap(" ".join(sorted(words)), WIDTH - 8, break_long_words=False, break_on_hyphens=False)
    return "\n     ".join(f'"{line} "' for line in lines) or '""'


def tables() -> str:
    """The tables of each language, and of any ("")."""
    made = [f"{HEAD}abbreviations by language, and the codes of these languages.", "constexpr Table kTables[] = {"]
    for code in abbreviations.LANGUAGES:
        table = abbreviations.abbreviations_of(code)
        ordinals = "true" if table.ordinals else "false"
        texts = [literal(each) for each in (table.never, table.before_numbers, table.starters)]
        made.append(f'    {{"{code}", {ordinals},\n     ' + ",\n     ".join(texts) + "},")
    codes = [f'{{"{long}",\u00a0"{short}"}},' for long, short in abbreviations.CODES.items()]
    made += ["};", "constexpr Code kCodes[] = {", packed(codes).replace("\u00a0", " "), "};"]
    return "\n".join([*made, ""])


FILES = {SOURCES / "documents" / "abbreviations.inc": tables, SOURCES / "text" / "lower.inc": lower}

if __name__ == "__main__":
    for file, made in FILES.items():
        file.write_text(made())
