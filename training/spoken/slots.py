"""The slots of the built-in corpus: each draws one value and gives it as written and as spoken.

One function a semiotic class (Sproat and Jaitly 2016, section 2), with the written forms that people use for it. What a
written form means may hang on its place in the sentence ("in 1905" against "1905 people"): the templates know which
class stands where, the model has to learn it.
"""

import random
from collections.abc import Callable, Sequence
from typing import TypeVar

from txport.training.spoken import verbalise

T = TypeVar("T")

# Written form, spoken form.
Pair = tuple[str, str]
Slot = Callable[[random.Random], Pair]

MONTH_NAMES = [name.capitalize() for name in verbalise.MONTHS]
# May has no shorter form.
MONTH_ABBREVIATIONS = ["Jan.", "Feb.", "Mar.", "Apr.", "May", "Jun.", "Jul.", "Aug.", "Sept.", "Oct.", "Nov.", "Dec."]
DAYS_IN_MONTH = (31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)

# Symbol, name and plural of the unit and of its hundredth.
CURRENCIES = {
    "$": (("dollar", "dollars"), ("cent", "cents")),
    "€": (("euro", "euros"), ("cent", "cents")),
    "£": (("pound", "pounds"), ("penny", "pence")),
}
MAGNITUDES = ("million", "billion", "trillion")

# Written unit, singular, plural; whether people put a space before it varies, so the corpus does both.
UNITS: dict[str, tuple[tuple[str, str, str], ...]] = {
    "length": (
        ("km", "kilometer", "kilometers"),
        ("m", "meter", "meters"),
        ("cm", "centimeter", "centimeters"),
        ("mm", "millimeter", "millimeters"),
        ("mi", "mile", "miles"),
        ("ft", "foot", "feet"),
        ("yd", "yard", "yards"),
    ),
    "mass": (
        ("kg", "kilogram", "kilograms"),
        ("g", "gram", "grams"),
        ("mg", "milligram", "milligrams"),
        ("lb", "pound", "pounds"),
        ("oz", "ounce", "ounces"),
    ),
    "volume": (
        ("l", "liter", "liters"),
        ("ml", "milliliter", "milliliters"),
        ("tbsp", "tablespoon", "tablespoons"),
        ("tsp", "teaspoon", "teaspoons"),
        ("gal", "gallon", "gallons"),
    ),
    "speed": (
        ("km/h", "kilometer per hour", "kilometers per hour"),
        ("mph", "mile per hour", "miles per hour"),
        ("m/s", "meter per second", "meters per second"),
    ),
    "data": (
        ("KB", "kilobyte", "kilobytes"),
        ("MB", "megabyte", "megabytes"),
        ("GB", "gigabyte", "gigabytes"),
        ("TB", "terabyte", "terabytes"),
    ),
    "electric": (
        ("W", "watt", "watts"),
        ("kW", "kilowatt", "kilowatts"),
        ("kWh", "kilowatt hour", "kilowatt hours"),
        ("V", "volt", "volts"),
        ("Hz", "hertz", "hertz"),
        ("MHz", "megahertz", "megahertz"),
        ("GHz", "gigahertz", "gigahertz"),
    ),
    "duration": (
        ("hrs", "hour", "hours"),
        ("min", "minute", "minutes"),
        ("sec", "second", "seconds"),
        ("ms", "millisecond", "milliseconds"),
    ),
    "area": (
        ("m²", "square meter", "square meters"),
        ("km²", "square kilometer", "square kilometers"),
        ("sq ft", "square foot", "square feet"),
        ("ha", "hectare", "hectares"),
    ),
}

ROMAN = "I II III IV V VI VII VIII IX X XI XII XIII XIV XV XVI".split()


def weighted(rng: random.Random, choices: Sequence[tuple[float, T]]) -> T:
    """One of the choices, by its weight."""
    return rng.choices([choice for _, choice in choices], [weight for weight, _ in choices])[0]


def magnitude(rng: random.Random, largest_digits: int) -> int:
    """A whole number of 1 to `largest_digits` digits, each length alike: short numbers are as frequent as long ones."""
    length = rng.randint(1, largest_digits)
    return rng.randrange(10 ** (length - 1), 10**length)


def round_or_not(rng: random.Random, number: int) -> int:
    """The number, or a third of the time the number with trailing zeros, as people like to quote them."""
    zeros = rng.randint(0, max(0, len(str(number)) - 1))
    return number // 10**zeros * 10**zeros if rng.random() < 0.33 else number


def written_number(number: int) -> str:
    """With thousands commas."""
    return f"{number:,}"


def cardinal(rng: random.Random) -> Pair:
    """A count of 2 or more, up to seven digits: "4,823"."""
    largest = weighted(rng, [(6, 3), (3, 5), (1, 7)])
    number = max(2, round_or_not(rng, magnitude(rng, largest)))
    return written_number(number), verbalise.cardinal(number)


