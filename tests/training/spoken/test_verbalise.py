"""Numbers as words against num2words, an independent implementation, and dates, times and amounts by hand."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from num2words import num2words
from txport.training.spoken import verbalise

NUMBERS = st.integers(0, 10**6) | st.integers(0, verbalise.LARGEST)


def plain(words: str) -> str:
    """What num2words says, in our style: no hyphens, no commas, no "and"."""
    return " ".join(re.sub(r"[-,]", " ", words.replace(" and ", " ")).split())


@given(NUMBERS)
def test_cardinal_is_what_num2words_says(number: int) -> None:
    assert verbalise.cardinal(number) == plain(num2words(number))


@given(NUMBERS)
def test_ordinal_is_what_num2words_says(number: int) -> None:
    assert verbalise.ordinal(number) == plain(num2words(number, to="ordinal"))


def test_negative_cardinal_and_the_largest() -> None:
    assert verbalise.cardinal(-12) == "minus twelve"
    with pytest.raises(ValueError, match="larger than"):
        verbalise.cardinal(verbalise.LARGEST + 1)


@given(st.integers(1010, 2099).filter(lambda year: year not in range(2000, 2010)))
def test_year_is_what_num2words_says(year: int) -> None:
    assert verbalise.year(year) == plain(num2words(year, to="year"))


@pytest.mark.parametrize(
    ("year", "words"), [(2000, "two thousand"), (2005, "two thousand five"), (1900, "nineteen hundred")]
)
def test_years_of_their_own_kind(year: int, words: str) -> None:
    assert verbalise.year(year) == words


@given(st.integers(0, 10**6), st.integers(0, 999), st.booleans())
def test_decimal_is_what_num2words_says(whole: int, thousandths: int, negative: bool) -> None:
    text = f"{'-' if negative else ''}{whole}.{thousandths:03}"
    digits = " ".join(num2words(int(digit)) for digit in f"{thousandths:03}")
    expected = f"{'minus ' if negative else ''}{plain(num2words(whole))} point {digits}"
    assert verbalise.decimal(text) == expected
    assert verbalise.decimal(f"{whole:,}") == plain(num2words(whole))


@given(st.integers(0, 10**6), st.integers(0, 99))
def test_dollars_are_what_num2words_says(dollars: int, cents: int) -> None:
    """num2words always names both parts; we leave out a part that is zero."""
    theirs = num2words(f"{dollars}.{cents:02}", to="currency", currency="USD", separator=";")
    parts = [plain(part) for part in theirs.split(";")]
    kept = [part for part in parts if not part.startswith("zero ")]
    assert verbalise.money(dollars, cents) == (" and ".join(kept) or "zero dollars")


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (verbalise.pairs(305), "three oh five"),
        (verbalise.pairs(300), "three hundred"),
        (verbalise.pairs(42), "forty two"),
        (verbalise.pairs(1600), "sixteen hundred"),
        (verbalise.pairs(2000), "two thousand"),
        (verbalise.pairs(1234), "twelve thirty four"),
        (verbalise.decade(1990), "nineteen nineties"),
        (verbalise.decade(1900), "nineteen hundreds"),
        (verbalise.digits("4B-07"), "four b zero seven"),
        (verbalise.fraction(1, 2), "one half"),
        (verbalise.fraction(3, 4), "three quarters"),
        (verbalise.fraction(1, 3), "one third"),
        (verbalise.fraction(5, 8), "five eighths"),
        (verbalise.mixed_fraction(2, 1, 2), "two and a half"),
        (verbalise.mixed_fraction(2, 1, 8), "two and an eighth"),
        (verbalise.mixed_fraction(1, 1, 11), "one and an eleventh"),
        (verbalise.mixed_fraction(3, 2, 3), "three and two thirds"),
        (verbalise.money(0, 1, part=("penny", "pence")), "one penny"),
        (verbalise.money(1, 50, ("pound", "pounds"), ("penny", "pence")), "one pound and fifty pence"),
        (verbalise.clock(5, 30), "five thirty"),
        (verbalise.clock(5, 5), "five oh five"),
        (verbalise.clock(12, 0), "twelve"),
        (verbalise.clock_24(17, 30), "seventeen thirty"),
        (verbalise.clock_24(18, 0), "eighteen hundred"),
        (verbalise.date(3, 14, 2025), "march fourteenth twenty twenty five"),
        (verbalise.date(3, 14, 1905, day_first=True), "the fourteenth of march nineteen oh five"),
        (verbalise.date(12, 31), "december thirty first"),
    ],
)
def test_examples(made: str, words: str) -> None:
    assert made == words
