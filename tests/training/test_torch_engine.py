"""The greedy loop that ships over PyTorch, against the plainest decoding: the uncached model, a sentence a time."""

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from moved_rows import Turn, check_moves, turns
from txport.models.transformer import Transformer
from txport.runtime.search.decoding import decode_all
from txport.runtime.search.requests import Request
from txport.training.torch_engine import TorchEngine

SOURCE = st.lists(st.integers(4, 23), min_size=0, max_size=30).map(lambda ids: [*ids, 3])


def naive(model: Transformer, source: list[int], limit: int) -> list[int]:
    """Greedy by `decode` of the whole prefix, each step anew."""
    model.eval()
    ids: list[int] = []
    with torch.no_grad():
        length = torch.tensor([len(source)])
        memory = model.encode(torch.tensor([source]), length)
        while len(ids) < limit and 3 not in ids:
            logits = model.decode(torch.tensor([[2, *ids]]), memory, length)
            ids.append(int(logits[0, -1].argmax()))
    return ids


@settings(max_examples=25, deadline=None)
@given(st.lists(SOURCE, min_size=1, max_size=9), st.integers(1, 4))
def test_ids_are_those_of_naive_greedy_search(copying_model: Transformer, sources: list[list[int]], rows: int) -> None:
    engine = TorchEngine(copying_model, target=36)
    results = decode_all(engine, [Request(source) for source in sources], rows=rows)
    assert [result.ids for result in results] == [naive(copying_model, source, 36) for source in sources]


def test_the_oracle_is_not_trivial(copying_model: Transformer) -> None:
    """Outputs of this model differ in length and in tokens, or the test above would show little."""
    rng = np.random.default_rng(0)
    outputs = [naive(copying_model, [*rng.integers(4, 24, 9).tolist(), 3], 36) for _ in range(30)]
    assert len({tuple(ids) for ids in outputs}) > 10 and len({len(ids) for ids in outputs}) > 3


@settings(max_examples=25, deadline=None)
@given(
    st.lists(SOURCE, min_size=1, max_size=4),
    st.lists(st.integers(1, 36), min_size=4, max_size=4),
    turns(st.integers(4, 23), 4),
)
def test_rows_move_and_repeat(
    copying_model: Transformer, sources: list[list[int]], limits: list[int], walk: list[Turn]
) -> None:
    def after(source: Sequence[int], made: Sequence[int]) -> int:
        alone = Request(source, len(made) + 1, prefix=made)
        return decode_all(TorchEngine(copying_model), [alone])[0].ids[-1]

    check_moves(TorchEngine(copying_model, target=36), sources, limits[: len(sources)], walk, after)


def test_limits_prefixes_and_scores(copying_model: Transformer) -> None:
    engine = TorchEngine(copying_model, target=36)
    source = [9, 14, 20, 5, 3]
    plain = naive(copying_model, source, 36)
    assert decode_all(engine, [Request(source, max_length=2)])[0].ids == plain[:2]
    prefix = [7, 8, 9]
    forced = decode_all(engine, [Request(source, prefix=prefix, scores=True)])[0]
    assert forced.ids[:3] == prefix and forced.scores is not None
    with torch.no_grad():
        length = torch.tensor([len(source)])
        memory = copying_model.encode(torch.tensor([source]), length)
        logits = copying_model.decode(torch.tensor([[2, *forced.ids[:-1]]]), memory, length)
    expected = logits.log_softmax(-1)[0].gather(1, torch.tensor(forced.ids)[:, None])[:, 0]
    assert forced.scores == pytest.approx(expected.tolist(), abs=1e-4)


def test_minimum_length(copying_model: Transformer) -> None:
    rng = np.random.default_rng(0)
    requests = [Request([*rng.integers(4, 24, 9).tolist(), 3], min_length=30) for _ in range(8)]
    results = decode_all(TorchEngine(copying_model), requests, rows=3)
    assert all(len(result.ids) >= 30 and 3 not in result.ids[:29] for result in results)


def test_training_goes_on_undisturbed(copying_model: Transformer) -> None:
    """Decoding leaves no trace: neither in the mode of the model nor in its dropout or gradients."""
    copying_model.train()
    decode_all(TorchEngine(copying_model), [Request([5, 3])])
    assert copying_model.training
    copying_model(torch.tensor([[5, 3]]), torch.tensor([2]), torch.tensor([[2, 6]])).sum().backward()
    assert all(parameter.grad is not None for parameter in copying_model.parameters())
    copying_model.zero_grad()
    copying_model.eval()


def test_autocast_around_it_changes_nothing(copying_model: Transformer) -> None:
    engine, requests = TorchEngine(copying_model), [Request([5, 9, 17, 3], scores=True)]
    exact = decode_all(engine, requests)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert decode_all(engine, requests) == exact