def small(rng: random.Random) -> Pair:
    """A count from 2 to 99."""
    number = rng.randint(2, 99)
    return str(number), verbalise.cardinal(number)


def few(rng: random.Random) -> Pair:
    """A count from 2 to 12."""
    number = rng.randint(2, 12)
    return str(number), verbalise.cardinal(number)


def ordinal(rng: random.Random) -> Pair:
    """ "21st", "112th"."""
    number = weighted(rng, [(3, rng.randint(1, 31)), (2, rng.randint(1, 99)), (1, rng.randint(100, 999))])
    return f"{number}{ordinal_suffix(number)}", verbalise.ordinal(number)


def ordinal_suffix(number: int) -> str:
    """The letters after the digits: "st", "nd", "rd" or "th"."""
    if number % 100 in (11, 12, 13):
        return "th"
    return {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")


def random_year(rng: random.Random) -> int:
    """Most from 1900 to 2059, a few back to 1700."""
    return weighted(rng, [(12, rng.randint(1900, 1999)), (12, rng.randint(2000, 2059)), (1, rng.randint(1700, 1899))])


def year(rng: random.Random) -> Pair:
    """ "1905", "2025"."""
    number = random_year(rng)
    return str(number), verbalise.year(number)


def years(rng: random.Random) -> Pair:
    """A span of years: "1914-1918", with a hyphen or a dash."""
    first = random_year(rng)
    last = first + rng.randint(1, 40)
    dash = rng.choice("-–")
    return f"{first}{dash}{last}", f"{verbalise.year(first)} to {verbalise.year(last)}"


def decade(rng: random.Random) -> Pair:
    """ "1990s", "1920's"."""
    first = rng.randrange(1800, 2000, 10)
    return f"{first}{rng.choice(['s', 's', chr(39) + 's'])}", verbalise.decade(first)


def calendar_day(rng: random.Random) -> tuple[int, int]:
    """Month 1-12 and a day that it has."""
    month = rng.randint(1, 12)
    return month, rng.randint(1, DAYS_IN_MONTH[month - 1])


def date(rng: random.Random) -> Pair:
    """A full date: "3/14/2025", "03/14/2025", "2025-03-14", "March 14, 2025", "Mar. 14, 2025", "14 March 2025"."""
    (month, day), of_year = calendar_day(rng), random_year(rng)
    name, short, spoken = MONTH_NAMES[month - 1], MONTH_ABBREVIATIONS[month - 1], verbalise.date(month, day, of_year)
    day_first = verbalise.date(month, day, of_year, day_first=True)
    suffixed = f"{day}{ordinal_suffix(day)}"
    return rng.choice(
        [
            (f"{month}/{day}/{of_year}", spoken),
            (f"{month:02}/{day:02}/{of_year}", spoken),
            (f"{of_year}-{month:02}-{day:02}", spoken),
            (f"{name} {day}, {of_year}", spoken),
            (f"{short} {day}, {of_year}", spoken),
            (f"{name} {suffixed}, {of_year}", spoken),
            (f"{day} {name} {of_year}", day_first),
            (f"the {suffixed} of {name} {of_year}", day_first),
        ]
    )


def day(rng: random.Random) -> Pair:
    """A day of the year, a weekday before it a third of the time: "3/14", "Mar. 14", "Friday, March 14th"."""
    month, number = calendar_day(rng)
    name, short, spoken = MONTH_NAMES[month - 1], MONTH_ABBREVIATIONS[month - 1], verbalise.date(month, number)
    suffixed = f"{number}{ordinal_suffix(number)}"
    written, spoken = rng.choice(
        [
            (f"{month}/{number}", spoken),
            (f"{name} {number}", spoken),
            (f"{short} {number}", spoken),
            (f"{name} {suffixed}", spoken),
            (f"{number} {name}", verbalise.date(month, number, day_first=True)),
            (f"the {suffixed} of {name}", verbalise.date(month, number, day_first=True)),
        ]
    )
    if rng.random() < 0.33:
        weekday = rng.choice(verbalise.WEEKDAYS)
        short_weekday = rng.choice([weekday.capitalize() + ",", weekday[:3].capitalize() + ".,"])
        return f"{short_weekday} {written}", f"{weekday} {spoken}"
    return written, spoken


def month_year(rng: random.Random) -> Pair:
    """ "March 2025"."""
    month, of_year = rng.randint(1, 12), random_year(rng)
    name = rng.choice([MONTH_NAMES[month - 1], MONTH_ABBREVIATIONS[month - 1]])
    return f"{name} {of_year}", f"{verbalise.MONTHS[month - 1]} {verbalise.year(of_year)}"


def time(rng: random.Random) -> Pair:
    """A time of day: "5:30 pm", "5 p.m.", "5:30PM", "17:30", "5:00"."""
    hour, minute = rng.randint(1, 12), weighted(rng, [(2, rng.randint(0, 59)), (1, rng.randrange(0, 60, 5)), (1, 0)])
    half = rng.choice("ap")
    spoken = f"{verbalise.clock(hour, minute)} {half} m"
    marker = rng.choice([f" {half}m", f" {half}.m.", f"{half}m", f" {half.upper()}M", f"{half.upper()}M"])
    if rng.random() < 0.25:
        hour_24 = rng.randint(13, 23)
        return f"{hour_24}:{minute:02}", verbalise.clock_24(hour_24, minute)
    if rng.random() < 0.25:
        return f"{hour}:{minute:02}", verbalise.clock(hour, minute) if minute else f"{verbalise.clock(hour, 0)} o'clock"
    return (f"{hour}:{minute:02}" if minute or rng.random() < 0.5 else f"{hour}") + marker, spoken


def money(rng: random.Random) -> Pair:
    """ "$12.50", "€3", "£0.99", "$4,800", "$3.5 million"."""
    symbol = weighted(rng, [(3, "$"), (1, "€"), (1, "£")])
    unit, part = CURRENCIES[symbol]
    kind = rng.random()
    if kind < 0.5:
        whole, hundredths = magnitude(rng, weighted(rng, [(3, 2), (2, 3), (1, 4)])), rng.randint(1, 99)
        whole = 0 if rng.random() < 0.1 else whole
        return f"{symbol}{written_number(whole)}.{hundredths:02}", verbalise.money(whole, hundredths, unit, part)
    if kind < 0.85:
        whole = round_or_not(rng, magnitude(rng, weighted(rng, [(3, 3), (2, 5), (1, 6)])))
        zeros = ".00" if rng.random() < 0.15 else ""
        return f"{symbol}{written_number(whole)}{zeros}", verbalise.money(whole, 0, unit, part)
    scale, amount = rng.choice(MAGNITUDES), written_decimal(rng, whole_below=1000)
    return f"{symbol}{amount} {scale}", f"{verbalise.decimal(amount)} {scale} {unit[1]}"


def written_decimal(rng: random.Random, whole_below: int) -> str:
    """A whole number or a decimal of one or two places, below `whole_below`."""
    whole = min(magnitude(rng, 3), whole_below - 1)
    places = rng.choice([0, 1, 1, 2])
    return str(whole) + (f".{rng.randrange(10**places):0{places}}" if places else "")


def decimal(rng: random.Random) -> Pair:
    """ "3.14", "-0.5": one to three places."""
    places = rng.randint(1, 3)
    whole = 0 if rng.random() < 0.2 else magnitude(rng, 3)
    written = f"{'-' if rng.random() < 0.15 else ''}{whole}.{rng.randrange(10**places):0{places}}"
    return written, verbalise.decimal(written)


def percentage(rng: random.Random) -> Pair:
    """ "12%", "3.5 %"."""
    number = written_decimal(rng, whole_below=101)
    return f"{number}{rng.choice(['%', '%', ' %'])}", f"{verbalise.decimal(number)} percent"


def fraction(rng: random.Random) -> Pair:
    """ "3/4", "2 1/2": denominators up to 10."""
    denominator = weighted(rng, [(3, 2), (3, 4), (2, 3), (2, rng.randint(5, 10))])
    numerator = rng.randrange(1, denominator)
    if rng.random() < 0.5:
        whole = rng.randint(1, 20)
        return f"{whole} {numerator}/{denominator}", verbalise.mixed_fraction(whole, numerator, denominator)
    return f"{numerator}/{denominator}", verbalise.fraction(numerator, denominator)


def measure(kind: str) -> Slot:
    """The slot of one kind of unit: "12.5 km", "3kg"."""
    units = UNITS[kind]

    def slot(rng: random.Random) -> Pair:
        symbol, singular, plural = rng.choice(units)
        number = weighted(
            rng, [(2, str(max(2, magnitude(rng, 3)))), (1, written_decimal(rng, 1000)), (1, large_count(rng))]
        )
        space = rng.choice(["", " ", " "])
        return f"{number}{space}{symbol}", f"{verbalise.decimal(number)} {singular if number == '1' else plural}"

    return slot


def large_count(rng: random.Random) -> str:
    """A whole number of up to five digits as written."""
    return written_number(round_or_not(rng, magnitude(rng, 5)))


def temperature(rng: random.Random) -> Pair:
    """ "-5°C", "72 °F", "20°"."""
    number = rng.randint(-40, 110)
    letter, name = rng.choice([("C", " celsius"), ("F", " fahrenheit"), ("", "")])
    unit = "degree" if abs(number) == 1 else "degrees"
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


def phone(rng: random.Random) -> Pair:
    """ "555-0147", "(212) 555-0147", "212-555-0147", "+1 212 555 0147"."""
    area, exchange, line = f"{rng.randint(201, 989)}", f"{rng.randint(200, 999)}", f"{rng.randint(0, 9999):04}"
    written = rng.choice(
        [
            f"{exchange}-{line}",
            f"({area}) {exchange}-{line}",
            f"{area}-{exchange}-{line}",
            f"{area}.{exchange}.{line}",
            f"+1 {area} {exchange} {line}",
        ]
    )
    plus = "plus " if written.startswith("+") else ""
    return written, plus + verbalise.digits(written)


def code(rng: random.Random) -> Pair:
    """Three or four digits that are read one by one: "4071"."""
    written = "".join(rng.choice("0123456789") for _ in range(rng.randint(3, 4)))
    return written, verbalise.digits(written)


def plate(rng: random.Random) -> Pair:
    """A letter and digits that are read one by one: "B2490", "K-41"."""
    number = "".join(rng.choice("0123456789") for _ in range(rng.randint(2, 4)))
    written = f"{rng.choice('ABCDEFGHIJKLMNOPQRSTUVWXYZ')}{rng.choice(['', ' ', '-'])}{number}"
    return written, verbalise.digits(written)


def room(rng: random.Random) -> Pair:
    """A room, bus or highway number, read in pairs: "305" -> "three oh five"."""
    number = rng.randint(101, 999)
    return str(number), verbalise.pairs(number)


def house(rng: random.Random) -> Pair:
    """A house number: "221B", "42"."""
    number = weighted(rng, [(1, rng.randint(1, 99)), (1, rng.randint(100, 999))])
    letter = rng.choice("ABCD") if rng.random() < 0.15 else ""
    return f"{number}{letter}", verbalise.pairs(number) + (f" {letter.lower()}" if letter else "")


def zip_code(rng: random.Random) -> Pair:
    """Five digits: "10027"."""
    written = f"{rng.randint(501, 99950):05}"
    return written, verbalise.digits(written)


def roman_number(rng: random.Random) -> Pair:
    """A chapter or part: "IV" -> "four". Without "I", which is a word."""
    number = rng.randint(2, len(ROMAN))
    return ROMAN[number - 1], verbalise.cardinal(number)


def roman_ordinal(rng: random.Random) -> Pair:
    """After a ruler's name: "VIII" -> "the eighth"."""
    number = rng.randint(2, len(ROMAN))
    return ROMAN[number - 1], f"the {verbalise.ordinal(number)}"


def version(rng: random.Random) -> Pair:
    """ "3.11", "2.0.4": part by part."""
    parts = [str(rng.randint(0, 20)) for _ in range(rng.choice([2, 2, 3]))]
    return ".".join(parts), " point ".join(verbalise.cardinal(int(part)) for part in parts)


def ratio(rng: random.Random) -> Pair:
    """ "3:1"."""
    left, right = rng.sample(range(1, 20), 2)
    return f"{left}:{right}", f"{verbalise.cardinal(left)} to {verbalise.cardinal(right)}"


def number_sign(rng: random.Random) -> Pair:
    """ "No. 5", "#12"."""
    number = rng.randint(1, 99)
    return f"{rng.choice(['No. ', '#'])}{number}", f"number {verbalise.cardinal(number)}"


def magnitude_words(rng: random.Random) -> Pair:
    """ "3.5 million"."""
    number, scale = written_decimal(rng, 1000), rng.choice(MAGNITUDES)
    return f"{number} {scale}", f"{verbalise.decimal(number)} {scale}"


def equation(rng: random.Random) -> Pair:
    """ "12 + 7 = 19"."""
    left, right = rng.randint(1, 99), rng.randint(1, 99)
    sign, word, result = rng.choice([("+", "plus", left + right), ("-", "minus", left - right)])
    return (
        f"{left} {sign} {right} = {result}",
        f"{verbalise.cardinal(left)} {word} {verbalise.cardinal(right)} equals {verbalise.cardinal(result)}",
    )


SLOTS: dict[str, Slot] = {
    "cardinal": cardinal,
    "small": small,
    "few": few,
    "ordinal": ordinal,
    "year": year,
    "years": years,
    "decade": decade,
    "date": date,
    "day": day,
    "month_year": month_year,
    "time": time,
    "money": money,
    "decimal": decimal,
    "percentage": percentage,
    "fraction": fraction,
    "temperature": temperature,
    "range": small_range,
    "score": score,
    "phone": phone,
    "code": code,
    "plate": plate,
    "room": room,
    "house": house,
    "zip": zip_code,
    "roman": roman_number,
    "roman_ordinal": roman_ordinal,
    "version": version,
    "ratio": ratio,
    "number": number_sign,
    "millions": magnitude_words,
    "equation": equation,
    **{kind: measure(kind) for kind in UNITS},
}
