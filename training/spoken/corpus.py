"""Built-in corpus for speech synthesis: written and spoken English, generated without end, with no download.

"On 3/14/2025 at 5:30 pm it cost $12.50." -> "on march fourteenth twenty twenty five at five thirty p m it cost twelve
dollars and fifty cents". The task is that of Sproat and Jaitly, "RNN Approaches to Text Normalization: A Challenge"
(2016). A sentence is a clause with or without an opener and a tail, two joined clauses, one or two short everyday
sentences, or unconnected words and amounts in any order. Slots are filled independently, so there are far more
sentences than any model can memorise. Letters lose their accents, and unspoken signs are left out.
"""

import hashlib
import random
import re
import unicodedata
from collections.abc import Callable, Iterator
from typing import Literal

from txport.training.spoken.letters import symbol
from txport.training.spoken.numbers import Pair, weighted
from txport.training.spoken.slots import SLOTS
from txport.training.spoken.templates import AMOUNTS, CLAUSES, EVERYDAY, JOINTS, LOOSE, OPENERS, TAILS
from txport.training.spoken.words import WORDS

Split = Literal["train", "validation", "test"]

# One of 20 equal parts of all sentences is for validation, and one for the test.
PARTS = 20
HELD_OUT: dict[int, Split] = {0: "validation", 1: "test"}

_SLOT = re.compile(r"\{(\w+)\}|([\w.]+)\|(\w+)")
_UNSPOKEN = re.compile(r"[^a-z0-9' ]")


def split_of(source: str) -> Split:
    """Return the split of a sentence, by the hash of its words. So no sentence can be in two splits.

    Case, spaces and punctuation are ignored. So a held-out sentence with another full stop is not in the training
    split.
    """
    key = "".join(c for c in source.casefold() if c.isalnum())
    number = int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big")
    return HELD_OUT.get(number % PARTS, "train")


def sentences(seed: int, split: Split) -> Iterator[Pair]:
    """Yield an endless stream of distinct (written, spoken) sentences of one split, the same for the same seed."""
    rng = random.Random(f"{seed} {split}")
    previous: set[str] = set()
    while True:
        written, spoken = sentence(rng)
        if written not in previous and split_of(written) == split:
            previous.add(written)
            yield written, spoken


def sentence(rng: random.Random) -> Pair:
    """Generate a clause with or without additions, two joined ones, one or two everyday sentences, or words."""
    kind = weighted(rng, [(5, "clause"), (2, "joined"), (6, "everyday"), (1, "two"), (5, "loose")])
    if kind == "two":
        (first, one), (second, two) = (_typed(rng.choice(EVERYDAY), rng) for _ in range(2))
        if first[-1] not in ".!?":
            first += "."
        return f"{first} {second}", f"{one} {two}"
    return _typed(_TEMPLATES[kind](rng), rng)


def _clause(rng: random.Random) -> str:
    """Return the template of a clause, with an opener in one of sixteen cases and a tail in one of twelve."""
    parts = [rng.choice(CLAUSES)]
    if rng.random() < 1 / 16:
        parts.insert(0, rng.choice(OPENERS))
    if rng.random() < 1 / 12:
        parts.append(rng.choice(TAILS))
    return " ".join(parts)


def _joined(rng: random.Random) -> str:
    """Return the template of two clauses or everyday sentences with a joining word."""
    first, second = (rng.choice(rng.choice([CLAUSES, EVERYDAY])) for _ in range(2))
    return f"{first} {rng.choice(JOINTS)} {second}"


def _loose(rng: random.Random) -> str:
    """Return a template of unconnected words with random amounts."""
    return re.sub(r"\{amount\}", lambda _: rng.choice(AMOUNTS), rng.choice(LOOSE))


_TEMPLATES: dict[str, Callable[[random.Random], str]] = {
    "clause": _clause,
    "joined": _joined,
    "everyday": lambda rng: rng.choice(EVERYDAY),
    "loose": _loose,
}


def _typed(template: str, rng: random.Random) -> Pair:
    written, spoken = render(template, rng)
    return finish(written, rng), spoken


def render(template: str, rng: random.Random) -> Pair:
    """Fill a template's slots and words."""
    written = []
    spoken = []
    position = 0
    for match in _SLOT.finditer(template):
        literal = template[position : match.start()]
        position = match.end()
        slot = match.group(1)
        if slot:
            pair = fill(slot, rng)
        else:
            pair = (match.group(2), match.group(3))
        written += [literal, pair[0]]
        spoken += [say(literal), pair[1]]
    written.append(template[position:])
    spoken.append(say(template[position:]))
    return "".join(written).replace(" ,", ",").replace(" ;", ";"), " ".join("".join(spoken).split())


def fill(slot: str, rng: random.Random) -> Pair:
    """Return a value for a slot, or a word of a list."""
    if slot in SLOTS:
        return SLOTS[slot](rng)
    written, _, spoken = rng.choice(WORDS[slot]).partition("|")
    return written, spoken or say(written)


def say(words: str) -> str:
    """Return plain words in spoken form: lower case, without accents and punctuation. Spaces stay."""
    return _UNSPOKEN.sub("", unicodedata.normalize("NFKD", words.lower()))


def finish(written: str, rng: random.Random) -> str:
    """Return a sentence as people type it, with variations of capitals and full stops.

    Most have both, some are in lower case, some have no full stop. A few end with an emoji. Apostrophes are straight or
    curly.
    """
    style = weighted(rng, [(6, "sentence"), (2, "bare"), (2, "lower")])
    if style == "lower":
        written = written.lower()
    else:
        written = written[0].upper() + written[1:]
    if style == "sentence" and not written.endswith("."):
        written += weighted(rng, [(8, "."), (2, "!"), (2, "?"), (1, "...")])
    if rng.random() < 0.2:
        written = written.replace("'", "\u2019")
    if rng.random() < 0.03:
        written += rng.choice(["", " "]) + symbol(rng)
    return written
