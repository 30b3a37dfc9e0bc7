"""Sentences are taken in an order that stands for all of them."""

from hypothesis import given, settings
from hypothesis import strategies as st
from txport.exporter.sample import spread


@settings(deadline=None)
@given(st.lists(st.integers(1, 100), max_size=300))
def test_the_order_has_every_sentence_once_and_is_the_same_each_time(lengths: list[int]) -> None:
    assert sorted(spread(lengths)) == list(range(len(lengths)))
    assert spread(lengths) == spread(list(lengths))


@settings(deadline=None)
@given(st.lists(st.integers(1, 100), min_size=1, max_size=300), st.integers(1, 300))
def test_every_beginning_has_its_share_of_short_sentences(lengths: list[int], count: int) -> None:
    """Of any length: at most a few more or fewer than the whole has."""
    beginning = [lengths[index] for index in spread(lengths)[:count]]
    for length in (10, 50, 90):
        share, whole = (sum(each <= length for each in all) / len(all) for all in (beginning, lengths))
        assert abs(share - whole) * len(beginning) <= 10
