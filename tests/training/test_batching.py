"""Batches: each pair once, within the bound, little padding, decided by the seed, shared by any number of devices."""

from random import Random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from txport.runtime.errors import InputError
from txport.runtime.text.affixes import Affixes
from txport.training.batching import Loader, TokenBatches, token_batches
from txport.training.examples import Examples, Ragged

LENGTHS = st.lists(st.integers(1, 40), min_size=1, max_size=120).map(np.array)


@settings(max_examples=200, deadline=None)
@given(LENGTHS, st.integers(40, 300), st.integers(1, 5), st.integers(0, 3))
def test_each_pair_once_within_the_bound(lengths: np.ndarray, bound: int, world: int, seed: int) -> None:
    batches = token_batches(lengths, bound, world, np.random.default_rng(seed))
    assert len(batches) % world == 0 and all(map(len, batches))
    assert all(len(rows) * lengths[rows].max() <= bound for rows in batches)
    rows = sorted(row for batch in batches for row in batch)
    if any(len(batch) > 1 for batch in batches) or len(lengths) % world == 0:
        assert rows == list(range(len(lengths)))
    else:  # nothing was left to halve
        assert set(rows) == set(range(len(lengths))) and len(rows) < len(lengths) + world


@settings(max_examples=100, deadline=None)
@given(LENGTHS, st.integers(1, 9))
def test_no_batch_has_more_rows_than_it_may(lengths: np.ndarray, most: int) -> None:
    batches = token_batches(lengths, 300, 1, np.random.default_rng(0), most)
    assert max(map(len, batches)) <= most and sorted(row for batch in batches for row in batch) == [
        *range(len(lengths))
    ]
    if lengths.max() * most <= 300:
        assert len(batches) == -(-len(lengths) // most), "as few as can be"


@settings(max_examples=100, deadline=None)
@given(LENGTHS.filter(lambda lengths: len(lengths) >= 12), st.integers(40, 300), st.integers(1, 4), st.integers(0, 5))
def test_devices_share_the_batches_of_an_epoch(lengths: np.ndarray, bound: int, world: int, epoch: int) -> None:
    shares = [TokenBatches(lengths, bound, 1, rank, world) for rank in range(world)]
    for share in shares:
        share.set_epoch(epoch)
    assert len({len(share) for share in shares}) == 1
    together = sorted(tuple(rows) for share in shares for rows in share)
    whole = TokenBatches(lengths, bound, 1)
    whole.set_epoch(epoch)
    assert {row for rows in together for row in rows} == {row for rows in whole for row in rows}


def test_bucketing_leaves_little_padding_and_fills_batches() -> None:
    lengths = np.random.default_rng(0).integers(5, 60, 20_000)
    batches = token_batches(lengths, 4_096, 1, np.random.default_rng(0))
    slots = sum(len(rows) * int(lengths[rows].max()) for rows in batches)
    assert lengths.sum() / slots > 0.98
    assert np.mean([len(rows) * lengths[rows].max() for rows in batches]) > 0.95 * 4_096


def test_seed_and_epoch_decide_the_order() -> None:
    lengths = np.random.default_rng(0).integers(5, 60, 500)

    def order(seed: int, epoch: int, shuffle: bool = True) -> list[list[int]]:
        batches = TokenBatches(lengths, 600, seed, shuffle=shuffle)
        batches.set_epoch(epoch)
        return list(batches)

    assert order(1, 1) == order(1, 1)
    assert order(1, 1) != order(1, 2) != order(2, 1)
    assert order(1, 1, shuffle=False) == order(1, 2, shuffle=False)
    assert order(1, 0)[:20] != sorted(order(1, 0)[:20], key=lambda rows: lengths[rows].max())


def make_examples(count: int = 40) -> Examples:
    rng = np.random.default_rng(1)
    rows = [rng.integers(4, 20, rng.integers(1, 12)).tolist() for _ in range(count)]
    return Examples(Ragged.of([*row, 3] for row in rows), Ragged.of([2, *row, *row, 3] for row in rows))


def test_a_batch_is_padded() -> None:
    sources = Ragged.of([[5, 3], [6, 7, 8, 3]])
    targets = Ragged.of([[2, 9, 9, 3], [2, 3]])
    batch = Examples(sources, targets)[[1, 0]]
    assert batch.source_ids.tolist() == [[6, 7, 8, 3], [5, 3, 0, 0]]
    assert batch.source_lengths.tolist() == [4, 2]
    assert batch.target_ids.tolist() == [[2, 3, 0, 0], [2, 9, 9, 3]]
    assert batch.source_ids.dtype == batch.source_lengths.dtype == batch.target_ids.dtype == torch.int64


def test_the_longer_side_counts() -> None:
    examples = make_examples()
    assert (examples.lengths == np.maximum(examples.sources.lengths, examples.targets.lengths - 1)).all()


def test_long_pairs_are_left_out_and_none_left_is_an_error() -> None:
    class Letters:
        """One id a letter."""

        def encode_source(self, text: str, *languages: str | None) -> tuple[list[int], Affixes]:
            return [*map(ord, text)], Affixes([], [3], [])

        def encode_prefix(self, text: str) -> list[int]:
            return [*map(ord, text)]

        def decode(self, ids: object) -> str:
            raise NotImplementedError

    pairs = [("aaaa", "b"), ("a", "bbbb"), ("aaa", "bbb")]
    examples = Examples.of(pairs, Letters(), 4)
    assert len(examples) == 1 and examples[[0]].source_ids.tolist() == [[97, 97, 97, 3]]
    assert examples[[0]].target_ids.tolist() == [[2, 98, 98, 98, 3]]
    with pytest.raises(InputError, match="no pair has at most 2 tokens"):
        Examples.of(pairs, Letters(), 2)


def test_a_loader_goes_on_where_it_was_saved() -> None:
    examples = make_examples()

    def loader() -> Loader:
        batches = TokenBatches(examples.lengths, 60, seed=1)
        batches.set_epoch(2)
        return Loader(examples, batches)

    whole = [batch.source_ids.tolist() for batch in loader()]
    first, second = loader(), loader()
    iterator = iter(first)
    begun = [next(iterator).source_ids.tolist() for _ in range(3)]
    second.load_state_dict(first.state_dict())
    assert begun + [batch.source_ids.tolist() for batch in second] == whole
    # And the epoch after it is whole again.
    assert [batch.source_ids.tolist() for batch in second] == whole
    assert second.state_dict() == {"phases": []}


@settings(max_examples=60, deadline=None)
@given(
    LENGTHS.filter(lambda lengths: len(lengths) >= 40),
    st.lists(st.integers(1, 4), min_size=1, max_size=4),
    st.randoms(use_true_random=False),
)
def test_other_numbers_of_devices_go_on_with_an_epoch(lengths: np.ndarray, worlds: list[int], draw: Random) -> None:
    """Each pair once over all devices that have a part of the epoch, as far as batches could be halved."""
    rows = Ragged.of([[4] * length for length in lengths])
    examples = Examples(rows, rows)
    seen: list[int] = []
    state: dict[str, object] = {"phases": []}
    for number, world in enumerate(worlds):
        loaders = [Loader(examples, TokenBatches(lengths, 60, 1, rank, world)) for rank in range(world)]
        for loader in loaders:
            loader.load_state_dict(state)
            loader.batches.set_epoch(3)
        left = {len(loader.batches._batches) for loader in loaders}
        assert len(left) == 1
        stop = left.pop() if number == len(worlds) - 1 else draw.randint(0, min(left | {2}))
        states = []
        for loader in loaders:
            whole = list(loader.batches._batches)
            iterator = iter(loader)
            for batch in whole[:stop]:
                next(iterator)
                seen += batch.tolist()
            states.append(loader.state_dict())
        assert all(each == states[0] for each in states)
        state = states[0]
        if state == {"phases": []} and stop:
            break
    if len(seen) == len(lengths):
        assert sorted(seen) == list(range(len(lengths)))
    else:
        assert len(set(seen)) == len(lengths) and len(seen) - len(lengths) < sum(worlds)
