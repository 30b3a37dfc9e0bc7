"""Slots for amounts: counts, decimals, fractions, money, measures, ranges and scores."""

import random
from collections.abc import Callable, Sequence
from typing import TypeVar

from txport.training.spoken import verbalise
from txport.training.spoken.words import UNITS

T = TypeVar("T")

# Written form, spoken form.
Pair = tuple[str, str]
Slot = Callable[[random.Random], Pair]

# Symbol, name and plural of the unit and of its hundredth.
CURRENCIES = {
    "$": (("dollar", "dollars"), ("cent", "cents")),
    "€": (("euro", "euros"), ("cent", "cents")),
    "£": (("pound", "pounds"), ("penny", "pence")),
}
MAGNITUDES = ("million", "billion", "trillion")


def weighted(rng: random.Random, choices: Sequence[tuple[float, T]]) -> T:
    """Return one of the choices, with a probability proportional to its weight."""
    return rng.choices([choice for _, choice in choices], [weight for weight, _ in choices])[0]


def magnitude(rng: random.Random, largest_digits: int) -> int:
    """Return a whole number of 1 to `largest_digits` digits. All lengths are equally frequent."""
    length = rng.randint(1, largest_digits)
    return rng.randrange(10 ** (length - 1), 10**length)


def round_or_not(rng: random.Random, number: int) -> int:
    """Return the number, or a third of the time the number with trailing zeros, as people like to quote them."""
    zeros = rng.randint(0, max(0, len(str(number)) - 1))
    if rng.random() < 0.33:
        return int(number // 10**zeros * 10**zeros)
    return number


def written_decimal(rng: random.Random, whole_below: int) -> str:
    """Return a whole number or a decimal of one or two places, below `whole_below`."""
    whole = min(magnitude(rng, 3), whole_below - 1)
    places = rng.choice([0, 1, 1, 2])
    if not places:
        return str(whole)
    return f"{whole}.{rng.randrange(10**places):0{places}}"


def cardinal(rng: random.Random) -> Pair:
    """Return a count of 2 or more, up to seven digits: "4,823" or "4823"; whole thousands usually "1000"."""
    digits = weighted(rng, [(2, 1), (2, 2), (2, 3), (3, 4), (2, 5), (1, 6), (1, 7)])
    number = max(2, round_or_not(rng, rng.randrange(10 ** (digits - 1), 10**digits)))
    commas = "" if number < 100_000 and rng.random() < (0.6 if number % 1000 == 0 else 0.4) else ","
    return f"{number:{commas}}", verbalise.cardinal(number)


def plain(rng: random.Random) -> Pair:
    """Return a number of five digits without a comma: "12345"; alone, a shorter one could be a year or a code."""
    number = round_or_not(rng, rng.randrange(10**4, 10**5))
    return str(number), verbalise.cardinal(number)


def count(largest: int) -> Slot:
    """Return the slot of counts from 2 to `largest`."""

    def slot(rng: random.Random) -> Pair:
        number = rng.randint(2, largest)
        return str(number), verbalise.cardinal(number)

    return slot


def ordinal(rng: random.Random) -> Pair:
    """ "21st", "112th"."""
    number = weighted(rng, [(3, rng.randint(1, 31)), (2, rng.randint(1, 99)), (1, rng.randint(100, 999))])
    return f"{number}{ordinal_suffix(number)}", verbalise.ordinal(number)


def ordinal_suffix(number: int) -> str:
    """Return the letters after the digits: "st", "nd", "rd" or "th"."""
    if number % 100 in (11, 12, 13):
        return "th"
    return {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")


def decimal(rng: random.Random) -> Pair:
    """ "3.14", "-0.5": one to three places."""
    places = rng.randint(1, 3)
    whole = 0
    if rng.random() >= 0.2:
        whole = magnitude(rng, 3)
    sign = ""
    if rng.random() < 0.15:
        sign = "-"
    written = f"{sign}{whole}.{rng.randrange(10**places):0{places}}"
    return written, verbalise.decimal(written)


def magnitude_words(rng: random.Random) -> Pair:
    """ "3.5 million"."""
    number = written_decimal(rng, 1000)
    scale = rng.choice(MAGNITUDES)
    return f"{number} {scale}", f"{verbalise.decimal(number)} {scale}"


def percentage(rng: random.Random) -> Pair:
    """ "12%", "3.5 %"."""
    number = written_decimal(rng, whole_below=101)
    return f"{number}{rng.choice(['%', '%', ' %'])}", f"{verbalise.decimal(number)} percent"


def fraction(rng: random.Random) -> Pair:
    """ "3/4", "2 1/2": denominators up to 10."""
    if rng.random() < 0.5:
        return mixed(rng)
    numerator, denominator = _parts(rng)
    return f"{numerator}/{denominator}", verbalise.fraction(numerator, denominator)


def mixed(rng: random.Random) -> Pair:
    """ "2 1/2"."""
    whole, (numerator, denominator) = rng.randint(1, 20), _parts(rng)
    return f"{whole} {numerator}/{denominator}", verbalise.mixed_fraction(whole, numerator, denominator)


def _parts(rng: random.Random) -> tuple[int, int]:
    denominator = weighted(rng, [(3, 2), (3, 4), (2, 3), (2, rng.randint(5, 10))])
    return rng.randrange(1, denominator), denominator


def money(rng: random.Random) -> Pair:
    """ "$12.50", "€3", "£0.99", "$4,800", "$3.5 million"."""
    symbol = weighted(rng, [(3, "$"), (1, "€"), (1, "£")])
    unit, part = CURRENCIES[symbol]
    kind = rng.random()
    if kind < 0.5:
        whole = magnitude(rng, weighted(rng, [(3, 2), (2, 3), (1, 4)]))
        hundredths = rng.randint(1, 99)
        if rng.random() < 0.1:
            whole = 0
        return f"{symbol}{whole:,}.{hundredths:02}", verbalise.money(whole, hundredths, unit, part)
    if kind < 0.85:
        whole = round_or_not(rng, magnitude(rng, weighted(rng, [(3, 3), (2, 5), (1, 6)])))
        zeros = ""
        if rng.random() < 0.15:
            zeros = ".00"
        return f"{symbol}{whole:,}{zeros}", verbalise.money(whole, 0, unit, part)
    scale = rng.choice(MAGNITUDES)
    amount = written_decimal(rng, whole_below=1000)
    return f"{symbol}{amount} {scale}", f"{verbalise.decimal(amount)} {scale} {unit[1]}"


def measure(kind: str) -> Slot:
    """Return the slot of one kind of unit: "12.5 km", "3kg"."""
    units = UNITS[kind]

    def slot(rng: random.Random) -> Pair:
        symbol, singular, plural = rng.choice(units)
        number = weighted(
            rng,
            [(4, str(magnitude(rng, 3))), (2, written_decimal(rng, 1000)), (2, large_count(rng)), (1, "1")],
        )
        space = rng.choice(["", " ", " "])
        unit = plural
        if number == "1":
            unit = singular
        return f"{number}{space}{symbol}", f"{verbalise.decimal(number)} {unit}"

    return slot


def large_count(rng: random.Random) -> str:
    """Return a whole number of up to five digits as written."""
    return f"{round_or_not(rng, magnitude(rng, 5)):,}"


def temperature(rng: random.Random) -> Pair:
    """ "-5°C", "72 °F", "20°"."""
    number = rng.choice([rng.randint(-40, 110), rng.randint(-40, 110), rng.randrange(100, 400, 5)])
    letter, name = rng.choice([("C", " celsius"), ("F", " fahrenheit"), ("", "")])
    unit = "degrees"
    if abs(number) == 1:
        unit = "degree"
    return f"{number}{rng.choice(['', ' '])}°{letter}", f"{verbalise.cardinal(number)} {unit}{name}"


def small_range(rng: random.Random) -> Pair:
    """ "10-15", "3–4": rising."""
    low = rng.randint(1, 60)
    high = low + rng.randint(1, 40)
    return f"{low}{rng.choice('-–')}{high}", f"{verbalise.cardinal(low)} to {verbalise.cardinal(high)}"


def score(rng: random.Random) -> Pair:
    """ "3-2": the winner's goals first."""
    low = rng.randint(0, 30)
    high = low + rng.randint(1, 9)
    return f"{high}-{low}", f"{verbalise.cardinal(high)} to {verbalise.cardinal(low)}"


def ratio(rng: random.Random) -> Pair:
    """ "3:1"."""
    left, right = rng.sample(range(1, 20), 2)
    return f"{left}:{right}", f"{verbalise.cardinal(left)} to {verbalise.cardinal(right)}"


def equation(rng: random.Random) -> Pair:
    """ "12 + 7 = 19"."""
    left = rng.randint(1, 99)
    right = rng.randint(1, 99)
    sign, word, result = rng.choice([("+", "plus", left + right), ("-", "minus", left - right)])
    return (
        f"{left} {sign} {right} = {result}",
        f"{verbalise.cardinal(left)} {word} {verbalise.cardinal(right)} equals {verbalise.cardinal(result)}",
    )
