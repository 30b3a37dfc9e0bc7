"""Generated corpus with names to copy: short sentences of an artificial translation. Held-out ones have other names.

"please tell mokari that tefu is late" -> "sag mokari bitte dass tefu spät ist". Names consist of syllables, and each is
in only one split. A model that has memorised the names of training cannot generate others, a model that copies can.
Word tokenizers need all names in their vocabulary. So the last training pair lists the held-out names. It is longer
than `training.max_length`, so no training step contains it.
"""

import itertools
import random
from collections.abc import Iterator, Sequence

from txport.training.spoken.corpus import Split
from txport.training.spoken.numbers import Pair

NAMES: dict[Split, int] = {"train": 300, "validation": 50, "test": 150}
_CONSONANTS = "bdfgklmnprstvz"
_VOWELS = "aeiou"
# Letters in braces are replaced by names.
_TEMPLATES = (
    ("{a} is {s}", "{a} ist {s}"),
    ("where is {a} today", "wo ist {a} heute"),
    ("please tell {a} that {b} is {s}", "sag {a} bitte dass {b} {s} ist"),
    ("{a} and {b} live in {c}", "{a} und {b} wohnen in {c}"),
    ("i have seen {a} with {b}", "ich habe {a} mit {b} gesehen"),
    ("{a} has never been to {b}", "{a} war noch nie in {b}"),
    ("does {a} know {b}", "kennt {a} {b}"),
    ("yesterday {a} was {s} again", "gestern war {a} wieder {s}"),
    ("give the book to {a} , not to {b}", "gib {a} das buch , nicht {b}"),
    ("because {a} is {s} , {b} must drive to {c}", "weil {a} {s} ist , muss {b} nach {c} fahren"),
)
_STATES = (("late", "spät"), ("here", "da"), ("ill", "krank"), ("tired", "müde"), ("busy", "beschäftigt"))


def names(split: Split) -> list[str]:
    """Return the names of a split. Other splits have none of them."""
    splits = list(NAMES)
    start = sum(NAMES[other] for other in splits[: splits.index(split)])
    return list(itertools.islice(_all_names(), start, start + NAMES[split]))


def _all_names() -> Iterator[str]:
    """Yield distinct names without end, always in the same order."""
    rng = random.Random("names")
    seen = set[str]()
    while True:
        name = "".join(rng.choice(_CONSONANTS) + rng.choice(_VOWELS) for _ in range(rng.choice((2, 3))))
        if name not in seen:
            seen.add(name)
            yield name


def pairs(seed: int, split: Split, count: int) -> list[Pair]:
    """Return the pairs of a split, equal for equal seeds. In training, the last one lists names of other splits."""
    rng = random.Random(f"{seed} {split}")
    split_names = names(split)
    result = [_sentence(rng, split_names) for _ in range(count)]
    if split == "train":
        other_names = " ".join(name for other in NAMES if other != split for name in names(other))
        result.append((other_names, other_names))
    return result


def _sentence(rng: random.Random, split_names: Sequence[str]) -> Pair:
    source, target = rng.choice(_TEMPLATES)
    names_by_slot = dict(zip("abc", rng.sample(split_names, 3), strict=True))
    state = rng.choice(_STATES)
    return source.format(s=state[0], **names_by_slot), target.format(s=state[1], **names_by_slot)
