"""Slots of the built-in corpus. Each generates a value in written and spoken form.

There is one function for each semiotic class (Sproat and Jaitly 2016, section 2), with the usual written forms. The
meaning of a written form may depend on its context ("in 1905", "1905 people"). The templates define which class occurs
where, and the model has to learn it.
"""

from txport.training.spoken import codes, dates, letters, numbers
from txport.training.spoken.numbers import Slot
from txport.training.spoken.words import UNITS

_BY_THEIR_NAMES = (
    *(numbers.cardinal, numbers.plain, numbers.ordinal, numbers.money, numbers.decimal),
    *(
        numbers.percentage,
        numbers.fraction,
        numbers.mixed,
        numbers.temperature,
        numbers.score,
        numbers.ratio,
        numbers.equation,
    ),
    *(dates.year, dates.years, dates.decade, dates.date, dates.day, dates.month_year, dates.time),
    *(codes.phone, codes.code, codes.plate, codes.room, codes.house, codes.roman_ordinal, codes.version),
    letters.made_up,
)
SLOTS: dict[str, Slot] = {
    **{slot.__name__: slot for slot in _BY_THEIR_NAMES},
    "few": numbers.count(12),
    "small": numbers.count(99),
    "range": numbers.small_range,
    "millions": numbers.magnitude_words,
    "zip": codes.zip_code,
    "roman": codes.roman_number,
    "number": codes.number_sign,
    **{kind: numbers.measure(kind) for kind in UNITS},
}
