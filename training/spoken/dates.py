"""Slots for dates and times."""

import random

from txport.training.spoken import verbalise
from txport.training.spoken.numbers import Pair, ordinal_suffix, weighted

MONTH_NAMES = [name.capitalize() for name in verbalise.MONTHS]
# May has no shorter form.
MONTH_ABBREVIATIONS = "Jan. Feb. Mar. Apr. May Jun. Jul. Aug. Sept. Oct. Nov. Dec.".split()
DAYS_IN_MONTH = (31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)


def random_year(rng: random.Random) -> int:
    """Return a year, usually from 1900 to 2059, rarely from 1700."""
    return weighted(rng, [(12, rng.randint(1900, 1999)), (12, rng.randint(2000, 2059)), (1, rng.randint(1700, 1899))])


def year(rng: random.Random) -> Pair:
    """ "1905", "2025"."""
    number = random_year(rng)
    return str(number), verbalise.year(number)


def years(rng: random.Random) -> Pair:
    """Return a span of years: "1914-1918", with a hyphen or a dash."""
    first = random_year(rng)
    last = first + rng.randint(1, 40)
    dash = rng.choice("-–")
    return f"{first}{dash}{last}", f"{verbalise.year(first)} to {verbalise.year(last)}"


def decade(rng: random.Random) -> Pair:
    """ "1990s", "1920's"."""
    first = rng.randrange(1800, 2000, 10)
    return f"{first}{rng.choice(['s', 's', chr(39) + 's'])}", verbalise.decade(first)


def calendar_day(rng: random.Random) -> tuple[int, int]:
    """Return a month, 1 to 12, and a day of it."""
    month = rng.randint(1, 12)
    return month, rng.randint(1, DAYS_IN_MONTH[month - 1])


def date(rng: random.Random) -> Pair:
    """Return a full date: "3/14/2025", "2025-03-14", "March 14, 2025", "Mar. 14, 2025", "14 March 2025"."""
    (month, day), of_year = calendar_day(rng), random_year(rng)
    name = MONTH_NAMES[month - 1]
    short = MONTH_ABBREVIATIONS[month - 1]
    spoken = verbalise.date(month, day, of_year)
    day_first = verbalise.date(month, day, of_year, day_first=True)
    suffixed = f"{day}{ordinal_suffix(day)}"
    return rng.choice(
        [
            (f"{month}/{day}/{of_year}", spoken),
            (f"{month:02}/{day:02}/{of_year}", spoken),
            (f"{of_year}-{month:02}-{day:02}", spoken),
            # Twice as often: the order of the parts changes, which is hardest to learn.
            (f"{of_year}-{month:02}-{day:02}", spoken),
            (f"{name} {day}, {of_year}", spoken),
            (f"{short} {day}, {of_year}", spoken),
            (f"{name} {suffixed}, {of_year}", spoken),
            (f"{day} {name} {of_year}", day_first),
            (f"the {suffixed} of {name} {of_year}", day_first),
        ]
    )


def day(rng: random.Random) -> Pair:
    """Return a day of the year, a weekday before it a third of the time: "3/14", "Mar. 14", "Friday, March 14th"."""
    month, number = calendar_day(rng)
    name = MONTH_NAMES[month - 1]
    short = MONTH_ABBREVIATIONS[month - 1]
    spoken = verbalise.date(month, number)
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
    month = rng.randint(1, 12)
    of_year = random_year(rng)
    name = rng.choice([MONTH_NAMES[month - 1], MONTH_ABBREVIATIONS[month - 1]])
    return f"{name} {of_year}", f"{verbalise.MONTHS[month - 1]} {verbalise.year(of_year)}"


def time(rng: random.Random) -> Pair:
    """Return a time of day: "5:30 pm", "5 p.m.", "5:30PM", "17:30", "5:00"."""
    hour = rng.randint(1, 12)
    minute = weighted(rng, [(2, rng.randint(0, 59)), (1, rng.randrange(0, 60, 5)), (1, 0)])
    half = rng.choice("ap")
    spoken = f"{verbalise.clock(hour, minute)} {half} m"
    marker = rng.choice([f" {half}m", f" {half}.m.", f"{half}m", f" {half.upper()}M", f"{half.upper()}M"])
    if rng.random() < 0.25:
        hour_24 = rng.randint(13, 23)
        return f"{hour_24}:{minute:02}", verbalise.clock_24(hour_24, minute)
    written = f"{hour}:{minute:02}"
    if rng.random() < 0.25:
        if minute:
            return written, verbalise.clock(hour, minute)
        return written, f"{verbalise.clock(hour, 0)} o'clock"
    if minute or rng.random() < 0.5:
        return written + marker, spoken
    return f"{hour}{marker}", spoken
