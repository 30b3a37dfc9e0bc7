"""The slots of the built-in corpus: each draws one value and gives it as written and as spoken.

One function a semiotic class (Sproat and Jaitly 2016, section 2), with the written forms that people use for it. What a
written form means may depend on its context ("in 1905" against "1905 people"): the templates define which
class belongs where, the model has to learn it.
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
