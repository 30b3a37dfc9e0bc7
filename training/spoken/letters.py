"""Words and signs that are in no list, so that the model learns to copy, or leave out, unseen input."""

import random

from txport.training.spoken.numbers import Pair, weighted

ONSETS = (
    "b c d f g h j k l m n p r s t v w x y z bl br ch cl cr dr fl fr gl gr kn ph pl qu sc sh sl sp st th tr".split()
)
VOWELS = "a e i o u y a e i o ai au ea ee ei ie oo ou oy".split()
CODAS = "b ck d f g ght l ll m n nd ng nk nt p r rd rk rm rt s sh ss st t tch th x z".split()
ENDINGS = "a e o y ed er es est ful ing ish ism ist less ly man ment ness ous son ton tion ville".split()
LETTERS = "abcdefghijklmnopqrstuvwxyz"
# First and last code points of emoji and dingbats.
SYMBOLS = ((0x1F300, 0x1F64F), (0x1F680, 0x1F6C5), (0x1F900, 0x1F9FF), (0x2600, 0x26FF), (0x2701, 0x2775))


def made_up(rng: random.Random) -> Pair:
    """Return an invented word of four letters or more: "strouken", "Velmation"; in one of ten cases random: "qxvbe"."""
    if rng.random() < 0.1:
        return (word := "".join(rng.choices(LETTERS, k=rng.randint(5, 7)))), word
    syllables = [
        rng.choice(ONSETS) + rng.choice(VOWELS) + (rng.choice(CODAS) if rng.random() < 0.3 else "")
        for _ in range(weighted(rng, [(8, 1), (5, 2), (1, 3)]))
    ]
    word = "".join(syllables) + (rng.choice(ENDINGS) if rng.random() < 0.5 or len(syllables) == 1 else "")
    if len(word) < 4:
        word = word + rng.choice(ENDINGS[-10:])
    return rng.choice([word, word, word.capitalize()]), word


def symbol(rng: random.Random) -> str:
    """Return an emoji, which has no spoken form. There are so many emoji that each is nearly unknown to the model."""
    first, last = rng.choice(SYMBOLS)
    return chr(rng.randint(first, last))
