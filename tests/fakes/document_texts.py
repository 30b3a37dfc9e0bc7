"""Random texts with all elements of documents, for tests of both runtimes."""

import random
import unicodedata

# Words that matter to the rules of sentences and layout, and ordinary words.
WORDS = [
    *"Dr. e.g. U.S. No. z. B. 3. 12.50 1. 2) a) (3) I A the The der Und It it. you? me! Yahoo! x www.a.de".split(),
    *"... … .. ! ?! ( ) [ ] [1] [12] {a} \" ' ` “ ” ‘ ’ „ « » ‹ › ¿ ¡ - – — * + • ⁃ # ## ###### #######".split(),
    *"> >> [x] [ ] --- ===".split(),
    *"。 ！ ？ ． ； । ؟ ։ ; : Ա: γ; 这是 です 「 」 《 》 はい。 है।".split(),
    *"word wörter Слово λόγος ß ǅ ﬁ 한국 ๑ ½ Ⅷ ⓐ 😀 \u0301 \u200b \ufeff \x00 \x1c \x85".split(" "),
    "a word of more than twenty characters: ", "Donaudampfschifffahrtsgesellschaft",
]  # fmt: skip
SPACES = [
    " ",
    " ",
    " ",
    " ",
    "  ",
    "    ",
    "\t",
    "\n",
    "\n",
    "\n\n",
    "\r\n",
    "\r",
    "\u00a0",
    "\u3000",
    "\u2028",
    "\v",
    "",
]


def random_text(draw: random.Random) -> str:
    """Return random words and white space."""
    return "".join(draw.choice(WORDS) + draw.choice(SPACES) for _ in range(draw.randrange(0, 24)))


def wrapped_text(draw: random.Random) -> str:
    """Return paragraphs that are wrapped to a random width, as by an editor."""
    lines, line, width = [], "", draw.randrange(30, 90)
    for _ in range(draw.randrange(20, 60)):
        word = draw.choice(["some", "plain", "Words", "of", "it.", "end.", "and", "so", "(on)", "über", "x"])
        if len(line) + 1 + len(word) > width:
            lines.append(line)
            line = ""
        line = f"{line} {word}" if line else word
        if draw.random() < 0.03:
            lines += [line, draw.choice(["", "- item", "\tindented"])]
            line = ""
    return draw.choice(["\n", "\r\n", "\n  "]).join([*lines, line])


def random_bytes(draw: random.Random) -> str:
    """Return random bytes as text, with invalid UTF-8 replaced."""
    return draw.randbytes(draw.randrange(0, 60)).decode("utf-8", "replace")


def random_characters(draw: random.Random) -> str:
    """Return random assigned characters of Unicode."""
    made = (chr(draw.choice((draw.randrange(0xD800), draw.randrange(0xE000, 0x110000)))) for _ in range(60))
    return "".join(each for each in made if unicodedata.category(each) not in ("Cn", "Co"))


KINDS = (random_text, wrapped_text, random_bytes, random_characters)
