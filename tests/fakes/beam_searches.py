"""Random beam searches and rules, with ids that the models of all tests have."""

from dataclasses import replace

from greedy_oracle import SOURCE
from hypothesis import strategies as st
from memory_engine import TOKENS, VOCABULARY
from txport.runtime.search.requests import Request
from txport.runtime.search.settings import Rules, Search

WORDS = st.lists(st.integers(4, VOCABULARY - 1), min_size=1, max_size=3).map(tuple)
# At most two rules at the same time, so that enough tokens remain.
RULES = st.builds(
    lambda first, second: replace(Rules(), **{**first, **second}),
    *[
        st.sampled_from(["", "penalty", "ngram", "words", "suppress", "begin", "ends", "forced"]).flatmap(
            lambda name: {
                "": st.just({}),
                "penalty": st.sampled_from([{"repetition_penalty": 1.3}, {"repetition_penalty": 0.8}]),
                "ngram": st.integers(1, 3).map(lambda n: {"no_repeat_ngram": n}),
                "words": st.lists(WORDS, min_size=1, max_size=3).map(lambda words: {"bad_words": tuple(words)}),
                "suppress": st.just({"suppress": (4, 9)}),
                "begin": st.just({"begin_suppress": (TOKENS.eos, 5)}),
                "ends": st.just({"end_ids": (7,)}),
                "forced": st.just({"forced_end": TOKENS.eos}),
            }[name]
        )
        for _ in range(2)
    ],
)
LENGTH = st.sampled_from([0.0, 1.0, 2.0, -1.0, 0.6])
EARLY = st.sampled_from([False, True, "never"])
BEAMS = st.builds(Search, st.integers(2, 5), st.just(2), LENGTH, EARLY)
# The prefix, and the number of its ids that the model forces.
BEGUN = st.sampled_from([([], 0), ([8], 1), ([6, 10], 0), ([11, 6], 1)])


@st.composite
def requests(draw: st.DrawFn) -> Request:
    """Draw a request without its search."""
    prefix, forced = draw(BEGUN)
    longest = draw(st.integers(len(prefix) + 1, 14))
    return Request(draw(SOURCE), longest, draw(st.sampled_from([0, 0, 4])), prefix, forced=forced)
