"""Slots for names made of digits: phone numbers, codes, addresses, versions, Roman numerals."""

import random

from txport.training.spoken import verbalise
from txport.training.spoken.numbers import Pair, weighted

ROMAN = "I II III IV V VI VII VIII IX X XI XII XIII XIV XV XVI".split()


def phone(rng: random.Random) -> Pair:
    """ "555-0147", "(212) 555-0147", "212-555-0147", "+1 212 555 0147"."""
    area = f"{rng.randint(201, 989)}"
    # 555 is usual in examples, and so in first tests of the model.
    if rng.random() < 0.4:
        exchange = "555"
    else:
        exchange = f"{rng.randint(200, 999)}"
    line = f"{rng.randint(0, 9999):04}"
    written = weighted(
        rng,
        [
            (8, f"{exchange}-{line}"),
            (1, f"({area}) {exchange}-{line}"),
            (1, f"{area}-{exchange}-{line}"),
            (1, f"{area}.{exchange}.{line}"),
            (1, f"+1 {area} {exchange} {line}"),
        ],
    )
    if written.startswith("+"):
        plus = "plus "
    else:
        plus = ""
    return written, plus + verbalise.digits(written)


def code(rng: random.Random) -> Pair:
    """Return three or four digits that are spoken one by one: "4071"."""
    written = "".join(rng.choice("0123456789") for _ in range(rng.randint(3, 4)))
    return written, verbalise.digits(written)


def plate(rng: random.Random) -> Pair:
    """Return a letter and digits that are spoken one by one: "B2490", "K-41"."""
    number = "".join(rng.choice("0123456789") for _ in range(rng.randint(2, 4)))
    written = f"{rng.choice('ABCDEFGHIJKLMNOPQRSTUVWXYZ')}{rng.choice(['', ' ', '-'])}{number}"
    return written, verbalise.digits(written)


def room(rng: random.Random) -> Pair:
    """Return a room, bus or highway number, spoken in pairs: "305" -> "three oh five"."""
    number = rng.randint(101, 999)
    return str(number), verbalise.pairs(number)


def house(rng: random.Random) -> Pair:
    """Return a house number: "221B", "42"."""
    number = weighted(rng, [(1, rng.randint(1, 99)), (1, rng.randint(100, 999))])
    if rng.random() < 0.15:
        letter = rng.choice("ABCD")
        return f"{number}{letter}", f"{verbalise.pairs(number)} {letter.lower()}"
    return f"{number}", verbalise.pairs(number)


def zip_code(rng: random.Random) -> Pair:
    """Return five digits: "10027"."""
    written = f"{rng.randint(501, 99950):05}"
    return written, verbalise.digits(written)


def roman_number(rng: random.Random) -> Pair:
    """Return a chapter or part: "IV" -> "four". Without "I", which is a word."""
    number = rng.randint(2, len(ROMAN))
    return ROMAN[number - 1], verbalise.cardinal(number)


def roman_ordinal(rng: random.Random) -> Pair:
    """Return a number after a ruler's name: "VIII" -> "the eighth"."""
    number = rng.randint(2, len(ROMAN))
    return ROMAN[number - 1], f"the {verbalise.ordinal(number)}"


def version(rng: random.Random) -> Pair:
    """ "3.11", "2.0.4": part by part."""
    parts = [str(rng.randint(0, 20)) for _ in range(rng.choice([2, 2, 3]))]
    return ".".join(parts), " point ".join(verbalise.cardinal(int(part)) for part in parts)


def number_sign(rng: random.Random) -> Pair:
    """ "No. 5", "#12"."""
    number = rng.randint(1, 99)
    return f"{rng.choice(['No. ', '#'])}{number}", f"number {verbalise.cardinal(number)}"
