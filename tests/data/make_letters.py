"""Makes `runtime/cpp/src/text/letters.inc`: which characters are letters and numbers, as byte-level BPE parts texts.

The library `tokenizers` itself says it, since its Unicode is what the texts of a model were parted by. `word.inc`, too:
the characters of words, by Python's Unicode. Write the files again with `python tests/data/make_letters.py`.
"""

import sys
from itertools import groupby
from pathlib import Path

FILE = Path(__file__).parents[2] / "runtime" / "cpp" / "src" / "text" / "letters.inc"
WIDTH = 120


def kinds() -> list[str]:
    """For each code point "L" of a letter, "N" of a number, and nothing for all others."""
    from tokenizers.pre_tokenizers import ByteLevel

    parted = ByteLevel(add_prefix_space=False)

    def kind(code: int) -> str:
        if 0xD800 <= code < 0xE000:  # surrogates are no characters
            return ""
        words = [span for _, span in parted.pre_tokenize_str(f"a{chr(code)}1{chr(code)}")]
        return "L" if words[0] == (0, 2) else "N" if words[-1] == (1, 4) else ""

    return [kind(code) for code in range(sys.maxunicode + 1)]


def table(found: list[str]) -> str:
    """The file: ranges of code points, first and last, in their order."""
    lines, line = ["// Made by tests/data/make_letters.py: letters (L) and numbers (N) of Unicode, by ranges."], ""
    code = 0
    for kind, group in groupby(found):
        size = len(list(group))
        item = f"{{0x{code:X}, 0x{code + size - 1:X}, {kind}}}, " if kind else ""
        if len(line) + len(item) > WIDTH:
            lines.append(line.rstrip())
            line = ""
        line += item
        code += size
    return "\n".join([*lines, line.rstrip(), ""])


def words() -> str:
    """The file of the characters that no token for single words may touch."""
    from txport.runtime.text.added_tokens import is_word

    found = table(["W" if is_word(chr(code)) else "" for code in range(sys.maxunicode + 1)])
    _, _, ranges = found.partition("\n")
    return "// Made by tests/data/make_letters.py: characters of words, by ranges.\n" + ranges.replace(", W}", "}")


if __name__ == "__main__":
    FILE.write_text(table(kinds()))
    FILE.with_name("word.inc").write_text(words())
