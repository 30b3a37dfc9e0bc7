"""Numbers, dates, times and amounts in words of spoken American English.

Each function converts a value to lower-case words without punctuation. How values are written is chosen in
`txport.training.spoken.slots`. The semiotic classes are those of Sproat and Jaitly, "RNN Approaches to Text
Normalization: A Challenge" (2016), section 2.
"""

ONES = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
    "eighteen nineteen"
).split()
TENS = "zero ten twenty thirty forty fifty sixty seventy eighty ninety".split()
SCALES = (
    (1_000_000_000_000, "trillion"),
    (1_000_000_000, "billion"),
    (1_000_000, "million"),
    (1_000, "thousand"),
    (100, "hundred"),
)
LARGEST = 999_999_999_999_999
IRREGULAR_ORDINALS = {
    "one": "first",
    "two": "second",
    "three": "third",
    "five": "fifth",
    "eight": "eighth",
    "nine": "ninth",
    "twelve": "twelfth",
}
MONTHS = "january february march april may june july august september october november december".split()
WEEKDAYS = "monday tuesday wednesday thursday friday saturday sunday".split()


def cardinal(number: int) -> str:
    """Return a number in words, without "and": `4823` -> "four thousand eight hundred twenty three".

    Raises ValueError from 1,000 trillion on, which the table of scales does not contain.
    """
    if abs(number) > LARGEST:
        raise ValueError(f"{number} is larger than {LARGEST}")
    if number < 0:
        return "minus " + cardinal(-number)
    if number < 20:
        return ONES[number]
    if number < 100:
        rest = number % 10
        words = TENS[number // 10]
    else:
        scale, name = next((scale, name) for scale, name in SCALES if number >= scale)
        rest = number % scale
        words = f"{cardinal(number // scale)} {name}"
    if rest:
        words += f" {cardinal(rest)}"
    return words


def ordinal(number: int) -> str:
    """`21` -> "twenty first"."""
    *head, last = cardinal(number).split()
    if last in IRREGULAR_ORDINALS:
        last = IRREGULAR_ORDINALS[last]
    elif last.endswith("y"):
        last = last[:-1] + "ieth"
    else:
        last += "th"
    return " ".join([*head, last])


def digits(text: str) -> str:
    """Return digits as words, and letters unchanged: "4B07" -> "four b zero seven". Other characters are left out."""
    return " ".join(ONES[int(c)] if c in "0123456789" else c for c in text.lower() if c.isascii() and c.isalnum())


def pairs(number: int) -> str:
    """Read a number of three or four digits in two groups, as years and house numbers: `305` -> "three oh five"."""
    high, low = divmod(number, 100)
    if not high or number % 1000 == 0:
        return cardinal(number)
    if not low:
        return f"{cardinal(high)} hundred"
    if low < 10:
        return f"{cardinal(high)} oh {ONES[low]}"
    return f"{cardinal(high)} {cardinal(low)}"


def year(number: int) -> str:
    """Return a year in words.

    `1905` -> "nineteen oh five", `2000` -> "two thousand", `2005` -> "two thousand five", `2025` -> "twenty twenty
    five".
    """
    if number % 1000 < 10:
        return cardinal(number)
    return pairs(number)


def plural(words: str) -> str:
    """Return the plural of the last word, for decades and denominators: "nineteen ninety" -> "nineteen nineties"."""
    if words.endswith("y"):
        return words[:-1] + "ies"
    if words.endswith(("x", "ch", "s")):
        return words + "es"
    return words + "s"


def decade(first_year: int) -> str:
    """`1990` -> "nineteen nineties", `1900` -> "nineteen hundreds"."""
    return plural(year(first_year))


def decimal(text: str) -> str:
    """Return a decimal in words; thousands commas are allowed: "-3.05" -> "minus three point zero five"."""
    text = text.replace(",", "")
    if text.startswith("-"):
        sign = "minus "
    else:
        sign = ""
    whole, _, fraction = text.lstrip("-").partition(".")
    words = sign + cardinal(int(whole or "0"))
    if fraction:
        return f"{words} point {digits(fraction)}"
    return words


def fraction(numerator: int, denominator: int) -> str:
    """`3, 4` -> "three quarters", `1, 2` -> "one half", `5, 8` -> "five eighths"."""
    name = {2: "half", 4: "quarter"}.get(denominator) or ordinal(denominator)
    if numerator != 1:
        if denominator == 2:
            name = "halves"
        else:
            name = plural(name)
    return f"{cardinal(numerator)} {name}"


def mixed_fraction(whole: int, numerator: int, denominator: int) -> str:
    """`2, 1, 2` -> "two and a half", `2, 1, 8` -> "two and an eighth", `3, 3, 4` -> "three and three quarters"."""
    part = fraction(numerator, denominator)
    if numerator == 1:
        name = part.split(" ", 1)[1]
        if name.startswith("e"):  # eighth, eleventh, eighteenth, ...; "one hundredth" begins with a consonant
            article = "an"
        else:
            article = "a"
        part = f"{article} {name}"
    return f"{cardinal(whole)} and {part}"


def with_unit(number: int, singular: str, plural_form: str) -> str:
    """`1, "dollar", "dollars"` -> "one dollar"."""
    if number == 1:
        return f"{cardinal(number)} {singular}"
    return f"{cardinal(number)} {plural_form}"


def money(
    whole: int,
    hundredths: int,
    unit: tuple[str, str] = ("dollar", "dollars"),
    part: tuple[str, str] = ("cent", "cents"),
) -> str:
    """`12, 50` -> "twelve dollars and fifty cents"; no whole units: "fifty cents"; no hundredths: "twelve dollars"."""
    words = []
    if whole or not hundredths:
        words.append(with_unit(whole, *unit))
    if hundredths:
        words.append(with_unit(hundredths, *part))
    return " and ".join(words)


def clock(hour: int, minute: int) -> str:
    """Return a time on the twelve-hour clock: `5, 30` -> "five thirty", `5, 5` -> "five oh five", `5, 0` -> "five"."""
    if not minute:
        return cardinal(hour)
    if minute < 10:
        return f"{cardinal(hour)} oh {ONES[minute]}"
    return f"{cardinal(hour)} {cardinal(minute)}"


def clock_24(hour: int, minute: int) -> str:
    """`17, 30` -> "seventeen thirty", `9, 5` -> "nine oh five", `18, 0` -> "eighteen hundred"."""
    if minute:
        return clock(hour, minute)
    return f"{cardinal(hour)} hundred"


def date(month: int, day: int, of_year: int | None = None, *, day_first: bool = False) -> str:
    """Return a date in words.

    `3, 14, 2025` -> "march fourteenth twenty twenty five"; with the day first, "the fourteenth of march twenty twenty
    five".
    """
    name = MONTHS[month - 1]
    if day_first:
        words = f"the {ordinal(day)} of {name}"
    else:
        words = f"{name} {ordinal(day)}"
    if of_year is not None:
        return f"{words} {year(of_year)}"
    return words
